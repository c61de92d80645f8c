#!/usr/bin/env bash
# Checks every shell script of the repository.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t scripts < <(git ls-files --cached --others --exclude-standard -- .ci/run '*.sh')
for script in "${scripts[@]}"; do
    bash -n "$script"
done
if command -v shellcheck >/dev/null; then
    shellcheck --severity=warning "${scripts[@]}"
else
    echo "SKIPPED shellcheck: not installed (${#scripts[@]} scripts were only parsed)"
fi
