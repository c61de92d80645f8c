#!/usr/bin/env bash
# `make down`: stops the machines in order, then ferrovirt. Nothing to stop is not an error.
set -euo pipefail

: "${PREFIX:=/usr/local}"
ferrovirt="$PREFIX/bin/ferrovirt"
sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)

if [ ! -x "$ferrovirt" ]; then
    echo "ferrovirt is not installed in $PREFIX/bin; nothing to stop."
    exit 0
fi
"${sudo[@]}" "$ferrovirt" down
