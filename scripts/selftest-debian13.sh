#!/usr/bin/env bash
# The launcher on Debian 13, without Kubernetes: `selftest` of every hypervisor with the monolithic and the modular libvirt daemons, and
# libvirt's ch driver asked about every domain that the tests make for cloud-hypervisor.
#
#   scripts/selftest-debian13.sh           the launcher comes from $FERROVIRT_BIN_DIR, where scripts/build.sh puts it
#
#   FERROVIRT_CLOUD_HYPERVISOR=FILE        a cloud-hypervisor to start a machine with. Without one a stand-in that prints a version is all
#                                          that libvirt gets: enough to define domains, no evidence that any machine runs.
#
# Debian 13 is unpacked into a directory of the cache and never written again: every try has its own layer above it, and its own mounts and
# processes, which end with it. Needs root. The first run takes about five minutes, later ones seconds.
set -euo pipefail

PACKAGES=libvirt-daemon,libvirt-daemon-driver-qemu,libvirt-daemon-driver-lxc,libvirt-clients,qemu-system-x86,seabios,ipxe-qemu,swtpm,swtpm-tools,iproute2
SUITE=trixie
USER_ID=107

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
base=${FERROVIRT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ferrovirt}
bin=${FERROVIRT_BIN_DIR:-${CARGO_TARGET_DIR:-$base/target}/dist}
cache=$base/debian13

