#!/usr/bin/env bash
# Installs the Debian packages that building and running need, if any is missing. Quick and silent when none is.
# Never starts a libvirt service of the system: launchers run their own libvirt.
#
#   scripts/install-deps.sh [--update]      --update: renew the package lists in any case
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
    # machines
    qemu-system-x86 qemu-utils seabios ovmf swtpm swtpm-tools
    libvirt-daemon libvirt-daemon-driver-qemu libvirt-daemon-driver-lxc libvirt-clients
    # networks of pods
    containernetworking-plugins iproute2 iptables nftables
    # building
    libvirt-dev libcap-ng-dev libseccomp-dev pkg-config gcc libc6-dev make git
    # tests
    openssh-client nginx-light docker-registry curl xz-utils zstd shellcheck
    # the test cluster
    runc openssl
)
# Making the guests' images needs a few tools; those scripts name them.
read -ra guest_tools < <(sed -n 's/^GUEST_BUILD_PACKAGES="\(.*\)"$/\1/p' scripts/guest-image.sh scripts/debian-guest.sh | tr '\n' ' '; echo)
packages+=("${guest_tools[@]}")
# Not installed, only downloaded: the package lists must know the guest's kernel.
guest_kernel=linux-image-cloud-amd64

main() {
    check_rust
    local missing
    mapfile -t missing < <(missing_packages)
    if ! command -v apt-get >/dev/null; then
        fail "this is not a Debian system; install what these packages hold: ${packages[*]}"
    fi
    if [ "${1:-}" = --update ] || ! all_known "$guest_kernel"; then
        echo "Renewing the package lists"
        as_root bash -c "$(declare -f); update_lists"
    fi
    if [ "${#missing[@]}" -eq 0 ]; then
        return
    fi
    echo "Installing ${#missing[@]} system packages: ${missing[*]}"
    as_root bash -c "$(declare -f); packages=(${packages[*]}); install_missing"
    mapfile -t missing < <(missing_packages)
    [ "${#missing[@]}" -eq 0 ] || fail "still missing after the installation: ${missing[*]}"
}

check_rust() {
    if ! command -v cargo >/dev/null; then
        fail "cargo is not installed. Get Rust from https://rustup.rs; rust-toolchain.toml picks the version."
    fi
}

missing_packages() {
    # dpkg-query fails when it does not know one of them; what it does know it prints all the same.
    dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null |
        awk '$2 == "installed" { print $1 }' | sort -u |
        comm -13 - <(printf '%s\n' "${packages[@]}" | sort -u) || true
}

install_missing() {
    # One installation at a time; the second one to come finds nothing left to do.
    exec 9>/run/lock/ferrovirt-install-deps
    flock 9
    local missing
    mapfile -t missing < <(missing_packages)
    [ "${#missing[@]}" -gt 0 ] || return 0

    forbid_service_starts
    if ! all_known "${missing[@]}"; then
        update_lists
    fi
    # Package lists that are a little old name files the mirror no longer has.
    apt_install "${missing[@]}" || { update_lists && apt_install "${missing[@]}"; }
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -y install --no-install-recommends "$@"
}

update_lists() {
    local attempt
    # The lock of the package lists, unlike dpkg's, has no waiting of its own.
    for attempt in $(seq 1 30); do
        if apt-get update; then
            return
        fi
        echo "apt-get update failed (attempt $attempt of 30); trying again in 5 s" >&2
        sleep 5
    done
    return 1
}

all_known() {
    local package
    for package in "$@"; do
        [[ "$(apt-cache policy "$package")" == *'Candidate: '[!\(]* ]] || return 1
    done
}

forbid_service_starts() {
    local policy=/usr/sbin/policy-rc.d
    if [ -d /run/systemd/system ] && [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 0755 "$policy"
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        command -v sudo >/dev/null || fail "installing packages needs root: run 'make deps' as root once"
        sudo "$@"
    fi
}

fail() {
    echo "install-deps: $*" >&2
    exit 1
}

main "$@"
