#!/usr/bin/env bash
# Builds the demo guest: a small bootable BIOS disk made of Debian packages and our own guest-init, and an OCI archive that holds it.
#
#   scripts/guest-image.sh [OUT_DIR]      default: ${XDG_CACHE_HOME:-~/.cache}/ferrovirt/guest
#
#   OUT_DIR/demo.qcow2        the disk: SYSLINUX and kernel on a FAT partition, ext4 root
#   OUT_DIR/demo-guest.tar    image ferrovirt/demo-guest:latest with /disk/demo.qcow2 (a KubeVirt containerDisk)
#   OUT_DIR/demo-container.tar
#                             image ferrovirt/demo-container:latest with the same system as a tree of files (for `hypervisor: lxc`)
#   OUT_DIR/demo-kernel.tar   image ferrovirt/demo-kernel:latest with /boot/vmlinuz-virt and /boot/initramfs-virt (for `kernelBoot`)
#
# Nothing is installed on this machine and nothing is mounted: packages are downloaded and unpacked into the cache, file systems are
# filled by mke2fs and mtools. A second run with the same inputs does nothing.
set -euo pipefail

# What the build host needs (scripts/install-deps.sh reads this line); apt and dpkg come with Debian.
GUEST_BUILD_PACKAGES="cpio e2fsprogs qemu-utils gcc libc6-dev"

# What the guest is made of; the kernel is the dependency of a meta package.
GUEST_PACKAGES="busybox dropbear-bin openssh-client openssh-sftp-server libc6 libcrypt1 zlib1g libtomcrypt1 libtommath1 libgmp10"
# Another kernel has drivers of devices that clouds do not have; scripts/functests/guests.sh asks for one, with some of its modules.
KERNEL_META=${FERROVIRT_GUEST_KERNEL:-linux-image-cloud-amd64}
# Run from where they are unpacked.
TOOL_PACKAGES="syslinux syslinux-common mtools"

REFERENCE="ferrovirt/demo-guest:latest"
CONTAINER_REFERENCE="ferrovirt/demo-container:latest"
KERNEL_REFERENCE="ferrovirt/demo-kernel:latest"
BOOT_MIB=20
ROOT_MIB=40
# Loaded from the initrd to reach the root disk, and later from the root.
DISK_MODULES="virtio_pci virtio_blk virtio_scsi sd_mod ${FERROVIRT_GUEST_DISK_MODULES:-}"
ROOT_MODULES="$DISK_MODULES sr_mod virtio_net virtio_rng virtio_balloon virtiofs isofs vfat nls_cp437 nls_ascii button evdev ${FERROVIRT_GUEST_MODULES:-}"
# Under emulation every instruction counts: no mitigations, no randomised kernel, no self-tests and no slow probes.
CMDLINE="console=tty0 console=ttyS0,115200 quiet loglevel=3 panic=-1 mitigations=off nokaslr no_timer_check edd=off cryptomgr.notests"

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
base=${FERROVIRT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ferrovirt}
out=${1:-$base/guest}
debs=$base/guest-debs
target=${FERROVIRT_GUEST_TARGET_DIR:-$base/guest-target}

# shellcheck source=scripts/guest-parts.sh
. "$repo/scripts/guest-parts.sh"

