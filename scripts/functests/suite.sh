#!/usr/bin/env bash
# Builds KubeVirt's functional tests from the Go module proxy, if the cache lacks them. Needs Go, which it fetches.
#
#   scripts/functests/suite.sh           prints the path of the program
#
# The suite is upstream's own code at the tag below but for what change_suite does, with a reason for each. As for virtctl
# (scripts/clients.sh), small modules of ours stand in for kubevirt.io/virt-template-*.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

KUBEVIRT_VERSION=v1.9.0

cache=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}/functests
suite=$cache/tests.test
inputs=$(cat "$here/suite.sh" "$here"/suite/* | sha256sum | cut -d' ' -f1)

main() {
    if [ "$(cat "$suite.inputs" 2>/dev/null)" != "$inputs" ]; then
        mkdir -p "$cache"
        # Two builds at once would compile everything twice.
        exec 9>"$cache/build.lock"
        flock 9
        [ "$(cat "$suite.inputs" 2>/dev/null)" = "$inputs" ] || build
    fi
    echo "$suite"
}

build() {
    PATH=$("$here/../go.sh"):$PATH
    echo "Building KubeVirt's functional tests $KUBEVIRT_VERSION: some minutes" >&2
    export CGO_ENABLED=0 GOWORK=off GOFLAGS="-buildvcs=false -trimpath -mod=mod -modcacherw" GOCACHE=$cache/go-build
    local work=$cache/module source part
    rm -rf "$work" && mkdir -p "$work"
    cd "$work"
    go mod init functests 2>/dev/null
    source=$(go mod download -json "kubevirt.io/kubevirt@$KUBEVIRT_VERSION" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -n "$source" ] || fail "the module proxy does not give kubevirt.io/kubevirt $KUBEVIRT_VERSION"
    # A copy: Go's overlays do not reach into the cache of modules.
    cp -r "$source" kubevirt
    chmod -R u+w kubevirt
    # Upstream's own checksums: the proxy's database lacks one of its modules.
    cp kubevirt/go.sum go.sum
    sed -n "s|^\t\([^ ]*\) => \./staging/.*|-replace=\1=\1@$KUBEVIRT_VERSION|p; s|^\t\([^ ]*\) => \([^ .][^ ]*\) \(v[^ ]*\)\$|-replace=\1=\2@\3|p" kubevirt/go.mod |
        xargs go mod edit -require "kubevirt.io/kubevirt@$KUBEVIRT_VERSION" -replace kubevirt.io/kubevirt=./kubevirt
    for part in api client-go engine; do
        cp -r "$here/../clients/virt-template/$part" "virt-template-$part"
        go mod edit -replace "kubevirt.io/virt-template-$part=./virt-template-$part"
    done
    change_suite kubevirt/tests
    go test -c -vet=off -ldflags "-s -w" -o "$suite.new" kubevirt.io/kubevirt/tests >&2 || fail "building the suite failed"
    mv "$suite.new" "$suite"
    echo "$inputs" >"$suite.inputs"
}

# Each change has to hit: an upstream that moved on must not be tested half changed.
change_suite() {
    cp "$here/suite/embedded.go" "$1/testsuite/embedded.go"
    # An embedded host has no operator: its parts are one process, and the KubeVirt object, which is waited for next, says how they are.
    change "$1/testsuite/fixture.go" 1 \
        '/Eventually(matcher.ThisDeploymentWith(flags.KubeVirtInstallNamespace, "virt-operator")/,/"virt-operator deployment is not ready")/d' 'ThisDeploymentWith(flags.KubeVirtInstallNamespace, "virt-operator")'
    # See `served` and `letGo` in embedded.go.
    change "$1/testsuite/namespace.go" 8 \
        's/Expect(\(virtCli\.VirtualMachine[A-Za-z]*(namespace)\.DeleteCollection(.*)\))\.To(Succeed())$/Expect(served(\1)).To(Succeed())/' 'Expect(virtCli.VirtualMachine[A-Za-z]*(namespace).DeleteCollection('
    change "$1/testsuite/namespace.go" 1 \
        '/migrationPolicyList, err := /,/Expect(err)/s/Expect(err)/Expect(served(err))/' 'migrationPolicyList, err :='
    change "$1/testsuite/namespace.go" 1 \
        's/Expect(stripFinalizersFromGVR(vmiGVR, namespace))/Expect(letGo(vmiGVR, namespace))/' 'stripFinalizersFromGVR(vmiGVR'
    # Ten seconds between two looks whether the events of a namespace are gone, after each spec.
    change "$1/testsuite/namespace.go" 1 's/}, 10\*time.Minute, 10\*time.Second).Should(BeTrue())/}, 10*time.Minute, 300*time.Millisecond).Should(BeTrue())/' '10\*time.Minute, 10\*time.Second'
    # Which address families there are is read off a pod of virt-handler, and here is none. The nodes say it, too.
    change "$1/libnet/cluster/cluster.go" 1 's/:= getPodByKubeVirtRole(/:= podOfNode(/' ':= getPodByKubeVirtRole('
    cp "$here/suite/networks.go" "$1/libnet/cluster/networks.go"
    # Of exports and backups, two places need modules that the proxy lacks, or a server that needs them (see scripts/clients.sh): one spec
    # about templates goes, and a reply's type stands where it is read.
    change "$1/storage/export.go" 1 '/It("should export VirtualMachineTemplate as OCI artifact"/,/^\t\t})$/c\\t\t_ = createReadyTemplateExport' \
        'It("should export VirtualMachineTemplate as OCI artifact"'
    change "$1/storage/export.go" 3 '/^\t"k8s.io\/apimachinery\/pkg\/api\/meta"$/d; /^\ttemplatev1beta1 "/d; /^\ttemplateclient "/d' \
        '^	"k8s.io/apimachinery/pkg/api/meta"$\|^	templatev1beta1 "\|^	templateclient "'
    change "$1/storage/backup.go" 2 '/^\texportServer "/d; s/exportServer\.ExportMapResponse/struct{ Extents []struct{ Length uint64; Description string } }/' exportServer
}

# change FILE COUNT SED PATTERN: edits a file in which COUNT lines match the pattern.
change() {
    local found
    found=$(grep -c -- "$4" "$1")
    [ "$found" = "$2" ] || fail "$1 has $found lines with $4, not $2; look at the changes to the suite again"
    sed -i "$3" "$1"
}

fail() {
    echo "functests: $*" >&2
    exit 1
}

main
