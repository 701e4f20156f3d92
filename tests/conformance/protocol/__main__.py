"""`python -m tests.conformance.protocol`: run the behaviours against servers started here, one after the other."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance.protocol.behaviours import ALL
from tests.conformance.protocol.judge import UNSEEN, verdicts_of
from tests.conformance.protocol.models import strict_model
from tests.conformance.protocol.peers import PEERS, REPOSITORY
from tests.conformance.protocol.probe import CONTEXT_TOKENS
from tests.conformance.protocol.readme import with_block
from tests.conformance.protocol.results import load, result_of, save
from tests.conformance.protocol.scripted import EVERYTHING, scripted_app
from tests.conformance.protocol.table import markdown, text
from workers.models import prepare_tiny

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Verdict
    from tests.conformance.protocol.results import Result

PAGE = REPOSITORY / "docs" / "conformance.md"
README = REPOSITORY / "README.md"


def main() -> None:
    """Print the table; with `--markdown` also write the page, which needs every server's result."""
    arguments = _arguments()
    results = load(arguments.json)
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        cache = Path(os.environ.get("KVIST_CACHE", Path.home() / ".cache" / "kvist"))
        model = strict_model(prepare_tiny(cache, template="system-first"), Path(folder) / "model")
        for name in arguments.peer or PEERS:
            results[name] = _run(name, model, Path(folder))
            if arguments.json:
                save(arguments.json, results)
    print(text(results))
    if arguments.markdown:
        missing = PEERS.keys() - results.keys()
        if missing:
            raise SystemExit(f"no page without {', '.join(sorted(missing))}: run them, or name their --json file")
        PAGE.write_text(markdown(results, context=CONTEXT_TOKENS))
        README.write_text(with_block(README.read_text(encoding="utf-8"), PAGE.read_text(encoding="utf-8")))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.protocol", description=__doc__)
    parser.add_argument("--peer", action="append", choices=list(PEERS), help="only this server; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep results here; other servers' in it stay")
    page = PAGE.relative_to(REPOSITORY)
    parser.add_argument("--markdown", action="store_true", help=f"write {page}, and the README's table")
    return parser.parse_args()


def _run(name: str, model: Path, folder: Path) -> Result:
    """One server from start to stop."""
    peer = PEERS[name]
    with peer.start(model, folder) as server:
        verdicts = asyncio.run(verdicts_of(server.url, model=server.model, has=server.has))
    if name == "kvist":
        verdicts |= asyncio.run(_in_process(model, verdicts))
    return result_of(peer.version(), verdicts)


async def _in_process(model: Path, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    """What needs scripted answers."""
    behaviours = [behaviour for behaviour in ALL if verdicts[behaviour.name] == UNSEEN]
    async with scripted_app(model) as url:
        found = await verdicts_of(url, model="tiny", has=EVERYTHING, behaviours=behaviours)
    return {name: verdict._replace(detail=f"in process {verdict.detail}".strip()) for name, verdict in found.items()}


if __name__ == "__main__":
    main()
