#!/usr/bin/env bash
# The same requests to `ferrovirt up` and to a kube-apiserver of the version we follow: every difference in what they
# answer is printed, and those that are not known are an error.
#
#   scripts/differential.sh [PATTERN]      only cases with PATTERN in their name
#
# Needs Go (to build the peer, once), Python, openssl, and the programs in $FERROVIRT_BIN_DIR.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${FERROVIRT_BIN_DIR:?set it to the directory of the programs, or use make differential}
kubernetes=$(scripts/kubernetes/build.sh)
work=$(mktemp -d /tmp/ferrovirt-differ.XXXXXX)
children=()
stop() {
    "$bin/ferrovirt" down --data-dir "$work/ours" >/dev/null 2>&1 || true
    ((${#children[@]} == 0)) || kill -KILL "${children[@]}" 2>/dev/null || true
    wait || true
    rm -rf "$work"
}
trap stop EXIT

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# start NAME COMMAND...: in the background, with its output in a file.
start() {
    local name=$1
    shift
    "$@" >"$work/$name.log" 2>&1 &
    children+=($!)
}

# until_ok WHAT URL
until_ok() {
    local deadline=$((SECONDS + 120))
    until [ "$(curl -sk -o /dev/null -w '%{http_code}' -H "Authorization: Bearer differ" "$2")" = 200 ]; do
        if ((SECONDS > deadline)); then
            tail -n 20 "$work/$1.log" >&2 || true
            echo "differential: $1 does not answer" >&2
            exit 1
        fi
        sleep 0.2
    done
}

echo 'differ,admin,differ-uid,"system:masters"' >"$work/tokens"
ours=$(free_port) etcd=$(free_port) peers=$(free_port) peer=$(free_port) manager=$(free_port)
"$bin/ferrovirt" up --data-dir "$work/ours" --listen "127.0.0.1:$ours" --token-file "$work/tokens" --detach >"$work/ours.log" 2>&1

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj "/CN=differ" \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$work/serving.key" -out "$work/serving.crt" 2>/dev/null
openssl ecparam -name prime256v1 -genkey -noout -out "$work/accounts.key"
start etcd "$kubernetes/etcd" --data-dir "$work/etcd" --unsafe-no-fsync \
    --listen-client-urls "http://127.0.0.1:$etcd" --advertise-client-urls "http://127.0.0.1:$etcd" \
    --listen-peer-urls "http://127.0.0.1:$peers" --initial-advertise-peer-urls "http://127.0.0.1:$peers" \
    --initial-cluster "default=http://127.0.0.1:$peers"
start peer "$kubernetes/kube-apiserver" --etcd-servers="http://127.0.0.1:$etcd" --bind-address=127.0.0.1 --secure-port="$peer" \
    --tls-cert-file="$work/serving.crt" --tls-private-key-file="$work/serving.key" --token-auth-file="$work/tokens" \
    --authorization-mode=RBAC --service-cluster-ip-range=10.96.0.0/16 --allow-privileged=true \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$work/accounts.key" \
    --service-account-signing-key-file="$work/accounts.key" --service-account-max-token-expiration=0
until_ok peer "https://127.0.0.1:$peer/readyz"
cat >"$work/kubeconfig" <<END
apiVersion: v1
kind: Config
current-context: peer
contexts: [{name: peer, context: {cluster: peer, user: admin}}]
clusters: [{name: peer, cluster: {server: "https://127.0.0.1:$peer", certificate-authority: $work/serving.crt}}]
users: [{name: admin, user: {token: differ}}]
END
start manager "$kubernetes/kube-controller-manager" --kubeconfig="$work/kubeconfig" --secure-port="$manager" --leader-elect=false \
    --service-account-private-key-file="$work/accounts.key" --root-ca-file="$work/serving.crt" \
    --controllers=serviceaccount-controller,serviceaccount-token-controller,namespace-controller,garbage-collector-controller,resourcequota-controller,disruption-controller,root-ca-certificate-publisher-controller,clusterrole-aggregation-controller
until_ok ours "https://127.0.0.1:$ours/readyz"
PYTHONDONTWRITEBYTECODE=1 python3 scripts/differential/run.py "127.0.0.1:$ours,differ" "127.0.0.1:$peer,differ" "${1:-}"
