#!/usr/bin/env bash
# Create the CPU environment in $1 from the pinned lock file, and check that what is hard to install imports.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
torch=2.13.0
python=${KVIST_PYTHON:-python3}

say() { printf 'kvist env: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python 3.11 or newer is needed; set KVIST_PYTHON to one."
"$python" -c 'import ensurepip' 2>/dev/null || fail "this Python cannot make environments: install the package python3-venv."
[ -x "$venv/bin/python" ] || { say "creating $venv"; "$python" -m venv "$venv"; }
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

if ! "$venv/bin/python" -c "from importlib.metadata import version; assert version('torch') == '$torch+cpu'" 2>/dev/null; then
  say "installing torch $torch+cpu"
  pip install --no-deps "torch==$torch+cpu" 2>/dev/null ||
    pip install --no-deps "torch==$torch+cpu" --index-url https://download.pytorch.org/whl/cpu ||
    fail "torch $torch+cpu was found neither in pip's configured sources nor in PyTorch's CPU wheel index."
fi
say "installing the pinned packages (about 4 GB, one to two minutes)"
pip install --no-deps -r "$here/cpu-lock.txt"
"$venv/bin/python" -c 'import torch' || fail "torch is installed but does not import; remove $venv and run make env again."
"$venv/bin/python" -c 'import vllm' || fail "vllm is installed but does not import; remove $venv and run make env again."
pip install --no-deps --no-build-isolation -e "$here/.."
say "ready: $venv"
