#!/bin/sh
# Writes into .env what Compose needs to know of this machine, user and checkout, unless .env or the environment says so.
set -eu

if ! docker compose version >/dev/null 2>&1; then
  echo "error: docker compose is missing here: install Docker's Compose plugin, 2.24 or later" >&2
  exit 2
fi

state() {
  if ! printenv "$1" >/dev/null && ! grep -qs "^$1=" .env; then
    echo "$1=$2" >>.env
    echo ".env: $1=$2"
  fi
}

user=$(id -un 2>/dev/null | tr 'A-Z' 'a-z' | tr -cd 'a-z0-9_-')
state CLICKWORK_PROJECT "clickwork-${user:-user}-$(pwd -P | cksum | cut -d' ' -f1)"
# Files belong to the caller; where that is root, to the owner of the checkout.
if [ "$(id -u)" = 0 ]; then
  state CLICKWORK_UID "$(stat -c %u .)"
  state CLICKWORK_GID "$(stat -c %g .)"
else
  state CLICKWORK_UID "$(id -u)"
  state CLICKWORK_GID "$(id -g)"
fi
if [ -e /dev/dri/renderD128 ]; then
  state CLICKWORK_RENDER_GID "$(stat -c %g /dev/dri/renderD128)"
fi
