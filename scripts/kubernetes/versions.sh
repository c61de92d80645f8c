# shellcheck shell=bash disable=SC2034 # sourced by build.sh and lib.sh
# What the test cluster is made of. A program is built anew when its line here changes.
KUBERNETES_VERSION=v1.36.3
ETCD_VERSION=v3.7.3
# Image volumes need containerd 2.1; Debian 12 has 1.6.
CONTAINERD_VERSION=v2.4.2
COREDNS_VERSION=v1.15.0
MULTUS_VERSION=v4.2.3
HELM_VERSION=v3.22.0
