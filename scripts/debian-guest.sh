#!/usr/bin/env bash
# Builds the Debian guest: a whole Debian 12 (systemd, cloud-init, qemu-guest-agent, ssh) that boots quickly under emulation.
#
#   scripts/debian-guest.sh [OUT_DIR]     default: ${XDG_CACHE_HOME:-~/.cache}/ferrovirt/guest
#
#   OUT_DIR/debian.qcow2        the disk
#   OUT_DIR/debian-guest.tar    image ferrovirt/debian-guest:latest with /disk/debian.qcow2 (a KubeVirt containerDisk)
#
# Boot sector, kernel and initrd are those of the demo guest (scripts/guest-image.sh); this script makes the root file system.
# Nothing is installed on this machine and nothing is mounted on it. A second run with the same inputs does nothing.
# Needs root: files of the guest belong to several users.
set -euo pipefail

# What the build host needs (scripts/install-deps.sh reads this line).
GUEST_BUILD_PACKAGES="mmdebstrap e2fsprogs qemu-utils kmod"

SUITE=bookworm
# dbus and logind: without them nobody listens to the power button.
PACKAGES=systemd,systemd-sysv,udev,dbus,libpam-systemd,libnss-myhostname,cloud-init,qemu-guest-agent,openssh-server,iproute2,netbase,sudo,kmod,procps
REFERENCE="ferrovirt/debian-guest:latest"
BOOT_MIB=20
ROOT_MIB=1024
# Under emulation every instruction counts.
CMDLINE="console=tty0 console=ttyS0,115200 quiet loglevel=3 panic=-1 mitigations=off nokaslr no_timer_check edd=off cryptomgr.notests audit=0 selinux=0 apparmor=0 systemd.gpt_auto=0"
# Chores of a machine that lives for years.
MASKED="apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer
    systemd-pcrphase.service systemd-pcrphase-sysinit.service cloud-init-hotplugd.socket systemd-update-utmp.service
    systemd-networkd-persistent-storage.service ldconfig.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount
    dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount modprobe@drm.service modprobe@fuse.service
    modprobe@efi_pstore.service modprobe@dm_mod.service modprobe@loop.service systemd-modules-load.service"

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
base=${FERROVIRT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ferrovirt}
out=${1:-$base/guest}
debs=$base/guest-debs

