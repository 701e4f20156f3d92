"""A folder of KV blocks, in shared memory or on disk, that many processes write, read and evict at once.

    ledger             one number and one lock (`ledger.py`)
    blocks/4/7/4711…   one frame per file, named by its key; a file appears whole or not at all, and never changes
    writers/…          unfinished files of living writers; those of dead ones go at the next start or eviction

The files of the store never take more than `max_bytes`, in whole pages: space is reserved before it is used, and the
least recently used blocks go first. What is used together keeps its order: the start of a prompt is stamped later than
what follows, as the rest is of no use without it. Reading takes no lock: a file that is evicted meanwhile stays
readable to the end. Files are written, not mapped, so that a full disk is an error and not a signal.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from router.errors import ModelUnusable
from workers.kv_store.frames import HEADER_BYTES, BadFrame, ForeignLayout, check, header_of
from workers.kv_store.ledger import PRIVATE, Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from workers.kv_store.frames import Buffer

PAGE_BYTES: Final = 4096
SLACK: Final = 16  # an eviction frees this part of the bound beyond what is wanted, so that few look at all files
STEP_NS: Final = 1_000  # between the stamps of neighbours in a prompt
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe of that name must not stall
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class BlockMissing(BadFrame):
    """No such block here, or no longer."""


class Unwritten(NamedTuple):
    """A block to be stored. Larger stamps (ns) are evicted later."""

    key: bytes
    payload: Buffer
    stamp: int


class _Stored(NamedTuple):
    stamp: int
    path: str
    taken: int


class BlockStore:
    """One process's door to the store in `folder`. Safe in several threads. `layout` is that of its own blocks.

    Raises `ModelUnusable` when the folder cannot be used, or others could read it."""

    def __init__(self, folder: Path, *, max_bytes: int, layout: bytes) -> None:
        self._root = folder
        self._max_bytes = max_bytes
        self._layout = layout
        _make_private(folder)
        self._blocks = str(folder / "blocks")
        for one, other in itertools.product("0123456789abcdef", repeat=2):
            os.makedirs(os.path.join(self._blocks, one, other), mode=0o700, exist_ok=True)
        self._ledger = Ledger(folder)
        self._names = itertools.count()
        with self._ledger.locked():
            self._recount()
            self._evict_to(max_bytes)

    def __repr__(self) -> str:
        return f"<BlockStore {self._root} {self._ledger.used()} of {self._max_bytes} bytes>"

    @property
    def used_bytes(self) -> int:
        """Bytes of all files, and of what writers have reserved."""
        return self._ledger.used()

    def contains(self, key: bytes) -> bool:
        """Whether the block is here now; it may be gone, or be found broken, when it is read."""
        return os.access(self._path(key), os.F_OK)

    def read_into(self, key: bytes, payload: memoryview) -> None:
        """Fill `payload`, which has the block's exact size. Raises `BadFrame`, then its content is undefined."""
        header = bytearray(HEADER_BYTES)
        try:
            file = os.open(self._path(key), _READ)
            try:
                wanted = HEADER_BYTES + payload.nbytes
                if os.fstat(file).st_size != wanted or os.preadv(file, [header, payload], 0) != wanted:
                    raise BadFrame("a file of another size")
            finally:
                os.close(file)
        except FileNotFoundError:
            raise BlockMissing("no such block") from None
        except OSError as fault:
            raise BadFrame(f"cannot be read: {fault.strerror}") from fault
        check(header, payload, key=key, layout=self._layout)

    def load(self, key: bytes, payload: memoryview) -> None:
        """`read_into`; what turns out to be broken is removed, so that it is computed and stored anew."""
        try:
            self.read_into(key, payload)
        except (BlockMissing, ForeignLayout):
            raise
        except BadFrame:
            self.discard(key)
            raise

    def put(self, blocks: Sequence[Unwritten]) -> int:
        """Store what is not here yet, in this order as far as there is room; the number of new blocks.

        A full disk, or a bound too small for them, ends it early: fewer blocks are stored, nothing else happens."""
        missing = {block.key: block for block in blocks if not self.touch(block.key, block.stamp)}
        try:
            return self._put([*missing.values()])
        except OSError:  # the folder is gone: a block that is not stored is computed again
            return 0

    def touch(self, key: bytes, stamp: int) -> bool:
        """Say that the block is used; false when it is not here."""
        try:
            os.utime(self._path(key), ns=(stamp, stamp))
        except OSError:
            return False
        return True

    def discard(self, key: bytes) -> None:
        """Remove one file, whatever it is now. Its space is given back by the next recount: a broken file's size says
        nothing of what was reserved for it."""
        _remove(self._path(key))

    def clear(self) -> None:
        """Remove every block. Those that others write at this moment may appear afterwards."""
        with self._ledger.locked():
            for entry in self._scan():
                _remove(entry.path)
            self._recount()

    def close(self) -> None:
        """Leave no lock, file or folder of this process behind; the blocks stay. Safe to call twice."""
        self._ledger.close()

    def check_integrity(self) -> None:
        """Assert that the files are within what the ledger says and that within the bound, and every block is whole.
        Reads everything."""
        with self._ledger.locked():
            entries = self._scan()
            taken = sum(entry.taken for entry in entries)
            assert taken <= self._ledger.used(), (taken, self._ledger.used())
            assert taken <= self._max_bytes, (taken, self._max_bytes)
            for entry in entries:
                key = bytes.fromhex(os.path.basename(entry.path))
                assert self._path(key) == entry.path
                with suppress(ForeignLayout):
                    self.read_into(key, memoryview(bytearray(os.stat(entry.path).st_size - HEADER_BYTES)))

    def _path(self, key: bytes) -> str:
        name = key.hex()
        return f"{self._blocks}/{name[0]}/{name[1]}/{name}"

    def _put(self, blocks: list[Unwritten]) -> int:
        sizes = [_taken(HEADER_BYTES + memoryview(block.payload).nbytes) for block in blocks]
        while blocks and not self._reserve(sum(sizes)):
            del blocks[len(blocks) // 2 :]
            del sizes[len(blocks) :]
        landed: list[int] = []
        try:
            with suppress(OSError):  # full: the rest is not stored
                for block, size in zip(blocks, sizes, strict=True):
                    if self._write(block):
                        landed.append(size)
        finally:
            self._settle(reserved=sum(sizes), landed=sum(landed))
        return len(landed)

    def _reserve(self, size: int) -> bool:
        with self._ledger.locked():
            if self._ledger.used() + size > self._max_bytes:
                self._recount()
                if self._ledger.used() + size > self._max_bytes:
                    self._evict_to(self._max_bytes - size - self._max_bytes // SLACK // PAGE_BYTES * PAGE_BYTES)
            used = self._ledger.used() + size
            if used > self._max_bytes:
                return False
            self._ledger.set_reserved(self._ledger.reserved() + size)
            self._ledger.set_used(used)
            return True

    def _write(self, block: Unwritten) -> bool:
        """Let one file appear whole. False when another writer was first. Raises `OSError`."""
        temporary = str(self._ledger.temporary / str(next(self._names)))
        header = header_of(block.payload, key=block.key, layout=self._layout)
        file = os.open(temporary, _WRITE, PRIVATE)
        try:
            try:
                if os.writev(file, [header, block.payload]) != HEADER_BYTES + memoryview(block.payload).nbytes:
                    raise OSError(errno.ENOSPC, "the disk is full")
                os.utime(file, ns=(block.stamp, block.stamp))
            finally:
                os.close(file)
            os.link(temporary, self._path(block.key))
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        return True

    def _settle(self, *, reserved: int, landed: int) -> None:
        """What landed is stored now, what did not is given back."""
        with self._ledger.locked():
            self._ledger.set_used(self._ledger.used() - reserved + landed)
            self._ledger.set_reserved(self._ledger.reserved() - reserved)

    def _recount(self) -> None:
        """Replace the number by what is there: someone may have removed files, or died. Looks at every file."""
        stored = sum(entry.taken for entry in self._scan())
        self._ledger.set_used(stored + self._ledger.reserved_by_all())

    def _evict_to(self, target: int) -> None:
        """Remove the least recently used blocks until at most `target` bytes are used, or none is left."""
        used = self._ledger.used()
        if used <= target:
            return
        for entry in sorted(self._scan()):
            if used <= target:
                break
            used -= _remove(entry.path)
        self._ledger.set_used(used)

    def _scan(self) -> list[_Stored]:
        found = []
        for one, other in itertools.product("0123456789abcdef", repeat=2):
            with suppress(FileNotFoundError), os.scandir(f"{self._blocks}/{one}/{other}") as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # removed by somebody who knows of no lock
                        status = entry.stat(follow_symlinks=False)
                        found.append(_Stored(status.st_mtime_ns, entry.path, _taken(status.st_size)))
        return found


def stamps(used_at_ns: int, depth: int, count: int) -> list[int]:
    """Stamps of `count` neighbours from place `depth` of a prompt that is used now: the later, the earlier in it."""
    return [used_at_ns - (depth + place) * STEP_NS for place in range(count)]


def _taken(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _remove(path: str) -> int:
    """Bytes that the file took; none when it is gone. Only under the lock, so that none is counted twice."""
    try:
        size = os.lstat(path).st_size
        os.unlink(path)
    except OSError:
        return 0
    return _taken(size)


def _make_private(folder: Path) -> None:
    """The folder holds what users wrote: it is ours, and nobody else may look."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(folder)
    except OSError as fault:
        raise ModelUnusable(f"kv_store folder {folder}: {fault.strerror}") from fault
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ModelUnusable(
            f"kv_store folder {folder} must be a folder of our own that nobody else can open (mode 700)"
        )
