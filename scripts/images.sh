#!/usr/bin/env bash
# Makes the images as OCI archives, with neither a registry nor a builder daemon.
#
#   scripts/images.sh [OUT_DIR]      default: ${FERROVIRT_CACHE:-~/.cache/ferrovirt}/images
#
#   OUT_DIR/ferrovirt.tar            the static program and nothing else
#   OUT_DIR/ferrovirt-launcher.tar   QEMU, libvirt's QEMU driver, the launcher, and what these load: no shell, no package manager
#   OUT_DIR/ferrovirt-launcher-lxc.tar   the same with libvirt's LXC driver instead of QEMU
#   OUT_DIR/previous                 the same of the commit that was built before this one, to upgrade from
#
# Nothing is installed on this machine: packages are downloaded and unpacked into the cache. A second run with the same inputs does
# nothing. The programs come from $FERROVIRT_BIN_DIR, where scripts/build.sh puts them.
set -euo pipefail

# What the launcher runs; apt adds what these depend on. From the suite this machine's apt is set up for, so that the launcher,
# which was linked here, finds its libraries.
LAUNCHER_PACKAGES="qemu-system-x86 libvirt-daemon libvirt-daemon-driver-qemu libvirt-daemon-driver-lxc seabios ipxe-qemu ovmf swtpm swtpm-tools iproute2 libc-bin"
LAUNCHER_PROGRAMS="usr/bin/qemu-system-x86_64 usr/sbin/libvirtd usr/sbin/virtqemud usr/bin/swtpm usr/bin/swtpm_setup usr/bin/swtpm_ioctl usr/bin/swtpm_localca usr/bin/swtpm_cert usr/bin/certtool"
# Libraries that are loaded by name at run time, so that no program lists them.
LAUNCHER_PLUGINS="usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so"
LAUNCHER_QEMU_MODULES="accel-tcg-x86_64 hw-display-virtio-gpu hw-display-virtio-gpu-pci hw-display-virtio-vga hw-usb-host hw-usb-redirect"
LAUNCHER_DATA="usr/share/qemu usr/share/seabios usr/lib/ipxe usr/share/libvirt/cpu_map usr/share/libvirt/schemas etc/swtpm_setup.conf etc/swtpm-localca.options"
# The firmware that the node agent chooses from, with and without secure boot; the package has more.
LAUNCHER_FIRMWARE="OVMF_CODE_4M.fd OVMF_CODE_4M.secboot.fd OVMF_VARS_4M.fd OVMF_VARS_4M.ms.fd"
# libvirt asks `ip` to move interfaces into a container.
LXC_PROGRAMS="bin/ip usr/bin/ip usr/sbin/libvirtd usr/sbin/virtlxcd usr/lib/libvirt/libvirt_lxc usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_lxc.so"
# KubeVirt's user of everything in a launcher pod.
RUNTIME_USER=107

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
base=${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}
bin=${FERROVIRT_BIN_DIR:-${CARGO_TARGET_DIR:-$base/target}/dist}
out=${1:-$base/images}
debs=$base/launcher-debs
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$repo/Cargo.toml" | head -n1)

