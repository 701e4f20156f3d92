"""The file of tenants, the commands that write it, and an ingress that follows it."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from cluster.cli import app
from cluster.config import parse_config
from cluster.tenant_file import TenantEntry, TenantFile, read_tenants
from cluster.tenant_watch import TenantWatch
from cluster.tenants import Tenants, hashed, salt_of
from router.errors import InvalidRequest, Unauthorized
from router.limits import MAX_KEYS_PER_TENANT, MAX_TENANTS

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "ab" * 32
TEXT = f"""
salt_secret: {SECRET}
tenants:
- id: team-a
  keys: ["{hashed("key-a")}"]
  requests_per_minute: 60
- id: team-b
  keys: ["{hashed("key-b")}", "{hashed("key-c")}"]
  admin: true
"""


def kvist(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["keys", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def who(tenants: Tenants, key: str) -> str | None:
    try:
        return tenants.authenticate(api_key=key, authorization="").id
    except Unauthorized:
        return None


def test_keys_open_the_tenants_they_stand_with(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(TEXT)
    tenants = read_tenants(file).known()
    assert [who(tenants, f"key-{name}") for name in "abcd"] == ["team-a", "team-b", "team-b", None]
    first = tenants.authenticate(api_key="key-a", authorization="")
    assert (first.limits.requests_per_minute, first.admin) == (60, False)
    assert first.salt == salt_of("team-a", bytes.fromhex(SECRET))


def test_a_digest_opens_nothing(tmp_path: Path) -> None:
    """Who reads the file, or what Serve keeps of a config, has no key."""
    file = tmp_path / "tenants.yaml"
    file.write_text(TEXT)
    assert who(read_tenants(file).known(), hashed("key-a")) is None
    assert who(Tenants.sharing_default([hashed("k")]), hashed("k")) is None
    assert who(Tenants.sharing_default([hashed("k")]), "k") == "default"


def test_salts_differ_by_tenant_and_by_secret_and_fit_the_engine() -> None:
    salts = {salt_of(name, secret) for name in ("a", "ab", "b") for secret in (b"1", b"2")}
    assert len(salts) == 6
    assert all(len(salt) <= 128 and salt.isalnum() for salt in salts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenants: []", "salt_secret"),
        (f"salt_secret: {SECRET}", "no tenant has a key"),
        (f"salt_secret: {SECRET}\ntenants: [{{id: a, keys: [plain]}}]", "keys"),
        (f"salt_secret: {SECRET}\ntenants: [{{id: a, key: x}}]", "unknown field `key`"),
        (f"salt_secret: {SECRET}\ntenants: [{{id: a, requests_per_minute: 0}}]", "requests_per_minute"),
        (TEXT.replace("key-c", "key-a").replace(hashed("key-c"), hashed("key-a")), "team-b.*twice"),
        (TEXT.replace("team-b", "team-a"), "team-a.*twice"),
        ("{", "not YAML"),
    ],
    ids=["secret", "nobody", "plain key", "unknown field", "limit", "key twice", "id twice", "no YAML"],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_name_and_the_reason(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=words):
        read_tenants(file).known()


def test_max_tenants_and_max_keys_per_tenant_stop_a_file_that_would_slow_every_request() -> None:
    """A key is compared with every key there is."""
    entry = {"id": "a", "keys": [hashed(str(at)) for at in range(MAX_KEYS_PER_TENANT + 1)]}
    with pytest.raises(msgspec.ValidationError, match="length"):
        msgspec.convert({"salt_secret": SECRET, "tenants": [entry]}, TenantFile)
    with pytest.raises(msgspec.ValidationError, match="length"):
        msgspec.convert({"salt_secret": SECRET, "tenants": [{"id": "a"}] * (MAX_TENANTS + 1)}, TenantFile)


def test_a_key_is_shown_once_and_opens_its_tenant(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    key = kvist("add", str(file), "--tenant", "team-a", "--admin")
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    tenant = read_tenants(file).known().authenticate(api_key=key, authorization="")
    assert (tenant.id, tenant.admin) == ("team-a", True)
    assert kvist("show", str(file)) == f"team-a (admin): {hashed(key)[:19]}"


def test_a_second_key_keeps_the_first_and_the_salt(tmp_path: Path) -> None:
    """Else a new colleague would make everybody's caches cold."""
    file = tmp_path / "tenants.yaml"
    first = kvist("add", str(file), "--tenant", "team-a")
    before = read_tenants(file).known().authenticate(api_key=first, authorization="")
    second = kvist("add", str(file), "--tenant", "team-a")
    known = read_tenants(file).known()
    assert {known.authenticate(api_key=key, authorization="") for key in (first, second)} == {before}


@pytest.mark.parametrize("by", ["key", "digest"])
def test_a_key_is_taken_away_by_itself_or_by_its_digest(tmp_path: Path, by: str) -> None:
    file = tmp_path / "tenants.yaml"
    key, other = (kvist("add", str(file), "--tenant", "team-a") for _ in range(2))
    kvist("remove", str(file), key if by == "key" else hashed(key)[:19])
    assert [who(read_tenants(file).known(), one) for one in (key, other)] == [None, "team-a"]


def test_a_key_that_is_not_there_cannot_be_taken_away(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    kvist("add", str(file), "--tenant", "team-a")
    with pytest.raises(InvalidRequest, match="no keys"):
        CliRunner().invoke(app, ["keys", "remove", str(file), "other"], catch_exceptions=False)


def test_an_ingress_takes_a_new_key_and_refuses_a_removed_one(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    first = kvist("add", str(file), "--tenant", "team-a")
    tenants = Tenants()
    watch = TenantWatch(file, tenants)
    second = kvist("add", str(file), "--tenant", "team-b")
    assert [who(tenants, key) for key in (first, second)] == ["team-a", None]
    watch.look()
    assert [who(tenants, key) for key in (first, second)] == ["team-a", "team-b"]
    kvist("remove", str(file), first)
    watch.look()
    assert [who(tenants, key) for key in (first, second)] == [None, "team-b"]


@pytest.mark.parametrize("fault", ["broken", "gone"])
def test_a_file_that_went_bad_locks_nobody_out_and_lets_nobody_in(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tenants.yaml"
    key = kvist("add", str(file), "--tenant", "team-a")
    tenants = Tenants()
    watch = TenantWatch(file, tenants)
    if fault == "broken":
        file.write_text("tenants: everybody")
    else:
        file.rename(tmp_path / "elsewhere")
    for _ in range(3):
        watch.look()
    assert [who(tenants, one) for one in (key, "other")] == ["team-a", None]
    assert len(caplog.records) == 1


def test_a_cluster_that_is_reachable_needs_keys_of_one_kind(tmp_path: Path) -> None:
    one = {"models": [{"name": "tiny", "source": "tiny"}], "host": "0.0.0.0"}
    with pytest.raises(InvalidRequest, match="tenants_file"):
        parse_config(one)
    assert parse_config(one | {"tenants_file": str(tmp_path / "tenants.yaml")}).needs_key
    with pytest.raises(InvalidRequest, match="exclude each other"):
        parse_config(one | {"tenants_file": "f", "api_keys": ["k"]})
    with pytest.raises(InvalidRequest, match="64 small hex digits"):
        parse_config(one | {"api_keys": ["sha256:12"]})


def test_entries_say_what_they_hold() -> None:
    entry = TenantEntry(id="a", keys=[hashed("k")], concurrent_requests=3)
    assert entry.tenant(b"s").limits.concurrent_requests == 3
