#!/usr/bin/env bash
# Builds the programs of the test cluster from the Go module proxy, if the cache lacks them. Checksums come from Go's
# checksum database. Needs Go, which it fetches, and nothing else: no git clone, no C compiler, no container registry.
#
#   scripts/kubernetes/build.sh           prints the directory of the programs
#   scripts/kubernetes/build.sh e2e       the same, with Kubernetes' e2e suite in it and nothing else
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=versions.sh
. "$here/versions.sh"

cache=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}/kubernetes
bin=$cache/$KUBERNETES_VERSION/bin

export CGO_ENABLED=0
export GOFLAGS="-buildvcs=false -trimpath -mod=mod"
export GOCACHE=$cache/go-build
export GOWORK=off
# Two builds at once would compile everything twice.
lock=$cache/build.lock

main() {
    mkdir -p "$bin"
    exec 9>"$lock"
    flock 9
    local k8s=${KUBERNETES_VERSION#v}
    local minor=${k8s#*.}
    minor=${minor%%.*}
    local version_flags=""
    local package
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        version_flags+="-X $package.gitVersion=$KUBERNETES_VERSION -X $package.gitMajor=${k8s%%.*} -X $package.gitMinor=$minor "
    done

    if [ "${1:-}" = e2e ]; then
        build e2e k8s.io/kubernetes "$KUBERNETES_VERSION" "$version_flags" test/e2e
        rm -rf "$GOCACHE"
        echo "$bin"
        return
    fi
    build etcd go.etcd.io/etcd/server/v3 "$ETCD_VERSION" "" .
    build kubernetes k8s.io/kubernetes "$KUBERNETES_VERSION" "$version_flags" \
        cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kube-proxy cmd/kubelet cmd/kubectl
    local containerd=github.com/containerd/containerd/v2
    build containerd "$containerd" "$CONTAINERD_VERSION" "-X $containerd/version.Version=$CONTAINERD_VERSION" \
        cmd/containerd cmd/containerd-shim-runc-v2 cmd/ctr
    build coredns github.com/coredns/coredns "$COREDNS_VERSION" "" "$here/programs/coredns"
    build multus gopkg.in/k8snetworkplumbingwg/multus-cni.v4 "$MULTUS_VERSION" "" cmd/multus
    build helm helm.sh/helm/v3 "$HELM_VERSION" "-X helm.sh/helm/v3/internal/version.version=$HELM_VERSION" cmd/helm
    build testpod "" "" "" "$here/programs/testpod"
    # Gigabytes that only a build of the same version could use again.
    rm -rf "$GOCACHE"
    echo "$bin"
}

# build NAME MODULE VERSION LINKER_FLAGS PACKAGE...: a package is a directory of the module, or a directory with a main.go
# of ours that uses the module.
build() {
    local name=$1 module=$2 version=$3 linker_flags=$4
    shift 4
    local stamp inputs
    # Not where this clone lies: the next one has the same programs.
    inputs=$(printf '%s\n' "$module@$version" "$linker_flags" "${@#"$here/"}" "$(sources "$@")" | sha256sum)
    stamp="$bin/.$name-${inputs:0:16}"
    [ -e "$stamp" ] && return
    PATH=$("$here/../go.sh"):$PATH
    echo "Building $name $version" >&2

    local work=$cache/modules/$name
    rm -rf "$work" && mkdir -p "$work"
    write_go_mod "$work" "$name" "$module" "$version"
    local package targets=()
    for package in "$@"; do
        case $package in
        /*) cp "$package"/*.go "$work" && targets+=(.) ;;
        .) targets+=("$module") ;;
        *) targets+=("$module/$package") ;;
        esac
    done
    mkdir "$work/bin"
    # Tests are compiled by another command, and called differently.
    local compile=(go build -o bin/)
    [ "$name" != e2e ] || compile=(go test -c -vet=off -o bin/e2e.test)
    # What containerd can do without on a test cluster; the tags mean nothing to the others.
    (cd "$work" && "${compile[@]}" -ldflags "-s -w $linker_flags" -tags no_btrfs,no_devmapper,no_zfs "${targets[@]}") ||
        fail "building $name failed"
    if [ -e "$work/bin/server" ]; then # etcd's package is called so
        mv "$work/bin/server" "$work/bin/etcd"
    fi
    mv "$work"/bin/* "$bin/"
    rm -f "$bin/.$name-"*
    touch "$stamp"
}

write_go_mod() {
    local work=$1 name=$2 module=$3 version=$4
    (
        cd "$work"
        go mod init "test-cluster/$name" 2>/dev/null
        [ -n "$module" ] || exit 0
        go mod edit -require "$module@$version"
        # Kubernetes replaces its own libraries with directories of its repository; the proxy has them as v0.MINOR.PATCH.
        local file
        file=$(go mod download -json "$module@$version" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
        if [ "$module" = k8s.io/kubernetes ]; then
            sed -n "s|^\t\(k8s.io/[a-z-]*\) => ./staging/.*|-replace=\1=\1@v0.${version#v1.}|p" "$file" | xargs go mod edit
        fi
    )
}

# The text of our own main packages, so that a change to one builds it again.
sources() {
    local package
    for package in "$@"; do
        [[ $package == /* ]] && cat "$package"/*.go
    done
    return 0
}

fail() {
    echo "build: $*" >&2
    exit 1
}

main "$@"
