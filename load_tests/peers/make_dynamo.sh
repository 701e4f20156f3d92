#!/usr/bin/env bash
# Make the environment of the peer Dynamo: frontend and mock engines, no GPU. Folder: KVIST_LAB, else ~/.cache/kvist-lab.
# The package asks for one that is a stub of another index, so its two wheels go in alone, then what its parts need.
set -euo pipefail
venv=${KVIST_LAB:-$HOME/.cache/kvist-lab}/dynamo
[ -x "$venv/bin/python" ] || "${KVIST_PYTHON:-python3}" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

pip install --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
pip install "pydantic<=2.13.5" uvloop aiohttp msgspec msgpack prometheus-client pyzmq tqdm "transformers<6" tokenizers \
  zstandard typing-extensions pyyaml
"$venv/bin/python" -c 'import dynamo.llm'
printf 'ready: %s\n' "$venv" >&2
