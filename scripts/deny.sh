#!/usr/bin/env bash
# Checks licences, sources and known vulnerabilities of everything we link (deny.toml).
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v cargo-deny >/dev/null; then
    echo "Installing cargo-deny (takes some minutes)"
    cargo install --locked cargo-deny
fi
cargo deny --log-level error check licenses bans sources
if cargo deny --log-level off fetch db; then
    cargo deny check advisories
else
    echo "SKIPPED advisories: the advisory database cannot be reached"
fi
