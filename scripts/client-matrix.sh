#!/usr/bin/env bash
# Stock clients against a host of their own: kubectl 1.36 and the one of the system (1.32 where this was written),
# Helm, client-go and the Python client. (kube-rs is in `make test`.)
#
# Needs Go, Python with venv, and the programs in $FERROVIRT_BIN_DIR.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD

cache=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}
bin=${FERROVIRT_BIN_DIR:?set it to the directory of the programs, or use make client-matrix}
kubernetes=$(scripts/kubernetes/build.sh)
work=$(mktemp -d /tmp/ferrovirt-clients.XXXXXX)
stop() {
    "$bin/ferrovirt" down --data-dir "$work/data" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap stop EXIT
"$bin/ferrovirt" up --data-dir "$work/data" --listen 127.0.0.1:0 --detach
export KUBECONFIG=$work/data/kubeconfig
kubectl=$kubernetes/kubectl helm=$kubernetes/helm

fail() {
    echo "client-matrix: $*" >&2
    exit 1
}

# expect WORDS COMMAND...: what the command says has the words in it.
expect() {
    local words=$1 said
    shift
    said=$("$@" 2>&1) || fail "$*: $said"
    [[ $said == *"$words"* ]] || fail "$*: no \"$words\" in: $said"
}

# check_kubectl PROGRAM: in a namespace of its own.
check_kubectl() {
    local manifest=$work/map.yaml kubectl=$1
    expect created "$kubectl" create namespace matrix
    expect modified "$kubectl" config set-context --current --namespace=matrix
    "$kubectl" wait --for=create serviceaccount/default --timeout=30s >/dev/null || fail "a namespace gets no account"
    expect "Server Version: v1.36" "$kubectl" version
    expect created "$kubectl" create configmap one --from-literal=a=1
    expect created "$kubectl" create secret generic two --from-literal=b=2
    expect created "$kubectl" create service clusterip three --tcp=80:80
    expect created "$kubectl" create serviceaccount four
    expect created "$kubectl" create role five --verb=get --resource=pods
    expect created "$kubectl" create rolebinding six --role=five --serviceaccount=matrix:four
    expect created "$kubectl" create quota seven --hard=pods=100
    expect created "$kubectl" create poddisruptionbudget eight --selector=a=b --min-available=1
    expect created "$kubectl" create priorityclass nine --value=9
    expect created "$kubectl" create namespace ten
    expect ey "$kubectl" create token four
    printf 'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: applied\ndata:\n  a: first\n' >"$manifest"
    expect created "$kubectl" apply -f "$manifest"
    expect unchanged "$kubectl" apply -f "$manifest"
    sed -i s/first/second/ "$manifest"
    if "$kubectl" diff -f "$manifest" >"$work/diff"; then fail "kubectl diff sees no difference"; fi
    grep -q '^+  a: second' "$work/diff" || fail "kubectl diff says $(cat "$work/diff")"
    expect serverside-applied "$kubectl" apply --server-side --force-conflicts -f "$manifest"
    expect edited env KUBE_EDITOR='sed -i s/second/third/' "$kubectl" edit configmap applied
    expect third "$kubectl" get configmap applied -o 'jsonpath={.data.a}'
    expect "condition met" "$kubectl" wait --for=jsonpath='{.data.a}'=third configmap/applied --timeout=30s
    expect runStrategy "$kubectl" explain virtualmachine.spec
    expect "FIELD: containers" "$kubectl" explain pod.spec.containers
    expect yes "$kubectl" auth can-i create pods
    expect yes "$kubectl" auth can-i get pods --as=system:serviceaccount:matrix:four
    if "$kubectl" auth can-i delete pods --as=system:serviceaccount:matrix:four >/dev/null; then fail "an account may too much"; fi
    expect '"gitVersion"' "$kubectl" get --raw /version
    expect virtualmachines "$kubectl" api-resources --api-group=kubevirt.io
    expect "manager: kubectl-create" "$kubectl" get configmap one -o yaml --show-managed-fields
    expect labeled "$kubectl" label configmap one x=y
    expect annotated "$kubectl" annotate configmap one x=y
    expect patched "$kubectl" patch configmap one -p '{"data":{"c":"3"}}'
    expect replaced "$kubectl" replace -f "$manifest"
    expect deleted "$kubectl" delete configmap one applied
    expect deleted "$kubectl" delete namespace ten
    expect deleted "$kubectl" delete priorityclass nine
    expect modified "$kubectl" config set-context --current --namespace=default
    expect deleted "$kubectl" delete namespace matrix
    echo "kubectl $("$kubectl" version --client | sed -n 's/^Client Version: //p'): ok"
}

check_helm() {
    local chart=$here/scripts/clients/chart
    expect "STATUS: deployed" "$helm" install farm "$chart" --wait
    expect farm-1 "$kubectl" get vm farm-1
    expect 64Mi "$kubectl" get vm farm-0 -o 'jsonpath={.spec.template.spec.domain.memory.guest}'
    expect "REVISION: 2" "$helm" upgrade farm "$chart" --set replicas=3,memory=96Mi
    expect 96Mi "$kubectl" get vm farm-2 -o 'jsonpath={.spec.template.spec.domain.memory.guest}'
    expect "Rollback was a success" "$helm" rollback farm 1 --wait
    "$kubectl" wait --for=delete vm/farm-2 --timeout=60s >/dev/null || fail "the rollback leaves a VM"
    expect deployed "$helm" list
    expect uninstalled "$helm" uninstall farm --wait
    [ -z "$("$kubectl" get vm,secret,service -l app.kubernetes.io/instance=farm -o name)" ] || fail "the chart leaves objects"
    echo "helm $("$helm" version --template '{{.Version}}'): ok"
}

check_client_go() {
    local module=$cache/clients/modules/client-go
    # shellcheck source-path=SCRIPTDIR source=kubernetes/versions.sh
    . "$here/scripts/kubernetes/versions.sh"
    mkdir -p "$module"
    cp "$here/scripts/clients/client-go/main.go" "$module"
    (
        cd "$module"
        PATH=$("$here/scripts/go.sh"):$PATH
        export CGO_ENABLED=0 GOWORK=off GOFLAGS="-buildvcs=false -trimpath -mod=mod"
        [ -e go.mod ] || go mod init clients/client-go 2>/dev/null
        for library in api apimachinery client-go; do
            go mod edit -require "k8s.io/$library@v0.${KUBERNETES_VERSION#v1.}"
        done
        go build -o client-go .
    ) || fail "building the client-go program failed"
    "$module/client-go"
}

check_python() {
    local venv=$cache/clients/python
    if [ ! -x "$venv/bin/python" ]; then
        python3 -m venv "$venv" && "$venv/bin/pip" install --quiet kubernetes
    fi
    "$venv/bin/python" "$here/scripts/clients/python/check.py"
}

check_kubectl "$kubectl"
check_kubectl kubectl
check_helm
check_python
check_client_go