say() { printf 'guest-image: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

main() {
    for tool in apt-get dpkg-deb cpio mke2fs qemu-img cargo sha256sum tar; do
        command -v "$tool" >/dev/null || die "$tool is missing; install: $GUEST_BUILD_PACKAGES"
    done
    mkdir -p "$out" "$debs"
    # Two builds at once would write the same cache.
    exec 9>"$base/guest-image.lock"
    flock 9

    local inputs
    inputs=$(input_hash)
    if [ -s "$out/demo.qcow2" ] && [ -s "$out/demo-guest.tar" ] && [ -s "$out/demo-container.tar" ] && [ -s "$out/demo-kernel.tar" ] && [ "$(cat "$out/.inputs" 2>/dev/null)" = "$inputs" ]; then
        say "up to date: $out"
        return
    fi
    work=$(mktemp -d "$base/guest-work.XXXXXX")
    trap 'rm -rf "$work"' EXIT

    choose_packages
    fetch_packages &
    build_init
    wait $! || exit 1
    unpack
    make_root
    make_initrd
    make_disk
    make_disk_archive "$REFERENCE" "$out/demo.qcow2" "$out/demo-guest.tar"
    make_container_archive
    make_kernel_archive
    echo "$inputs" >"$out/.inputs"
    say "done: $out/demo.qcow2 ($(du -h "$out/demo.qcow2" | cut -f1)), $out/demo-guest.tar ($REFERENCE), $out/demo-container.tar ($CONTAINER_REFERENCE)"
}

# What the image is made of, apart from the packages: those stay as they were first downloaded.
input_hash() {
    (cd "$repo" && echo "$KERNEL_META $ROOT_MODULES" && cat scripts/guest-image.sh scripts/guest-parts.sh guest/Cargo.toml rust-toolchain.toml && find guest/src -type f | sort | xargs cat) | sha256sum | cut -d' ' -f1
}

build_init() {
    say "building guest-init (static)"
    # Own target directory: the flags differ from every other build's.
    RUSTFLAGS="-C target-feature=+crt-static -C strip=symbols" \
        CARGO_TARGET_DIR="$target" CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_PANIC=abort \
        cargo build --manifest-path "$repo/Cargo.toml" -q --release -p ferrovirt-guest --target x86_64-unknown-linux-gnu
    guest_init=$target/x86_64-unknown-linux-gnu/release/guest-init
}

choose_packages() {
    local kernel
    kernel=$(apt-cache depends --important "$KERNEL_META" 2>/dev/null | awk '/Depends: linux-image-/ {print $2; exit}')
    [ -n "$kernel" ] || die "apt knows no $KERNEL_META; run apt-get update"
    packages="$kernel $GUEST_PACKAGES $TOOL_PACKAGES"
}

fetch_packages() {
    local name missing=()
    for name in $packages; do
        compgen -G "$debs/${name}_*.deb" >/dev/null || missing+=("$name")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "downloading ${missing[*]}"
    (cd "$debs" && apt-get -qq -o APT::Sandbox::User=root download "${missing[@]}") || die "download failed; run apt-get update"
}

# The newest downloaded file of a package.
deb() { ls -t "$debs/${1}"_*.deb | head -n1; }

unpack() {
    say "unpacking packages"
    local name
    for name in $packages; do
        dpkg-deb -x "$(deb "$name")" "$work/pkg"
    done
    vmlinuz=$(ls "$work"/pkg/boot/vmlinuz-* | head -n1)
    modules=$(ls -d "$work"/pkg/lib/modules/* | head -n1)
}

# Copies modules and what they depend on into one flat directory, named as /sys/module names them.
copy_modules() {
    local dir=$1 name file dependency
    shift
    mkdir -p "$dir"
    for name in "$@"; do
        [ -e "$dir/$name.ko" ] && continue
        file=$(find "$modules/kernel" -name "${name}.ko" -o -name "${name//_/-}.ko" | head -n1)
        if [ -z "$file" ]; then
            # Either built into the kernel, or a mistake in the lists above.
            grep -q "/${name//_/[-_]}\.ko$" "$modules/modules.builtin" || die "the kernel has no module $name"
            continue
        fi
        cp "$file" "$dir/$name.ko"
        for dependency in $(tr '\0' '\n' <"$file" | sed -n 's/^depends=//p' | tr ',-' ' _'); do
            copy_modules "$dir" "$dependency"
        done
    done
}

make_root() {
    say "making the root file system"
    root=$work/root
    local lib=$work/pkg/lib/x86_64-linux-gnu usr=$work/pkg/usr/lib/x86_64-linux-gnu name file
    mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,etc/dropbear,usr/lib/openssh,lib64,lib/x86_64-linux-gnu,dev,proc,sys,run,tmp,root,home,mnt,var/log,var/lib/cloud}
    ln -s /run "$root/var/run"
    ln -s /run/resolv.conf "$root/etc/resolv.conf"
    ln -s /proc/mounts "$root/etc/mtab"
    chmod 700 "$root/root"
    copy_modules "$root/lib/modules/flat" $ROOT_MODULES

    # Not the static one: names are resolved by code that glibc loads at run time, and it crashes there.
    cp "$work/pkg/bin/busybox" "$root/bin/busybox"
    for name in $("$root/bin/busybox" --list); do
        case $name in
        busybox | linuxrc | dpkg | dpkg-deb | rpm | rpm2cpio) continue ;;
        init | getty | halt | poweroff | reboot | ip | udhcpc | switch_root | mkdosfs | mke2fs | modprobe | insmod | rmmod | lsmod | sysctl) ln -s /bin/busybox "$root/sbin/$name" ;;
        *) ln -s busybox "$root/bin/$name" ;;
        esac
    done
    cp "$guest_init" "$root/sbin/guest-init"
    cp "$guest_init" "$root/usr/bin/sudo"
    chmod 4755 "$root/usr/bin/sudo"

    cp "$work/pkg/usr/sbin/dropbear" "$root/usr/sbin/dropbear"
    # For copies of files, by the new protocol and by the old one. dropbear looks for the server at either place.
    cp "$work/pkg/usr/lib/openssh/sftp-server" "$root/usr/lib/openssh/sftp-server"
    ln -s openssh/sftp-server "$root/usr/lib/sftp-server"
    cp "$work/pkg/usr/bin/scp" "$root/usr/bin/scp"
    cp -L "$lib/ld-linux-x86-64.so.2" "$root/lib64/"
    for name in libc.so.6 libresolv.so.2 libcrypt.so.1 libz.so.1 libtomcrypt.so.1 libtommath.so.1 libgmp.so.10; do
        file=$lib/$name
        [ -e "$file" ] || file=$usr/$name
        cp -L "$file" "$root/lib/x86_64-linux-gnu/$name"
    done

    # demo has no password and root has none that works: who may log in is the business of the cloud-init data.
    printf 'root:x:0:0:root:/root:/bin/sh\ndemo:x:1000:1000:Demo:/home/demo:/bin/sh\n' >"$root/etc/passwd"
    printf 'root:*:19000:0:99999:7:::\ndemo:!:19000:0:99999:7:::\n' >"$root/etc/shadow"
    printf 'root:x:0:\ntty:x:5:\nsudo:x:27:\ndemo:x:1000:\n' >"$root/etc/group"
    chmod 600 "$root/etc/shadow"
    echo localhost >"$root/etc/hostname"
    printf '127.0.0.1\tlocalhost\n::1\tlocalhost\n' >"$root/etc/hosts"
    printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
    printf '/bin/sh\n' >"$root/etc/shells"
    printf 'Ferrovirt demo guest\n\n' >"$root/etc/issue"
    printf 'This is a small demo guest: busybox, an ssh server and a subset of cloud-init.\n`sudo poweroff` turns it off.\n' >"$root/etc/motd"
    printf 'export PATH=/usr/sbin:/usr/bin:/sbin:/bin\nexport PS1="\\u@\\h:\\w\\$ "\n' >"$root/etc/profile"
    printf 'NAME="Ferrovirt demo guest"\nID=ferrovirt-demo\nID_LIKE=debian\n' >"$root/etc/os-release"
    # busybox init resets the terminal of whatever it starts. On the console, that would undo under a waiting getty what it
    # set there, and Enter would no longer end the password: only getty may have ttyS0.
    cat >"$root/etc/inittab" <<'TAB'
::sysinit:/sbin/guest-init boot
ttyS0::respawn:/sbin/getty -L 115200 ttyS0 vt100
tty1::respawn:/sbin/getty 38400 tty1 linux
null::respawn:/sbin/guest-init power-button
::ctrlaltdel:/sbin/reboot
::shutdown:/bin/sync
::shutdown:/bin/umount -a -r
TAB
    cat >"$root/etc/udhcpc.script" <<'DHCP'
#!/bin/sh
# Called by udhcpc with the lease in the environment.
case $1 in
deconfig)
    ip -4 addr flush dev "$interface"
    ip link set "$interface" up
    ;;
bound | renew)
    ip -4 addr flush dev "$interface"
    ip addr add "$ip/${mask:-24}" dev "$interface"
    [ -n "$mtu" ] && ip link set "$interface" mtu "$mtu"
    if [ -n "$staticroutes" ]; then
        set -- $staticroutes
        while [ $# -ge 2 ]; do
            ip route replace "$1" via "$2" dev "$interface" 2>/dev/null || ip route replace "$1" dev "$interface"
            shift 2
        done
    else
        for r in $router; do
            ip route replace default via "$r" dev "$interface" && break
        done
    fi
    {
        [ -n "$search$domain" ] && echo "search ${search:-$domain}"
        for d in $dns; do echo "nameserver $d"; done
    } >"/run/dhcp/$interface.resolv"
    cat /run/dhcp/*.resolv >/run/resolv.conf
    echo "$ip" >"/run/dhcp/$interface.done"
    ;;
esac
DHCP
    chmod 755 "$root/etc/udhcpc.script"
}

make_initrd() {
    say "making the initrd"
    local dir=$work/initrd
    mkdir -p "$dir"/{dev,proc,sys}
    cp "$guest_init" "$dir/init"
    copy_modules "$dir/lib/modules/flat" $DISK_MODULES
    find "$dir" -exec touch -h -d @315532800 {} +
    # Not compressed: unpacking costs more than reading.
    (cd "$dir" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 --reproducible) >"$work/initrd.img"
}

make_disk() {
    say "making the disk"
    local disk=$work/disk.raw fat=$work/boot.img ext=$work/root.img inode inodes tools=$work/pkg/usr/bin sys=$work/pkg/usr/lib as_root=()
    local boot_sectors=$((BOOT_MIB * 2048)) root_sectors=$((ROOT_MIB * 2048))

    truncate -s "${BOOT_MIB}M" "$fat"
    # Fixed clocks: the same inputs give the same image, and so the same digest.
    export MTOOLS_SKIP_CHECK=1 SOURCE_DATE_EPOCH=315532800 E2FSPROGS_FAKE_TIME=315532800
    "$tools/mformat" -i "$fat" -T "$boot_sectors" -h 64 -s 32 -H 2048 -c 4 -N 46455252 -v BOOT ::
    cat >"$work/syslinux.cfg" <<CFG
DEFAULT guest
PROMPT 0
TIMEOUT 0
LABEL guest
  LINUX vmlinuz
  INITRD initrd.img
  APPEND $CMDLINE
CFG
    cp "$vmlinuz" "$work/vmlinuz"
    "$tools/mcopy" -i "$fat" "$work/vmlinuz" "$work/initrd.img" "$work/syslinux.cfg" ::
    # It calls mtools itself.
    PATH=$tools:$PATH "$tools/syslinux" --install "$fat"

    truncate -s "$((BOOT_MIB + ROOT_MIB + 1))M" "$disk"
    truncate -s "${ROOT_MIB}M" "$ext"
    find "$root" -exec touch -h -d @315532800 {} +
    # As any user: in a user namespace of our own, our files belong to root, as they should on the disk.
    [ "$(id -u)" = 0 ] || as_root=(unshare --map-root-user)
    # Few features: what is not used need not be checked at mount. A journal, because guests get killed.
    "${as_root[@]}" mke2fs -q -F -t ext4 -L ferrovirt-root -U 46455252-4f56-4952-5447-554553540000 -b 4096 -m 0 -N 4096 \
        -O none,has_journal,extent,filetype,sparse_super,dir_index,large_file,extra_isize,dir_nlink -J size=4 \
        -E "lazy_itable_init=0,lazy_journal_init=0,hash_seed=46455252-4f56-4952-5447-554553540001,root_owner=0:0" \
        -d "$root" "$ext" "${ROOT_MIB}M"
    # mke2fs copies the change times of the files, which nothing else can set.
    inodes=$(find "$root" | wc -l)
    for inode in 2 $(seq 11 $((inodes + 11))); do
        printf 'set_inode_field <%s> ctime @315532800\nset_inode_field <%s> ctime_extra 0\n' "$inode" "$inode"
    done | debugfs -w -f /dev/stdin "$ext" >/dev/null 2>&1
    dd if="$ext" of="$disk" bs=1M seek=$((BOOT_MIB + 1)) conv=notrunc,sparse status=none
    dd if="$fat" of="$disk" bs=1M seek=1 conv=notrunc,sparse status=none
    dd if="$sys/syslinux/mbr/mbr.bin" of="$disk" bs=440 count=1 conv=notrunc status=none
    # The partition table: boot (FAT16, active) from 1 MiB on, then the root (Linux).
    { partition 80 06 2048 "$boot_sectors"; partition 00 83 $((2048 + boot_sectors)) "$root_sectors"; } |
        dd of="$disk" bs=1 seek=446 conv=notrunc status=none
    printf '\x55\xaa' | dd of="$disk" bs=1 seek=510 conv=notrunc status=none
    # Not compressed: it is read at every boot, by several VMs at once.
    qemu-img convert -f raw -O qcow2 -o cluster_size=64k,lazy_refcounts=off "$disk" "$work/demo.qcow2"
    mv "$work/demo.qcow2" "$out/demo.qcow2"
}

# The root file system without what only a kernel of its own would need.
make_container_archive() {
    local tree=$work/container
    cp -a "$root" "$tree"
    rm -rf "$tree/lib/modules"
    mkdir -p "$tree/var/lib/cloud/seed"
    cat >"$tree/etc/inittab" <<'TAB'
::sysinit:/sbin/guest-init boot container
console::respawn:/sbin/getty -L 115200 console vt100
::ctrlaltdel:/sbin/reboot
::shutdown:/bin/sync
TAB
    # The owners of the disk's root: everything is root's but the user's home, which cloud-init's part makes.
    tar -C "$tree" --format=gnu --owner=0 --group=0 --numeric-owner --mtime=@0 --sort=name -cf "$work/layer.tar" .
    make_archive "$CONTAINER_REFERENCE" "$out/demo-container.tar"
}

# The kernel and its initrd under the names that upstream's example boots.
make_kernel_archive() {
    local tree=$work/kernel
    mkdir -p "$tree/boot"
    cp "$vmlinuz" "$tree/boot/vmlinuz-virt"
    cp "$work/initrd.img" "$tree/boot/initramfs-virt"
    chmod 444 "$tree"/boot/*
    tar -C "$tree" --format=gnu --owner=0 --group=0 --numeric-owner --mtime=@0 --sort=name -cf "$work/layer.tar" boot
    make_archive "$KERNEL_REFERENCE" "$out/demo-kernel.tar"
}

main
