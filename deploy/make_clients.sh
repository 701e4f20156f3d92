#!/usr/bin/env bash
# Install the real clients that tests/e2e/clients drives, each pinned, into the folder $1. Nothing is done twice.
set -euo pipefail
folder=$1
clients="@anthropic-ai/claude-code@2.1.332:claude @openai/codex@0.171.0:codex"

say() { printf 'kvist clients: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

is_ready() { [ "$("$1" --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)" = "$2" ]; }

install() { # package, version, program
  local final=$folder/$3-$2
  if is_ready "$final/node_modules/.bin/$3" "$2"; then return; fi
  command -v node >/dev/null || fail "node is missing: the tests drive real clients; install nodejs 20 or newer and npm."
  command -v npm >/dev/null || fail "npm is missing: the tests drive real clients from npm; install it beside node."
  say "installing $1 $2 into $final"
  mkdir -p "$folder"
  draft=$(mktemp -d "$folder/.$3-XXXXXX")
  trap 'rm -rf "$draft"' EXIT
  # --force: one package asks for a newer node than its own native program needs.
  npm install --prefix "$draft" --no-save --no-package-lock --force --loglevel=error "$1@$2" >&2 ||
    fail "npm could not install $1 $2 from its configured registry."
  is_ready "$draft/node_modules/.bin/$3" "$2" || fail "$1 $2 is installed but does not say its version; is this platform supported?"
  rm -rf "$final"
  mv "$draft" "$final"
  trap - EXIT
}

for client in $clients; do
  pinned=${client%:*}
  install "${pinned%@*}" "${pinned##*@}" "${client##*:}"
done
