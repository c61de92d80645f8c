#!/usr/bin/env bash
# Guests under the names that KubeVirt's functional tests ask for, made of the demo guest and of the Debian guest with what the
# suite's helpers log in with and call. One OCI archive each.
#
#   scripts/functests/guests.sh OUT_DIR      OUT_DIR/images/NAME.tar, with the image NAME:functests
#
# alpine…, cirros…  the demo guest with a kernel that drives USB, AHCI, sound and watchdogs. Root logs in without a password, cirros with
#                   the one that the suite types. "…with-test-tooling" has a guest agent.
# fedora…           the Debian guest with the user, the prompt and the host name that the suite waits for.
# Nothing is installed on this machine and nothing is mounted on it. Needs root: files of the guests belong to several users.
set -euo pipefail

KERNEL=linux-image-amd64
MODULES="virtio_console i6300esb ahci sd_mod usb_storage xhci_pci ehci_pci uhci_hcd snd_hda_intel pvpanic_pci"
# To reach the root disk; the demo guest's own kernel has them built in.
DISK_MODULES="ext4 crc32c_generic"
# Into the Debian guest: what specs call there.
DEBIAN_PACKAGES="curl ncat iputils-ping isc-dhcp-client dmidecode ethtool"
ALPINE_MIB=80
FEDORA_MIB=1200
BOOT_MIB=20

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
base=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}
out=${1:?where to}
debian=${FERROVIRT_GUEST_DIR:-$base/guest}
here=$repo/scripts/functests

say() { printf 'functests guests: %s\n' "$*" >&2; }

# shellcheck source=scripts/guest-parts.sh
. "$repo/scripts/guest-parts.sh"

