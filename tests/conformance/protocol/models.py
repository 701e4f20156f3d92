"""The model under every server: the demo model, with the one strictness that most templates have."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# As the templates of the Qwen family do: a system message has its place at the head.
STRICT = """{%- for message in messages -%}
{%- if message.role == 'system' and not loop.first -%}
{{- raise_exception('a system message stands at the beginning only') -}}
{%- endif -%}
{%- endfor -%}
"""


def strict_model(tiny: Path, folder: Path) -> Path:
    """A copy of the demo model in `folder` whose chat template refuses late system messages."""
    shutil.copytree(tiny, folder)
    template = folder / "chat_template.jinja"
    template.write_text(STRICT + template.read_text())
    return folder