say() { printf 'debian-guest: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# shellcheck source=scripts/guest-parts.sh
. "$repo/scripts/guest-parts.sh"

main() {
    "$repo/scripts/guest-image.sh" "$out"
    mkdir -p "$out"
    exec 8>"$base/debian-guest.lock"
    flock 8
    local inputs
    inputs=$(cat "$repo/scripts/debian-guest.sh" "$repo/scripts/guest-parts.sh" "$out/.inputs" | sha256sum | cut -d' ' -f1)
    if [ -s "$out/debian.qcow2" ] && [ -s "$out/debian-guest.tar" ] && [ "$(cat "$out/.debian-inputs" 2>/dev/null)" = "$inputs" ]; then
        say "up to date: $out"
        return
    fi
    [ "$(id -u)" = 0 ] || die "run it as root: the guest's files belong to several users"
    for tool in mmdebstrap mke2fs qemu-img depmod; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || die "$tool is missing; install: $GUEST_BUILD_PACKAGES"
    done
    work=$(mktemp -d "$base/debian-work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    root=$work/root

    install_packages
    add_kernel
    configure
    make_disk
    make_disk_archive "$REFERENCE" "$out/debian.qcow2" "$out/debian-guest.tar"
    echo "$inputs" >"$out/.debian-inputs"
    say "done: $out/debian.qcow2 ($(du -h "$out/debian.qcow2" | cut -f1)), $out/debian-guest.tar ($REFERENCE)"
}

install_packages() {
    say "installing Debian $SUITE into a directory"
    local sources=(/etc/apt/sources.list.d/debian.sources)
    [ -s "${sources[0]}" ] || sources=(/etc/apt/sources.list)
    mkdir "$root"
    # Where packages come from is this machine's business, not the guest's.
    mmdebstrap --quiet --mode=root --format=tar --variant=minbase --include="$PACKAGES" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --aptopt='Acquire::Languages "none"' \
        "$SUITE" "$work/root.tar" "${sources[@]}"
    tar -C "$root" --numeric-owner --exclude='./dev/*' -xf "$work/root.tar"
    rm "$work/root.tar"
}

# The demo guest's kernel boots it; udev finds its modules here.
add_kernel() {
    local kernel version
    kernel=$(ls -t "$debs"/linux-image-*-cloud-amd64_*.deb | head -n1)
    # Below /usr: /lib is a link to it, which tar would replace by a directory.
    dpkg-deb --fsys-tarfile "$kernel" | tar -C "$root/usr" -xf - --wildcards './lib/modules/*'
    version=$(basename "$(ls -d "$root"/usr/lib/modules/*)")
    PATH=$PATH:/usr/sbin:/sbin depmod -b "$root" "$version"
}

configure() {
    local unit
    say "configuring it"
    rm -rf "$root"/etc/apt/sources.list.d/* "$root"/etc/apt/apt.conf.d/99* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* \
        "$root"/var/log/* "$root"/etc/ssh/ssh_host_*
    echo "deb http://deb.debian.org/debian $SUITE main" >"$root/etc/apt/sources.list"
    # Empty: every guest makes its own at its first boot.
    : >"$root/etc/machine-id"
    echo debian >"$root/etc/hostname"
    printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n' >"$root/etc/hosts"
    echo 'LABEL=ferrovirt-root / ext4 noatime 0 0' >"$root/etc/fstab"
    for unit in $MASKED; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
    ln -sf /lib/systemd/system/systemd-networkd.service "$root/etc/systemd/system/multi-user.target.wants/"
    # A resolver daemon takes a fifth of the boot; the name servers of the lease are all that is needed.
    ln -sf ../run/resolv.conf "$root/etc/resolv.conf"
    ln -sf ../name-servers.service "$root/etc/systemd/system/multi-user.target.wants/"
    cat >"$root/etc/systemd/system/name-servers.service" <<'CONF'
[Unit]
Description=Name servers from the DHCP lease
After=network-online.target
Wants=network-online.target
[Service]
Type=oneshot
ExecStart=/usr/local/sbin/name-servers
CONF
    mkdir -p "$root"/etc/systemd/{system.conf.d,network,journald.conf.d,system/ssh.service.d,system/systemd-networkd-wait-online.service.d}
    cat >"$root/etc/systemd/network/90-dhcp.network" <<'CONF'
# For interfaces that cloud-init does not speak of.
[Match]
Name=en* eth*
[Network]
DHCP=yes
LLMNR=no
CONF
    # On a busy host an emulated guest gets a fraction of a CPU; nothing is wrong with it then.
    printf '[Manager]\nDefaultTimeoutStartSec=15min\nDefaultDeviceTimeoutSec=15min\n' >"$root/etc/systemd/system.conf.d/patient.conf"
    cat >"$root/usr/local/sbin/name-servers" <<'CONF'
#!/bin/sh
for address in $(sed -n 's/^DNS=//p' /run/systemd/netif/leases/*); do
    echo "nameserver $address"
done >/run/resolv.conf
CONF
    chmod 755 "$root/usr/local/sbin/name-servers"
    # A log on disk would be written while the guest comes up, when it has no time for it.
    printf '[Journal]\nStorage=volatile\n' >"$root/etc/systemd/journald.conf.d/ferrovirt.conf"
    printf '[Service]\nExecStart=\nExecStart=/lib/systemd/systemd-networkd-wait-online --any --timeout=30\n' \
        >"$root/etc/systemd/system/systemd-networkd-wait-online.service.d/any.conf"
    # One kind of host key, made where cloud-init has made none.
    printf 'HostKey /etc/ssh/ssh_host_ed25519_key\nUseDNS no\n' >"$root/etc/ssh/sshd_config.d/ferrovirt.conf"
    cat >"$root/etc/systemd/system/ssh.service.d/host-key.conf" <<'CONF'
[Service]
ExecStartPre=
ExecStartPre=/bin/sh -c 'test -s /etc/ssh/ssh_host_ed25519_key || ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key'
ExecStartPre=/usr/sbin/sshd -t
CONF
    mkdir -p "$root/etc/cloud/cloud.cfg.d"
    # Each module costs time; these are what people use on a machine that others administer.
    cat >"$root/etc/cloud/cloud.cfg.d/90-ferrovirt.cfg" <<'CONF'
datasource_list: [NoCloud, ConfigDrive, None]
ssh_genkeytypes: [ed25519]
disable_root: true
preserve_hostname: false
network: {renderers: [networkd]}
cloud_init_modules: [write-files, set_hostname, update_hostname, users-groups, ssh]
cloud_config_modules: [set-passwords, runcmd]
cloud_final_modules: [scripts-user, final-message, power-state-change]
system_info:
  distro: debian
  network: {renderers: [networkd]}
  default_user:
    name: debian
    lock_passwd: true
    gecos: Debian
    groups: [adm, sudo]
    sudo: ["ALL=(ALL) NOPASSWD:ALL"]
    shell: /bin/bash
CONF
}

make_disk() {
    say "making the disk"
    local disk=$work/disk.raw ext=$work/root.img boot_sectors=$((BOOT_MIB * 2048)) root_sectors=$((ROOT_MIB * 2048)) fat=$work/boot.img
    qemu-img convert -f qcow2 -O raw "$out/demo.qcow2" "$disk"
    truncate -s "$((BOOT_MIB + 1))M" "$disk"
    dd if="$disk" of="$fat" bs=1M skip=1 count="$BOOT_MIB" status=none
    sed "s|^  APPEND .*|  APPEND $CMDLINE|" >"$work/syslinux.cfg" <<'CFG'
DEFAULT guest
PROMPT 0
TIMEOUT 0
LABEL guest
  LINUX vmlinuz
  INITRD initrd.img
  APPEND -
CFG
    dpkg-deb -x "$(ls -t "$debs"/mtools_*.deb | head -n1)" "$work/mtools"
    MTOOLS_SKIP_CHECK=1 "$work/mtools/usr/bin/mcopy" -o -i "$fat" "$work/syslinux.cfg" ::
    dd if="$fat" of="$disk" bs=1M seek=1 conv=notrunc status=none

    truncate -s "${ROOT_MIB}M" "$ext"
    mke2fs -q -F -t ext4 -L ferrovirt-root -b 4096 -m 0 -O ^metadata_csum,^64bit -J size=8 \
        -E lazy_itable_init=0,lazy_journal_init=0 -d "$root" "$ext" "${ROOT_MIB}M"
    truncate -s "$((BOOT_MIB + ROOT_MIB + 1))M" "$disk"
    dd if="$ext" of="$disk" bs=1M seek=$((BOOT_MIB + 1)) conv=notrunc,sparse status=none
    partition 00 83 $((2048 + boot_sectors)) "$root_sectors" | dd of="$disk" bs=1 seek=462 conv=notrunc status=none
    # Not compressed: it is read at every boot, by several VMs at once.
    qemu-img convert -f raw -O qcow2 -o cluster_size=64k "$disk" "$work/debian.qcow2"
    mv "$work/debian.qcow2" "$out/debian.qcow2"
}

main