main() {
    mkdir -p "$out/images"
    exec 7>"$out/guests.lock"
    flock 7
    "$repo/scripts/debian-guest.sh" "$debian"
    FERROVIRT_GUEST_KERNEL=$KERNEL FERROVIRT_GUEST_MODULES=$MODULES FERROVIRT_GUEST_DISK_MODULES=$DISK_MODULES \
        "$repo/scripts/guest-image.sh" "$out/demo"
    local inputs
    inputs=$(cat "$here/guests.sh" "$here"/guest/* "$out/demo/.inputs" "$debian/.debian-inputs" | sha256sum | cut -d' ' -f1)
    if [ "$(cat "$out/.guests" 2>/dev/null)" = "$inputs" ]; then
        say "up to date: $out"
        return
    fi
    work=$(mktemp -d "$out/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    rm -rf "$out/images" && mkdir "$out/images"

    read_disk "$debian/debian.qcow2" "$work/debian"
    make_alpine
    make_fedora
    make_others
    echo "$inputs" >"$out/.guests"
}

# The files of a guest's root, and its boot partition: disk, directory.
read_disk() {
    local raw=$work/read.raw sectors program
    say "reading $(basename "$1")"
    qemu-img convert -O raw "$1" "$raw"
    sectors=$(($(stat -c %s "$raw") / 512))
    mkdir -p "$2"
    dd if="$raw" of="$2.boot" bs=1M count="$((BOOT_MIB + 1))" status=none
    dd if="$raw" of="$2.root" bs=1M skip="$((BOOT_MIB + 1))" count="$((sectors / 2048 - BOOT_MIB - 1))" status=none conv=sparse
    debugfs -R "rdump / $2" "$2.root" 2>/dev/null
    rm -rf "$raw" "$2.root" "$2/lost+found"
    # Lost when a file gets its owner.
    for program in sudo su mount umount passwd; do
        [ ! -e "$2/usr/bin/$program" ] || chmod 4755 "$2/usr/bin/$program"
    done
}

# A disk of a root directory and the boot partition that belongs to it: directory, boot partition, MiB, file.
write_disk() {
    local disk=$work/write.raw root=$work/write.root
    rm -f "$disk" "$root"
    truncate -s "$3M" "$root"
    mke2fs -q -F -t ext4 -L ferrovirt-root -b 4096 -m 0 -O ^metadata_csum,^64bit -J size=4 \
        -E lazy_itable_init=0,lazy_journal_init=0 -d "$1" "$root" "$3M"
    cp "$2" "$disk"
    truncate -s "$((BOOT_MIB + 1 + $3))M" "$disk"
    dd if="$root" of="$disk" bs=1M seek="$((BOOT_MIB + 1))" conv=notrunc,sparse status=none
    partition 00 83 $((2048 * (BOOT_MIB + 1))) $((2048 * $3)) | dd of="$disk" bs=1 seek=462 conv=notrunc status=none
    qemu-img convert -f raw -O qcow2 "$disk" "$4"
    rm -f "$disk" "$root"
}

# An archive of a containerDisk: name, disk.
image() {
    make_disk_archive "$1:functests" "$2" "$out/images/$1.tar"
}

make_alpine() {
    local root=$work/alpine program
    read_disk "$out/demo/demo.qcow2" "$root"
    install -m 755 "$here/guest/test-tools" "$root/sbin/test-tools"
    echo '::once:/sbin/test-tools modules' >>"$root/etc/inittab"
    sed -i 's/^root:[^:]*:/root::/' "$root/etc/shadow"
    # The demo guest's nc has no -k.
    rm -f "$root/bin/nc"
    install -m 755 "$here/guest/nc" "$root/bin/nc"
    write_disk "$root" "$root.boot" "$ALPINE_MIB" "$work/alpine.qcow2"
    image alpine-container-disk-demo "$work/alpine.qcow2"

    cp -a "$root" "$work/tooling"
    # The agent is Debian's, with the libraries that it needs.
    program=$work/debian/usr/sbin/qemu-ga
    install -D -m 755 "$program" "$work/tooling/usr/sbin/qemu-ga"
    install -m 755 "$here/guest/shutdown" "$work/tooling/sbin/shutdown"
    libraries "$program" "$work/tooling"
    echo '::respawn:/sbin/test-tools agent' >>"$work/tooling/etc/inittab"
    write_disk "$work/tooling" "$root.boot" "$ALPINE_MIB" "$work/tooling.qcow2"
    image alpine-with-test-tooling-container-disk "$work/tooling.qcow2"

    cp -a "$root" "$work/cirros"
    echo 'cirros:x:1001:1001:CirrOS:/home/cirros:/bin/sh' >>"$work/cirros/etc/passwd"
    echo "cirros:$(openssl passwd -6 -salt functests gocubsgo):19000:0:99999:7:::" >>"$work/cirros/etc/shadow"
    sed -i 's/^sudo:.*/sudo:x:27:cirros/' "$work/cirros/etc/group"
    echo 'cirros:x:1001:' >>"$work/cirros/etc/group"
    install -d -o 1001 -g 1001 "$work/cirros/home/cirros"
    printf "login as 'cirros' user. default password: 'gocubsgo'. use 'sudo' for root.\n\n" >"$work/cirros/etc/issue"
    echo 'export PS1="$ "' >>"$work/cirros/etc/profile"
    write_disk "$work/cirros" "$root.boot" "$ALPINE_MIB" "$work/cirros.qcow2"
    image cirros-container-disk-demo "$work/cirros.qcow2"
}

# Copies the libraries of a program of the Debian guest, and theirs: program, root.
libraries() {
    local name file
    readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' | while read -r name; do
        if [ -e "$2/lib/x86_64-linux-gnu/$name" ] || [ -e "$2/lib64/$name" ]; then
            continue
        fi
        file=$work/debian/usr/lib/x86_64-linux-gnu/$name
        cp -L "$file" "$2/lib/x86_64-linux-gnu/$name"
        libraries "$file" "$2"
    done
}

make_fedora() {
    local root=$work/debian packages=$work/debs file
    say "adding $DEBIAN_PACKAGES to the Debian guest"
    mkdir -p "$packages/partial"
    # What the guest lacks of them, by its own list of packages; unpacked, not installed.
    cp "$root/var/lib/dpkg/status" "$work/status"
    # shellcheck disable=SC2086 # a list
    apt-get -qq -o "Dir::State::status=$work/status" -o "Dir::Cache::archives=$packages" -o APT::Sandbox::User=root -o Debug::NoLocking=1 \
        -y --no-install-recommends --download-only install $DEBIAN_PACKAGES >&2
    for file in "$packages"/*.deb; do
        # /bin and /lib of the guest are links, which an archive would replace by directories.
        dpkg-deb --fsys-tarfile "$file" | tar -C "$root" -x --keep-directory-symlink --exclude './usr/share/doc' --exclude './usr/share/man' --exclude './usr/share/locale' -f -
    done
    echo fedora >"$root/etc/hostname"
    printf 'NAME="Fedora Linux"\nID=fedora\nID_LIKE=debian\nVERSION_ID=12\nVERSION="12 (a Debian that stands in for Fedora)"\nPRETTY_NAME="Fedora Linux stand-in (Debian 12)"\n' >"$root/usr/lib/os-release"
    # eth0, as the suite's network data says.
    ln -sf /dev/null "$root/etc/systemd/network/99-default.link"
    echo 'fedora:x:1000:1000:Fedora:/home/fedora:/bin/bash' >>"$root/etc/passwd"
    echo "fedora:$(openssl passwd -6 -salt functests fedora):19000:0:99999:7:::" >>"$root/etc/shadow"
    echo 'fedora:x:1000:' >>"$root/etc/group"
    sed -i 's/^sudo:\([^:]*\):\([^:]*\):.*/sudo:\1:\2:fedora/' "$root/etc/group"
    install -d -m 750 -o 1000 -g 1000 "$root/home/fedora"
    echo 'fedora ALL=(ALL) NOPASSWD:ALL' >"$root/etc/sudoers.d/fedora"
    chmod 440 "$root/etc/sudoers.d/fedora"
    printf 'PS1="[\\u@\\h \\W]\\$ "\n' >"$root/etc/bash.bashrc"
    rm -f "$root/root/.bashrc" "$root/etc/skel/.bashrc"
    echo 'set enable-bracketed-paste off' >>"$root/etc/inputrc"
    # Its start script beside the unit would make `systemctl disable` call perl, which takes longer than a spec waits.
    rm -f "$root/etc/init.d/qemu-guest-agent"
    # Specs give some guests ten seconds to end.
    printf '[Manager]\nDefaultTimeoutStopSec=3s\n' >"$root/etc/systemd/system.conf.d/quick-stop.conf"
    sed -i -e 's/name: debian$/name: fedora/' -e 's/gecos: Debian/gecos: Fedora/' -e 's/lock_passwd: true/lock_passwd: false/' \
        "$root/etc/cloud/cloud.cfg.d/90-ferrovirt.cfg"
    write_disk "$root" "$root.boot" "$FEDORA_MIB" "$work/fedora.qcow2"
    image fedora-with-test-tooling-container-disk "$work/fedora.qcow2"
}

# A disk at another place, a kernel without a disk, and a disk that nobody boots.
make_others() {
    local tree=$work/custom
    mkdir -p "$tree/custom-disk"
    cp "$work/cirros.qcow2" "$tree/custom-disk/downloaded"
    chmod 444 "$tree/custom-disk/downloaded"
    tar -C "$tree" --format=gnu --owner=107 --group=107 --numeric-owner --mtime=@0 --sort=name -cf "$work/layer.tar" custom-disk
    make_archive cirros-custom-container-disk-demo:functests "$out/images/cirros-custom-container-disk-demo.tar"
    cp "$out/demo/demo-kernel.tar" "$out/images/alpine-ext-kernel-boot-demo.tar"
    qemu-img create -q -f qcow2 "$work/virtio.qcow2" 64M
    image virtio-container-disk "$work/virtio.qcow2"
}

main