say() { printf 'selftest-debian13: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

main() {
    [ "$(id -u)" = 0 ] || die "run it as root: it mounts and changes root directories"
    [ -x "$bin/ferrovirt-launcher" ] || die "$bin/ferrovirt-launcher is missing; run scripts/build.sh"
    for tool in mmdebstrap unshare setpriv; do
        command -v "$tool" >/dev/null || die "$tool is missing; install: mmdebstrap util-linux"
    done
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
    make_root
    make_daemons
    scratch=$(mktemp -d "$base/selftest-debian13.XXXXXX")
    trap clean_up EXIT
    domains=$scratch/domains
    mkdir "$domains" "$scratch/standin" "$scratch/dev"

    export SCRATCH=$scratch LAUNCHER=$bin/ferrovirt-launcher USER_ID
    say "qemu-kvm, monolithic daemon"
    try "$cache/root" user ferrovirt-launcher selftest
    say "qemu-kvm, virtqemud"
    try "$cache/daemons:$cache/root" user ferrovirt-launcher selftest
    say "lxc, monolithic daemon"
    try "$cache/root" root ferrovirt-launcher selftest --hypervisor lxc
    say "lxc, virtlxcd"
    try "$cache/daemons:$cache/root" root ferrovirt-launcher selftest --hypervisor lxc
    say "cloud-hypervisor on a node without /dev/kvm: the probe must say so"
    stand_in
    if said=$(try "$scratch/standin:$cache/daemons:$cache/root" user ferrovirt-launcher probe --hypervisor cloud-hypervisor 2>&1); then
        die "the probe succeeded"
    fi
    grep -q 'cannot do without /dev/kvm' <<<"$said" || die "the probe does not say what is missing: $said"
    ask_the_driver
    run_cloud_hypervisor
    say "done"
}

# libvirt leaves the cgroup above its containers; one that somebody uses is not empty and stays.
clean_up() {
    rm -rf "$scratch"
    rmdir /sys/fs/cgroup/machine /sys/fs/cgroup/*/machine 2>/dev/null || true
}

make_root() {
    [ ! -e "$cache/root.done" ] || [ "$(cat "$cache/root.done")" != "$PACKAGES" ] || return 0
    say "unpacking Debian 13"
    rm -rf "$cache/root" "$cache/root.done"
    mmdebstrap --quiet --variant=minbase --include="$PACKAGES" --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' "$SUITE" "$cache/root"
    # As an image of the launcher has it.
    echo "qemu:x:$USER_ID:$USER_ID:qemu:/home/qemu:/usr/sbin/nologin" >>"$cache/root/etc/passwd"
    echo "qemu:x:$USER_ID:" >>"$cache/root/etc/group"
    echo "$PACKAGES" >"$cache/root.done"
}

# In a layer that is thrown away: compilers do not belong into the root.
make_daemons() {
    local inputs
    inputs=$(sha256sum <"$repo/scripts/libvirt-drivers.sh")
    [ "$(cat "$cache/daemons.done" 2>/dev/null)" != "$inputs" ] || return 0
    say "building libvirt's modular daemons and its ch driver"
    rm -rf "$cache/daemons" "$cache/build"
    mkdir -p "$cache/daemons" "$cache/build"
    cp "$repo/scripts/libvirt-drivers.sh" "$cache/build/"
    CACHE=$cache unshare --mount --pid --fork --kill-child bash -euc '
        mount --make-rprivate /
        mkdir "$CACHE"/build/{upper,work,root}
        mount -t overlay overlay -o "lowerdir=$CACHE/root,upperdir=$CACHE/build/upper,workdir=$CACHE/build/work" "$CACHE/build/root"
        mount -t proc proc "$CACHE/build/root/proc"
        mount --bind /dev "$CACHE/build/root/dev"
        cp /etc/resolv.conf "$CACHE/build/root/etc/resolv.conf"
        cp "$CACHE/build/libvirt-drivers.sh" "$CACHE/build/root/"
        mkdir "$CACHE/build/root/out"
        mount --bind "$CACHE/daemons" "$CACHE/build/root/out"
        chroot "$CACHE/build/root" /libvirt-drivers.sh /out
    ' >"$cache/build.log" 2>&1 || die "the build failed; see $cache/build.log"
    rm -rf "$cache/build"
    echo "$inputs" >"$cache/daemons.done"
}

# try LAYERS root|user COMMAND...: runs a command in those directories, with what a launcher's container has.
try() {
    LAYERS=$1 AS=$2 unshare --mount --pid --net --fork --kill-child bash -euc '
        mount --make-rprivate /
        top=$SCRATCH/top
        mkdir -p "$top"
        mount -t tmpfs tmpfs "$top"
        mkdir "$top"/{upper,work,root}
        mount -t overlay overlay -o "lowerdir=$LAYERS,upperdir=$top/upper,workdir=$top/work" "$top/root"
        cd "$top/root"
        install -D -m 0755 "$LAUNCHER" usr/bin/ferrovirt-launcher
        mount -t proc proc proc
        mount --rbind /sys sys
        # Either kind of cgroups, as pods have them, not both.
        if mountpoint -q sys/fs/cgroup/unified; then umount -l sys/fs/cgroup/unified; fi
        mount -t tmpfs tmpfs run
        mount -t tmpfs tmpfs tmp
        chmod 1777 tmp
        mount -t tmpfs tmpfs dev
        mkdir dev/pts dev/shm run/libvirt mnt/domains old
        for name in null zero full random urandom; do touch "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
        mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
        ln -s pts/ptmx dev/ptmx
        if [ -e "$SCRATCH/dev/kvm" ]; then touch dev/kvm; mount --bind "$SCRATCH/dev/kvm" dev/kvm; fi
        if [ -d "$SCRATCH/domains" ]; then mount --bind "$SCRATCH/domains" mnt/domains; fi
        # A privileged container has all devices; libvirt shows containers their memory by this one.
        [ "$AS" != root ] || mknod -m 666 dev/fuse c 10 229
        [ "$AS" = root ] || chown "$USER_ID:$USER_ID" run/libvirt
        # Not chroot, in which the kernel makes no user namespaces.
        pivot_root . old
        cd /
        umount -l /old
        [ "$AS" != root ] || exec "$@"
        exec setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups --bounding-set=-all --no-new-privs "$@"
    ' try "${@:3}"
}

# NOT cloud-hypervisor: what libvirt's driver asks for before it defines anything.
stand_in() {
    mkdir -p "$scratch/standin/usr/bin"
    printf '#!/bin/sh\necho "cloud-hypervisor v53.0"\n' >"$scratch/standin/usr/bin/cloud-hypervisor"
    chmod 0755 "$scratch/standin/usr/bin/cloud-hypervisor"
}

# The driver looks whether there is a file, and opens none before a machine starts.
ask_the_driver() {
    say "libvirt's ch driver defines what the tests make for cloud-hypervisor"
    FERROVIRT_CH_DOMAINS=$domains cargo test -q --manifest-path "$repo/Cargo.toml" -p ferrovirt-machine --test it cloud_hypervisor_domains
    touch "$scratch/dev/kvm"
    cat >"$domains/ask.sh" <<'ASK'
export HOME=/run/libvirt XDG_RUNTIME_DIR=/run/libvirt XDG_CACHE_HOME=/run/libvirt/cache XDG_CONFIG_HOME=/run/libvirt/config LC_ALL=C
virtchd --daemon
for file in /mnt/domains/*.xml; do
    virsh -q -c ch:///session define "$file" >/dev/null || { echo "refused: $file" >&2; cat "$file" >&2; exit 1; }
done
virsh -q -c ch:///session list --all --name | grep -c .
ASK
    local made defined
    made=$(find "$domains" -name '*.xml' | wc -l)
    defined=$(try "$scratch/standin:$cache/daemons:$cache/root" user bash /mnt/domains/ask.sh)
    rm "$scratch/dev/kvm"
    [ "$made" -gt 0 ] && [ "$defined" = "$made" ] || die "the driver defined $defined of $made domains"
    say "the driver defined $defined of $made domains (with a stand-in for cloud-hypervisor; nothing was started)"
}

run_cloud_hypervisor() {
    if [ -z "${FERROVIRT_CLOUD_HYPERVISOR:-}" ]; then
        say "NOT RUN: a machine in cloud-hypervisor; FERROVIRT_CLOUD_HYPERVISOR names none"
        return
    fi
    [ -e /dev/kvm ] || die "FERROVIRT_CLOUD_HYPERVISOR is set, and there is no /dev/kvm"
    say "cloud-hypervisor, virtchd: a kernel that halts"
    install -m 0755 "$FERROVIRT_CLOUD_HYPERVISOR" "$scratch/standin/usr/bin/cloud-hypervisor"
    mknod -m 666 "$scratch/dev/kvm" c 10 232
    try "$scratch/standin:$cache/daemons:$cache/root" user ferrovirt-launcher selftest --hypervisor cloud-hypervisor
}

main
