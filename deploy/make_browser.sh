#!/usr/bin/env bash
# Find the headless Chromium that tests open reports with, or install it from the distribution. Prints its program.
set -euo pipefail

say() { printf 'kvist browser: %s\n' "$*" >&2; }

found() {
  local program
  for program in "${KVIST_CHROMIUM:-}" chromium-headless-shell chromium chromium-browser google-chrome; do
    if [ -n "$program" ] && command -v "$program"; then return; fi
  done
  return 1
}

if found; then exit; fi
if ! command -v apt-get >/dev/null; then
  say "Chromium is missing and there is no apt: install it, or name its program in KVIST_CHROMIUM."
  exit 1
fi
root=$([ "$(id -u)" = 0 ] || echo sudo)
say "installing chromium-headless-shell with apt"
{ $root apt-get -qq update && $root apt-get -qq install -y --no-install-recommends chromium-headless-shell; } >/dev/null || {
  say "apt cannot install chromium-headless-shell: the report's test will fail."
  exit 1
}
found || { say "chromium-headless-shell is installed but not found in PATH."; exit 1; }
