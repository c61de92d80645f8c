#!/usr/bin/env bash
# Runs the unit tests that KubeVirt has for launcher pods and for admission, with Ferrovirt's code in place of KubeVirt's, and counts the
# rows that agree. Nothing of upstream is in this repository: its source comes from the Go module proxy, checked against Go's checksum
# database, and the functions that are tested are renamed in a copy. Ours, in upstream-rows/, take their names and ask
# crates/virt-api/examples/upstream_rows.rs.
#
#   scripts/upstream-rows.sh
#
# upstream-rows/rows.txt lists what does not apply here, and why.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")

KUBEVIRT_VERSION=v1.9.0

cache=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}/upstream-rows
copy=$cache/kubevirt-$KUBEVIRT_VERSION
services=pkg/virt-controller/services
admitters=pkg/virt-api/webhooks/validating-webhook/admitters
instancetypes=pkg/instancetype/webhooks
preferences=pkg/instancetype/preference/webhooks

main() {
    PATH=$("$here/go.sh"):$PATH
    export CGO_ENABLED=0 GOWORK=off GOFLAGS="-buildvcs=false -mod=mod"
    [ -e "$copy/.complete" ] || fetch
    replace
    local target package reports=()
    target=$(cd "$root" && cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
    (cd "$root" && cargo build --quiet -p ferrovirt-virt-api --example upstream_rows)
    export FERROVIRT_ROWS=$target/debug/examples/upstream_rows
    for package in "$services" "$admitters" "$instancetypes" "$preferences"; do
        local name=${package//\//-}
        (cd "$copy" && go test -c -o "$cache/$name.test" "./$package") || fail "building the tests of $package failed"
        # Rows that differ make it fail; what counts is in the report.
        (cd "$copy/$package" && "$cache/$name.test" --ginkgo.json-report="$cache/$name.json" >"$cache/$name.log" 2>&1) || true
        [ -s "$cache/$name.json" ] || fail "the tests of $package did not run: $cache/$name.log"
        reports+=("$cache/$name.json")
    done
    python3 "$here/upstream-rows/count.py" "$here/upstream-rows/rows.txt" "${reports[@]}"
}

fetch() {
    echo "Fetching KubeVirt $KUBEVIRT_VERSION" >&2
    rm -rf "$copy" && mkdir -p "$cache"
    local source
    source=$(cd "$cache" && go mod download -json "kubevirt.io/kubevirt@$KUBEVIRT_VERSION" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    [ -n "$source" ] || fail "the module proxy does not give kubevirt.io/kubevirt $KUBEVIRT_VERSION"
    cp -r "$source" "$copy" && chmod -R u+w "$copy"
    rm -f "$copy/go.work" "$copy/go.work.sum"
    cd "$copy"
    # Its own libraries are directories of its repository; the proxy has them under the same version. See clients.sh.
    go mod edit -replace "kubevirt.io/api=kubevirt.io/api@$KUBEVIRT_VERSION" -replace "kubevirt.io/client-go=kubevirt.io/client-go@$KUBEVIRT_VERSION"
    local part
    for part in api client-go engine; do
        go mod edit -replace "kubevirt.io/virt-template-$part=$here/clients/virt-template/$part"
    done
    touch "$copy/.complete"
}

# Gives ours the names of upstream's. Doing it again changes nothing.
replace() {
    cd "$copy"
    sed -i 's/^\(func (t \*TemplateService) \)RenderLaunchManifest(/\1upstreamsRenderLaunchManifest(/' "$services/template.go"
    sed -i 's/^\(func ([a-z]* \*[A-Za-z]*) \)Admit(/\1upstreamsAdmit(/; s/^func ValidateVirtualMachineInstanceSpec(/func upstreamsValidateVirtualMachineInstanceSpec(/' \
        "$admitters"/{vmi-create,vmi-update,vms,vmirs,vmi-preset,migration-create,migration-update}-admitter.go "$instancetypes/admitter.go" "$preferences/admitter.go"
    mkdir -p pkg/ferrovirt
    cp "$here"/upstream-rows/ferrovirt/*.go pkg/ferrovirt/
    cp "$here/upstream-rows/services.go" "$services/ferrovirt.go"
    cp "$here/upstream-rows/admitters.go" "$admitters/ferrovirt.go"
    cp "$here/upstream-rows/instancetypes.go" "$instancetypes/ferrovirt.go"
    cp "$here/upstream-rows/preferences.go" "$preferences/ferrovirt.go"
}

fail() {
    echo "upstream-rows: $*" >&2
    exit 1
}

main "$@"
