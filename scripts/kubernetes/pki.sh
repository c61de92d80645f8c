# shellcheck shell=bash disable=SC2034,SC2154 # sourced by up.sh; render reads variables by name
# Keys, certificates and kubeconfigs of the test cluster.

make_pki() {
    [ -e "$pki/complete" ] && return
    mkdir -p "$pki"
    chmod 0700 "$pki"
    authority ca
    # Of its own, as whoever holds a certificate of this one may claim to be anyone.
    authority front-proxy-ca
    openssl ecparam -name prime256v1 -genkey -noout -out "$pki/service-accounts.key"
    openssl ec -in "$pki/service-accounts.key" -pubout -out "$pki/service-accounts.pub" 2>/dev/null

    local kubernetes=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
    certificate ca etcd "/CN=etcd" "DNS:localhost,IP:127.0.0.1"
    certificate ca kube-apiserver "/CN=kube-apiserver" "$kubernetes,DNS:localhost,IP:127.0.0.1,IP:$api_ip,IP:$api_service_ip"
    certificate ca kubelet-client "/O=system:masters/CN=kube-apiserver-kubelet-client"
    certificate front-proxy-ca front-proxy-client "/CN=front-proxy-client"
    certificate ca admin "/O=system:masters/CN=admin"
    certificate ca kube-controller-manager "/CN=system:kube-controller-manager"
    certificate ca kube-scheduler "/CN=system:kube-scheduler"
    certificate ca kube-proxy "/CN=system:kube-proxy"
    certificate ca multus "/CN=multus"

    local user
    for user in admin kube-controller-manager kube-scheduler; do
        write_kubeconfig "$user" 127.0.0.1 "$state/$user.kubeconfig"
    done
    for user in kube-proxy multus; do
        write_kubeconfig "$user" "$api_ip" "$state/$user.kubeconfig"
    done
    touch "$pki/complete"
}

make_node_pki() {
    [ -e "$node_dir/kubelet.kubeconfig" ] && return
    certificate ca "$node" "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:$node_ip"
    write_kubeconfig "$node" "$api_ip" "$node_dir/kubelet.kubeconfig"
}

authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj "/CN=$1" \
        -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$pki/$1.key" -out "$pki/$1.crt" 2>/dev/null
}

# certificate AUTHORITY NAME SUBJECT [SUBJECT_ALTERNATIVE_NAMES]
certificate() {
    local authority=$1 name=$2 subject=$3 names=${4:-}
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "$subject" \
        -keyout "$pki/$name.key" 2>/dev/null |
        openssl x509 -req -days 365 -CA "$pki/$authority.crt" -CAkey "$pki/$authority.key" -out "$pki/$name.crt" \
            -extfile <(
                echo "keyUsage=critical,digitalSignature"
                echo "extendedKeyUsage=clientAuth,serverAuth"
                [ -z "$names" ] || echo "subjectAltName=$names"
            ) 2>/dev/null
}

# write_kubeconfig USER ADDRESS_OF_THE_API FILE. The files are inlined, so that a kubeconfig can be copied.
write_kubeconfig() {
    local user=$1 api_address=$2 file=$3
    local authority_data certificate_data key_data
    authority_data=$(base64 -w0 "$pki/ca.crt")
    certificate_data=$(base64 -w0 "$pki/$user.crt")
    key_data=$(base64 -w0 "$pki/$user.key")
    (umask 077 && render kubeconfig.yaml >"$file")
}