say() { printf 'images: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

main() {
    local tool
    for tool in apt-get dpkg-deb readelf sha256sum tar gzip; do
        command -v "$tool" >/dev/null || die "$tool is missing; install: apt dpkg binutils coreutils tar gzip"
    done
    [ "$(uname -m)" = x86_64 ] || die "only x86_64 images are made so far"
    for tool in ferrovirt ferrovirt-launcher ferrovirt-virtiofsd; do
        [ -x "$bin/$tool" ] || die "$bin/$tool is missing; run scripts/build.sh"
    done
    mkdir -p "$out" "$debs"
    # Two builds at once would write the same cache.
    exec 9>"$base/images.lock"
    flock 9
    work=$(mktemp -d "$base/images-work.XXXXXX")
    trap 'rm -rf "$work"' EXIT

    keep_previous
    image ferrovirt "$bin/ferrovirt"
    image ferrovirt-launcher "$bin/ferrovirt-launcher" "$bin/ferrovirt-virtiofsd"
    image ferrovirt-launcher-lxc "$bin/ferrovirt-launcher"
    echo "$commit" >"$out/commit"
}

# Archives are replaced and never changed, so a link is enough.
keep_previous() {
    commit=$(git -C "$repo" rev-parse HEAD 2>/dev/null || echo unknown)
    if [ -s "$out/commit" ] && [ "$(cat "$out/commit")" != "$commit" ]; then
        rm -rf "$out/previous"
        mkdir "$out/previous"
        ln "$out"/*.tar "$out/commit" "$out/previous/"
        rm "$out/commit"
    fi
}

# image NAME PROGRAM [HELPER]: makes OUT_DIR/NAME.tar with make_NAME, unless it was made of the same things.
image() {
    local name=$1 inputs
    shift
    inputs=$(cat "$repo/scripts/images.sh" "$@" | sha256sum | cut -d' ' -f1)-$version
    if [ ! -s "$out/$name.tar" ] || [ "$(cat "$out/.$name.inputs" 2>/dev/null)" != "$inputs" ]; then
        root=$work/$name
        mkdir -p "$root"
        "make_${name//-/_}" "$@"
        archive "$name"
        echo "$inputs" >"$out/.$name.inputs"
    fi
    say "$out/$name.tar: $(size "$out/$name.tar") (image $name:$version)"
}

size() { numfmt --to=iec-i --suffix=B "$(stat -c %s "$1")"; }

make_ferrovirt() {
    install -D -m 0755 "$1" "$root/usr/bin/ferrovirt"
    entrypoint='"/usr/bin/ferrovirt"' user=65532
}

make_ferrovirt_launcher() {
    unpack
    local path
    # shellcheck disable=SC2086 # lists of words
    copy_programs "$1" virtqemud $LAUNCHER_PROGRAMS $LAUNCHER_PLUGINS
    # QEMU 10 of Debian 13 has the emulation in the program itself, and no directory of ipxe.
    for path in $LAUNCHER_QEMU_MODULES; do
        [ ! -e "$tree/usr/lib/x86_64-linux-gnu/qemu/$path.so" ] || copy_with_libraries "usr/lib/x86_64-linux-gnu/qemu/$path.so"
    done
    for path in $LAUNCHER_DATA; do
        [ -e "$tree/$path" ] || continue
        mkdir -p "$root/$(dirname "$path")"
        cp -a "$tree/$path" "$root/$path"
    done
    # The launcher looks for it beside itself.
    install -D -m 0755 "$2" "$tree/usr/bin/ferrovirt-virtiofsd"
    copy_with_libraries usr/bin/ferrovirt-virtiofsd
    mkdir -p "$root/usr/share/OVMF"
    for path in $LAUNCHER_FIRMWARE; do
        cp -L "$tree/usr/share/OVMF/$path" "$root/usr/share/OVMF/$path"
    done
    # Where every TPM gets its certificates from: an authority of the pod's own.
    path=/var/run/kubevirt-private/swtpm-localca
    printf 'statedir = %s\nsigningkey = %s/signkey.pem\nissuercert = %s/issuercert.pem\ncertserial = %s/certserial\n' \
        "$path" "$path" "$path" "$path" >"$root/etc/swtpm-localca.conf"
    make_directories
    entrypoint='"/usr/bin/ferrovirt-launcher"' user=$RUNTIME_USER
}

make_ferrovirt_launcher_lxc() {
    unpack
    # shellcheck disable=SC2086 # a list of words
    copy_programs "$1" virtlxcd $LXC_PROGRAMS
    make_directories
    # The driver has no session mode: the daemon's directories are the system's.
    mkdir -p "$root"/etc/libvirt "$root"/var/{lib,log,cache}/libvirt
    entrypoint='"/usr/bin/ferrovirt-launcher"' user=0
}

# copy_programs LAUNCHER DAEMON PATH...: the launcher, and those of the paths that the packages hold. Debian 12 and 13 have the monolithic
# daemon only; other distributions have the modular ones.
copy_programs() {
    local launcher=$1 daemon=$2 path
    shift 2
    for path in "$@"; do
        if [ -e "$tree/$path" ]; then
            copy_with_libraries "$path"
        fi
    done
    [ -e "$root/usr/sbin/libvirtd" ] || [ -e "$root/usr/sbin/$daemon" ] || die "the packages hold no libvirt daemon"
    install -D -m 0755 "$launcher" "$tree/usr/bin/ferrovirt-launcher"
    copy_with_libraries usr/bin/ferrovirt-launcher
}

make_directories() {
    # Session mode asks for the user's record, and writes below its home.
    mkdir -p "$root"/{etc,tmp,run,proc,sys,dev,root,var,home/qemu}
    ln -s /run "$root/var/run"
    mkdir -p "$root"/run/{libvirt,kubevirt,kubevirt-private,kubevirt-ephemeral-disks}
    chmod 1777 "$root/tmp"
    printf 'root:x:0:0:root:/root:/usr/sbin/nologin\nqemu:x:%s:%s:qemu:/home/qemu:/usr/sbin/nologin\n' "$RUNTIME_USER" "$RUNTIME_USER" >"$root/etc/passwd"
    printf 'root:x:0:\ntty:x:5:\nqemu:x:%s:\n' "$RUNTIME_USER" >"$root/etc/group"
    printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"
}

# Asks apt for the packages as if nothing were installed, which gives all that they depend on.
unpack() {
    local lists deb
    tree=$work/packages
    [ ! -d "$tree" ] || return 0
    lists=(-o Dir::State::status=/dev/null -o APT::Sandbox::User=root -o Dir::Cache::archives="$debs" --no-install-recommends)
    mkdir -p "$debs/partial" "$tree"
    say "downloading what is missing of: $LAUNCHER_PACKAGES"
    # shellcheck disable=SC2086 # a list of words
    apt-get -qq -y "${lists[@]}" --download-only install $LAUNCHER_PACKAGES >/dev/null || die "download failed; run apt-get update"
    # Package lists move on; what they no longer name does not belong into the image.
    apt-get -qq "${lists[@]}" autoclean >/dev/null
    say "unpacking"
    for deb in "$debs"/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -C "$tree" -xf - --no-same-owner --keep-directory-symlink \
            --exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='./usr/share/locale'
    done
}

# copy_with_libraries PATH: copies a program of the tree, and every library that it needs.
copy_with_libraries() {
    local path=$1 name
    [ ! -e "$root/$path" ] || return 0
    mkdir -p "$root/$(dirname "$path")"
    cp -L "$tree/$path" "$root/$path"
    chmod 0755 "$root/$path"
    for name in $(readelf -d "$tree/$path" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p') $(interpreter "$tree/$path"); do
        copy_library "$name" "$path"
    done
}

interpreter() { readelf -l "$1" | sed -n 's/.*program interpreter: .*\/\(.*\)\]/\1/p'; }

copy_library() {
    local name=$1 dir found
    case $name in
    ld-linux-x86-64.so.2)
        # Programs name it by this path, whatever the file system looks like.
        found=lib64/$name
        if [ ! -e "$root/$found" ]; then
            mkdir -p "$root/lib64"
            cp -L "$(find "$tree/lib/x86_64-linux-gnu" "$tree/usr/lib/x86_64-linux-gnu" -name "$name" 2>/dev/null | head -n1)" "$root/$found"
        fi
        return
        ;;
    esac
    for dir in usr/lib/x86_64-linux-gnu lib/x86_64-linux-gnu usr/lib/x86_64-linux-gnu/libvirt usr/lib/x86_64-linux-gnu/swtpm usr/lib/x86_64-linux-gnu/pulseaudio; do
        if [ -e "$tree/$dir/$name" ]; then
            # All in one directory that the loader searches without a cache of its own.
            [ -e "$root/usr/lib/x86_64-linux-gnu/$name" ] && return
            mkdir -p "$root/usr/lib/x86_64-linux-gnu"
            cp -L "$tree/$dir/$name" "$root/usr/lib/x86_64-linux-gnu/$name"
            for found in $(readelf -d "$tree/$dir/$name" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
                copy_library "$found" "$name"
            done
            return
        fi
    done
    die "no package holds $name, which $2 needs"
}

# An OCI layout in a tar, with one layer.
archive() {
    local name=$1 oci=$work/$1.oci layer config manifest diff reference
    mkdir -p "$oci/blobs/sha256"
    # Without times and owners of this machine: the same files make the same image.
    tar -C "$root" --format=gnu --owner=0 --group=0 --numeric-owner --mtime=@0 --sort=name -cf "$work/layer.tar" .
    diff=sha256:$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
    gzip -n "$work/layer.tar"
    layer=$(blob "$oci" "$work/layer.tar.gz")
    printf '{"architecture":"amd64","os":"linux","config":{"User":"%s:%s","Entrypoint":[%s],"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},"rootfs":{"type":"layers","diff_ids":["%s"]}}' \
        "$user" "$user" "$entrypoint" "$diff" >"$work/config.json"
    config=$(blob "$oci" "$work/config.json")
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"%s","size":%s}]}' \
        "$config" "$(size_of "$config")" "$layer" "$(size_of "$layer")" >"$work/manifest.json"
    manifest=$(blob "$oci" "$work/manifest.json")
    # A kubelet asks containerd for the full name.
    reference=docker.io/library/$name:$version
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"%s","size":%s,"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"}}]}' \
        "$manifest" "$(size_of "$manifest")" "$reference" "$name:$version" >"$oci/index.json"
    printf '{"imageLayoutVersion":"1.0.0"}' >"$oci/oci-layout"
    tar -C "$oci" --format=gnu --owner=0 --group=0 --numeric-owner --mtime=@0 --sort=name -cf "$out/$name.tar.partial" oci-layout index.json blobs
    mv "$out/$name.tar.partial" "$out/$name.tar"
    say "$name unpacked: $(du -sh "$root" | cut -f1)"
}

# Moves a file into the layout and prints its digest.
blob() {
    local hex
    hex=$(sha256sum "$2" | cut -d' ' -f1)
    mv "$2" "$1/blobs/sha256/$hex"
    echo "sha256:$hex"
}

size_of() { stat -c %s "$work/$name.oci/blobs/sha256/${1#sha256:}"; }

main
