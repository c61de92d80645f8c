#!/usr/bin/env bash
# Builds the stock clients that tests drive against Ferrovirt, from the Go module proxy, if the cache lacks them. Checksums
# come from Go's checksum database. Needs Go, which it fetches, and nothing else.
#
#   scripts/clients.sh           prints the directory of the programs
#
# virtctl is upstream's own code at the tag below, with one exception: three modules behind `virtctl template`
# (kubevirt.io/virt-template-{api,client-go,engine}) are not to be had from the module proxy. Small ones of ours, in
# clients/virt-template, stand in for them, so every command but `template` is upstream's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

KUBEVIRT_VERSION=v1.9.0

cache=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}/clients
bin=$cache/bin
stamp=$bin/.virtctl-$KUBEVIRT_VERSION

main() {
    if [ ! -e "$stamp" ]; then
        mkdir -p "$bin"
        # Two builds at once would compile everything twice.
        exec 9>"$cache/build.lock"
        flock 9
        [ -e "$stamp" ] || build_virtctl
    fi
    echo "$bin"
}

build_virtctl() {
    PATH=$("$here/go.sh"):$PATH
    echo "Building virtctl $KUBEVIRT_VERSION" >&2
    export CGO_ENABLED=0 GOWORK=off GOFLAGS="-buildvcs=false -trimpath -mod=mod" GOCACHE=$cache/go-build
    local work=$cache/modules/virtctl
    rm -rf "$work" && mkdir -p "$work"
    cd "$work"
    go mod init clients/virtctl 2>/dev/null
    local file
    file=$(go mod download -json "kubevirt.io/kubevirt@$KUBEVIRT_VERSION" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
    [ -n "$file" ] || fail "the module proxy does not give kubevirt.io/kubevirt $KUBEVIRT_VERSION"
    # KubeVirt needs the very versions that it replaces its requirements with. Its own libraries it takes from directories of
    # its repository; the proxy has them under the same version.
    sed -n "s|^\t\([^ ]*\) => \./staging/.*|-replace=\1=\1@$KUBEVIRT_VERSION|p; s|^\t\([^ ]*\) => \([^ .][^ ]*\) \(v[^ ]*\)\$|-replace=\1=\2@\3|p" "$file" |
        xargs go mod edit -require "kubevirt.io/kubevirt@$KUBEVIRT_VERSION"
    local part
    for part in api client-go engine; do
        cp -r "$here/clients/virt-template/$part" "$work/virt-template-$part"
        go mod edit -replace "kubevirt.io/virt-template-$part=./virt-template-$part"
    done
    local version=kubevirt.io/client-go/version
    go build -o virtctl -ldflags "-s -w -X $version.gitVersion=$KUBEVIRT_VERSION -X $version.gitTreeState=clean" \
        kubevirt.io/kubevirt/cmd/virtctl || fail "building virtctl failed"
    mv virtctl "$bin/virtctl"
    rm -f "$bin"/.virtctl-*
    touch "$stamp"
    # Gigabytes that only a build of the same version could use again.
    rm -rf "$GOCACHE"
}

fail() {
    echo "clients: $*" >&2
    exit 1
}

main "$@"
