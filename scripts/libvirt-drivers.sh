#!/usr/bin/env bash
# Builds what Debian 13 does not package of its own libvirt: the ch driver, and the modular daemons. Runs inside Debian 13, as root.
#
#   scripts/libvirt-drivers.sh OUT_DIR     OUT_DIR/usr/sbin/virt{ch,qemu,lxc}d, OUT_DIR/usr/lib/…/libvirt_driver_ch.so
#
# The source is that of the installed package, so the results work with the libraries of its packages.
set -euo pipefail

BUILD_PACKAGES="dpkg-dev gcc libc6-dev meson ninja-build pkg-config patch xz-utils libglib2.0-dev libxml2-dev libgnutls28-dev libtirpc-dev
    libcurl4-gnutls-dev libjson-c-dev libcap-ng-dev libnl-3-dev libnl-route-3-dev libnuma-dev xsltproc libxml2-utils python3
    python3-docutils gettext"
out=$(realpath -m "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

main() {
    export DEBIAN_FRONTEND=noninteractive
    sed 's/^deb /deb-src /' /etc/apt/sources.list >/etc/apt/sources.list.d/source.list 2>/dev/null || true
    if [ -s /etc/apt/sources.list.d/debian.sources ]; then
        sed -i 's/^Types: deb$/Types: deb deb-src/' /etc/apt/sources.list.d/debian.sources
    fi
    apt-get -q update
    # shellcheck disable=SC2086 # a list of words
    apt-get -q -y install --no-install-recommends $BUILD_PACKAGES
    cd "$work"
    # apt compares both archives with its signed lists. A mirror without the .dsc file is enough.
    apt-get -q source --download-only libvirt || true
    ls libvirt_*.orig.tar.xz libvirt_*.debian.tar.xz >/dev/null
    mkdir source
    tar -C source --strip-components=1 -xf libvirt_*.orig.tar.xz
    tar -C source -xf libvirt_*.debian.tar.xz
    cd source
    grep -v '^#' debian/patches/series | while read -r name; do
        patch -s -p1 <"debian/patches/$name"
    done
    meson setup build --prefix=/usr --sysconfdir=/etc --localstatedir=/var --libexecdir=/usr/lib/libvirt -Drunstatedir=/run \
        --buildtype=release -Dauto_features=disabled -Dinit_script=none -Ddocs=disabled -Dtests=disabled \
        -Ddriver_remote=enabled -Ddriver_libvirtd=enabled -Ddriver_ch=enabled -Ddriver_qemu=enabled -Ddriver_lxc=enabled \
        -Dcurl=enabled -Djson_c=enabled -Dcapng=enabled -Dlibnl=enabled -Dnumactl=enabled >/dev/null
    ninja -C build --quiet src/virtchd src/virtqemud src/virtlxcd src/libvirt_driver_ch.so
    drivers=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)/libvirt/connection-driver
    install -D -s -m 0755 -t "$out/usr/sbin" build/src/virtchd build/src/virtqemud build/src/virtlxcd
    install -D -s -m 0644 -t "$out/$drivers" build/src/libvirt_driver_ch.so
}

main
