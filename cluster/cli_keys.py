"""`kvist keys`: keys of tenants, each shown once when it is made (the file keeps its digest), and of event sockets."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Final

import typer

from cluster.tenant_file import SECRET_BYTES, TenantEntry, TenantFile, read_tenants, write_tenants
from cluster.tenants import hashed
from router.errors import InvalidRequest
from router.event_keys import EventKeys

keys_app = typer.Typer(no_args_is_help=True, help=__doc__)

KEY_PREFIX: Final = "kvist-"
KEY_BYTES: Final = 32
SHOWN_CHARS: Final = len("sha256:") + 12

File = Annotated[Path, typer.Argument(help="The file that `tenants_file` names; made when it is missing.")]
Id = Annotated[str, typer.Option("--tenant", help="Whose key it is; a new id makes a new tenant.")]


@keys_app.command()
def add(
    file: File,
    tenant: Id,
    admin: Annotated[
        bool, typer.Option("--admin", help="May see what concerns all tenants, as `kvist status`.")
    ] = False,
) -> None:
    """Make a key and print it, once. A running cluster takes it within a second."""
    known = read_tenants(file) if file.exists() else TenantFile(salt_secret=secrets.token_hex(SECRET_BYTES))
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    entry = next((one for one in known.tenants if one.id == tenant), None)
    if entry is None:
        entry = TenantEntry(id=tenant)
        known.tenants.append(entry)
    entry.keys.append(hashed(key))
    entry.admin = entry.admin or admin
    _write(file, known)
    typer.echo(key)


@keys_app.command()
def show(file: File) -> None:
    """List the tenants with the beginnings of their keys' digests."""
    for entry in read_tenants(file).tenants:
        words = ", ".join(key[:SHOWN_CHARS] for key in entry.keys) or "no key"
        typer.echo(f"{entry.id}{' (admin)' if entry.admin else ''}: {words}")


@keys_app.command()
def remove(
    file: File, digest: Annotated[str, typer.Argument(help="A key, or the beginning of its digest as `show` has it.")]
) -> None:
    """Take one key away. A running cluster refuses it within a second."""
    known = read_tenants(file)
    wanted = {digest, hashed(digest)} if not digest.startswith("sha256:") else {digest}
    found = [(entry, key) for entry in known.tenants for key in entry.keys if key.startswith(tuple(wanted))]
    if len(found) != 1:
        raise InvalidRequest(f"{file}: {len(found) or 'no'} keys have a digest that begins so")
    entry, key = found[0]
    entry.keys.remove(key)
    _write(file, known)
    typer.echo(f"kvist: {entry.id} has {len(entry.keys)} keys left")


@keys_app.command()
def events(
    file: Annotated[Path, typer.Argument(help="The file that `event_keys_file` names; a new one.")],
) -> None:
    """Make the keys by which replicas and ingresses of one cluster know each other. Copy the file to every node."""
    try:
        EventKeys.generate().write(file)
    except OSError as fault:
        raise InvalidRequest(f"{file}: cannot be made ({fault.strerror})") from fault
    typer.echo(f"kvist: {file} is made; every node needs a copy, and nobody else")


def _write(file: Path, tenants: TenantFile) -> None:
    try:
        write_tenants(file, tenants)
    except OSError as fault:
        raise InvalidRequest(f"{file}: cannot be written ({fault.strerror})") from fault
