"""All files of a target, as text, and how they compare with a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.config import parse_config
from cluster.rendering import kuberay, ray_up
from cluster.rendering.serve_config import serve_config
from cluster.rendering.text import as_yaml
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster.config import ClusterConfig

HEADER: Final = "# Made by `kvist deploy render {target}` from the cluster file: edit that one, and render again.\n"
TRIAL_MODEL: Final = {"name": "tiny", "source": "tiny", "engine": "sim", "replicas": 2}


def render(target: str, config: ClusterConfig) -> dict[str, str]:
    """Relative path → text of every file. Raises `InvalidRequest` when the cluster would be open to everybody."""
    if not config.needs_key:
        raise InvalidRequest("a cluster that others can reach needs keys: set tenants_file (docs/tenants.md)")
    documents = TARGETS[target](config)
    header = HEADER.format(target=target)
    return {path: header + "---\n".join(map(as_yaml, parts)) for path, parts in documents.items()}


def differing(files: dict[str, str], folder: Path) -> list[str]:
    """Files that are not in `folder` as they should be, and files there that nothing made."""
    wrong = [path for path, text in files.items() if not _is_same(folder / path, text)]
    found = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*.yaml"))]
    return sorted(wrong + [path for path in found if path not in files])


def write(files: dict[str, str], folder: Path) -> None:
    """Make the files below `folder`, and take away what an earlier rendering left."""
    for path in differing(files, folder):
        if path not in files:
            (folder / path).unlink()
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def _ray_up(config: ClusterConfig) -> dict[str, list[dict[str, Any]]]:
    return {
        "aws.yaml": [ray_up.aws(config)],
        "gcp.yaml": [ray_up.gcp(config)],
        "serve/serve.yaml": [serve_config(config, host=config.host)],
    }


def _kuberay(config: ClusterConfig) -> dict[str, list[dict[str, Any]]]:
    trial = parse_config({"models": [TRIAL_MODEL], "deploy": config.deploy.model_dump()})
    return {f"base/{path}": documents for path, documents in kuberay.base(config).items()} | {
        f"overlays/{path}": documents for path, documents in kuberay.overlays(config, trial).items()
    }


TARGETS: Final[dict[str, Callable[[ClusterConfig], dict[str, list[dict[str, Any]]]]]] = {
    "ray-up": _ray_up,
    "kuberay": _kuberay,
}


def _is_same(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text
