#!/usr/bin/env bash
# Checks every shell script of the repository.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t scripts < <(git ls-files --cached --others --exclude-standard -- .ci/run '*.sh')
for script in "${scripts[@]}"; do
    bash -n "$script"
done
if ! command -v shellcheck >/dev/null; then
    echo "lint: shellcheck is missing; scripts/install-deps.sh installs it" >&2
    exit 1
fi
shellcheck --severity=warning "${scripts[@]}"
