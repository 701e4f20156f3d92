"""The store finds what was put, stays within its bound, and takes every broken file for a missing one."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from router.errors import ModelUnusable
from tests.workers.kv_store.support import (
    LAYOUT,
    PAYLOAD_BYTES,
    block,
    bytes_of_files,
    file_of,
    key_of,
    opened,
    payload_of,
    read,
)
from workers.kv_store.frames import BadFrame, ForeignLayout
from workers.kv_store.store import PAGE_BYTES, BlockMissing, BlockStore, Unwritten, stamps

if TYPE_CHECKING:
    from pathlib import Path


def names_in(store: BlockStore, names: range) -> set[int]:
    return {name for name in names if store.contains(key_of(name))}


def test_another_door_finds_what_was_put(tmp_path: Path) -> None:
    one, other = opened(tmp_path, pages=8), opened(tmp_path, pages=8)
    assert one.put([block(name, name) for name in range(3)]) == 3
    assert [read(other, name) for name in range(3)] == [payload_of(name) for name in range(3)]
    with pytest.raises(BlockMissing):
        read(other, 3)
    other.check_integrity()


def test_a_block_is_stored_once(tmp_path: Path) -> None:
    store = opened(tmp_path, pages=8)
    assert store.put([block(1, 1), block(1, 1)]) == 1
    assert opened(tmp_path, pages=8).put([block(1, 2)]) == 0
    assert store.used_bytes == bytes_of_files(tmp_path) == PAGE_BYTES


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = opened(tmp_path, pages=4)
    store.put([block(name, 10 + name) for name in range(4)])
    assert store.touch(key_of(0), 20)
    store.put([block(4, 30)])
    assert names_in(store, range(5)) == {0, 2, 3, 4}
    assert store.used_bytes == 4 * PAGE_BYTES


def test_the_start_of_a_prompt_outlives_its_rest(tmp_path: Path) -> None:
    """Blocks without those before them are of no use."""
    store = opened(tmp_path, pages=4)
    late, early = stamps(10**9, 2, 2), stamps(10**9, 0, 2)
    store.put([block(2 + place, stamp) for place, stamp in enumerate(late)])
    store.put([block(place, stamp) for place, stamp in enumerate(early)])
    store.put([block("a", 2 * 10**9), block("b", 2 * 10**9)])
    assert names_in(store, range(4)) == {0, 1}


def test_files_in_part_of_a_page_count_as_a_page(tmp_path: Path) -> None:
    store = opened(tmp_path, pages=3)
    store.put([block(name, name, size=10) for name in range(5)])
    assert bytes_of_files(tmp_path) <= 3 * PAGE_BYTES


def test_more_than_the_bound_at_once_is_stored_in_part(tmp_path: Path) -> None:
    store = opened(tmp_path, pages=4)
    assert store.put([block(name, 100 - name) for name in range(32)]) == 4
    assert names_in(store, range(32)) == {0, 1, 2, 3}, "the start is what counts"


def test_a_block_larger_than_the_bound_is_not_stored(tmp_path: Path) -> None:
    store = opened(tmp_path, pages=2)
    store.put([block(1, 1)])
    assert store.put([block(2, 2, size=3 * PAGE_BYTES)]) == 0
    store.check_integrity()


def test_a_smaller_bound_is_kept_from_the_start_on(tmp_path: Path) -> None:
    opened(tmp_path, pages=8).put([block(name, name) for name in range(8)])
    assert names_in(opened(tmp_path, pages=3), range(8)) == {5, 6, 7}


@pytest.mark.parametrize("fault", ["cut", "emptied", "flipped", "grown", "swapped", "a pipe", "a folder", "a link"])
def test_a_broken_file_is_an_error_once_and_then_missing(tmp_path: Path, fault: str) -> None:
    """So that the block is computed and stored anew. A pipe must not stall, a link not be followed."""
    store = opened(tmp_path, pages=8)
    store.put([block(1, 1), block(2, 2)])
    file = file_of(tmp_path, 1)
    data = bytearray(file.read_bytes())
    if fault in {"cut", "emptied"}:
        os.truncate(file, len(data) // 2 if fault == "cut" else 0)
    elif fault in {"flipped", "grown"}:
        data[-1] ^= 1
        file.write_bytes(data if fault == "flipped" else data + b"x")
    else:
        file.unlink()
        if fault == "swapped":
            shutil.copy(file_of(tmp_path, 2), file)
        elif fault == "a pipe":
            os.mkfifo(file)
        elif fault == "a folder":
            file.mkdir()
        else:
            os.symlink(file_of(tmp_path, 2), file)
    with pytest.raises(BadFrame):
        read(store, 1)
    if fault != "a folder":  # nobody makes one by accident, and a block under it is computed every time
        assert not store.contains(key_of(1))
        assert store.put([block(1, 3)]) == 1
        assert read(store, 1) == payload_of(1)
        store.check_integrity()


def test_a_block_of_another_layout_is_left_to_its_owner(tmp_path: Path) -> None:
    store, other = opened(tmp_path, pages=8), opened(tmp_path, pages=8, layout=LAYOUT[::-1])
    store.put([block(1, 1)])
    with pytest.raises(ForeignLayout):
        read(other, 1)
    assert read(store, 1) == payload_of(1)


@pytest.mark.parametrize("way", ["an error", "a short write"])
def test_a_full_disk_ends_a_put_and_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    store = opened(tmp_path, pages=8)
    real, room = os.writev, [2]

    def writev(file: int, parts: list[bytes]) -> int:
        room[0] -= 1
        if room[0] >= 0:
            return real(file, parts)
        if way == "an error":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, [b"".join(parts)[:100]])

    monkeypatch.setattr("os.writev", writev)
    assert store.put([block(name, 10 - name) for name in range(4)]) == 2
    assert store.used_bytes == bytes_of_files(tmp_path) == 2 * PAGE_BYTES
    store.check_integrity()


def test_a_folder_that_is_taken_away_is_a_store_without_blocks(tmp_path: Path) -> None:
    store = opened(tmp_path, pages=8)
    store.put([block(1, 1)])
    shutil.rmtree(tmp_path / "store")
    assert not store.contains(key_of(1))
    assert not store.touch(key_of(1), 2)
    assert store.put([block(2, 2)]) == 0
    with pytest.raises(BlockMissing):
        read(store, 1)
    store.close()


def test_files_that_others_removed_are_given_back_when_room_is_needed(tmp_path: Path) -> None:
    store = opened(tmp_path, pages=4)
    store.put([block(name, name) for name in range(4)])
    for name in range(4):
        file_of(tmp_path, name).unlink()
    assert store.put([block(name, name) for name in range(4, 8)]) == 4
    assert store.used_bytes == 4 * PAGE_BYTES


def test_a_cleared_store_is_empty_and_goes_on(tmp_path: Path) -> None:
    store = opened(tmp_path, pages=4)
    store.put([block(1, 1)])
    store.clear()
    assert (store.used_bytes, store.contains(key_of(1))) == (0, False)
    assert store.put([block(1, 1)]) == 1


def test_closing_leaves_the_blocks_and_nothing_else(tmp_path: Path) -> None:
    store = opened(tmp_path, pages=4)
    store.put([block(1, 1)])
    store.close()
    store.close()
    assert [*(tmp_path / "store" / "writers").iterdir()] == []
    assert read(opened(tmp_path, pages=4), 1) == payload_of(1)


def test_a_folder_that_others_can_open_is_refused(tmp_path: Path) -> None:
    """It holds what users wrote."""
    (tmp_path / "store").mkdir(mode=0o755)
    with pytest.raises(ModelUnusable, match="700"):
        opened(tmp_path, pages=4)


def test_a_folder_under_a_link_is_refused(tmp_path: Path) -> None:
    """In a place where everybody may write, somebody else may have put it there."""
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "store").symlink_to(tmp_path / "other")
    with pytest.raises(ModelUnusable, match="700"):
        opened(tmp_path, pages=4)


def test_what_a_reader_has_opened_stays_whole_when_it_is_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = opened(tmp_path, pages=2), opened(tmp_path, pages=2)
    store.put([block(1, 1)])
    real = os.preadv

    def evict_first(*arguments: object) -> int:
        other.put([block("a", 2), block("b", 3)])
        assert not store.contains(key_of(1))
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("os.preadv", evict_first)
    assert read(store, 1) == payload_of(1)


def test_no_file_is_readable_by_others(tmp_path: Path) -> None:
    opened(tmp_path, pages=2).put([Unwritten(key_of(1), bytes(PAYLOAD_BYTES), 1)])
    assert file_of(tmp_path, 1).stat().st_mode & 0o077 == 0
