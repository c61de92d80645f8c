#!/usr/bin/env bash
# Prints the directory of a Go that builds the clients and the test cluster. Where none is installed, or only an old one, the
# distribution's fetches the one we want from the module proxy, checked against Go's checksum database.
set -euo pipefail

GO_VERSION=1.26.8

cache=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}/go
module=golang.org/toolchain@v0.0.1-go$GO_VERSION.linux-$(dpkg --print-architecture)
fetched=$cache/pkg/mod/$module/bin

main() {
    local dir
    for dir in "$(dirname "$(command -v go || echo /nowhere/go)")" /usr/local/go/bin "$fetched"; do
        if new_enough "$dir/go"; then
            echo "$dir"
            return
        fi
    done
    command -v go >/dev/null || apt-get install -qq -y golang-go >&2
    echo "Fetching Go $GO_VERSION" >&2
    mkdir -p "$cache"
    # Not inside a module of ours, whose go.mod would be read.
    (cd "$cache" && GOPATH=$cache GOFLAGS=-modcacherw GOTOOLCHAIN=local go mod download "$module")
    # Modules carry no modes.
    chmod -R +x "$fetched" "${fetched%/bin}/pkg/tool"
    new_enough "$fetched/go" || { echo "go: $module does not run" >&2 && exit 1; }
    echo "$fetched"
}

new_enough() {
    local version
    version=$("$1" env GOVERSION 2>/dev/null) && [ "$(printf '%s\n' "go$GO_VERSION" "$version" | sort -V | head -1)" = "go$GO_VERSION" ]
}

main
