# Parts of disks and images that the guests' scripts share. Sourced; they set $work and define say.
# shellcheck shell=bash disable=SC2154  # $work is set by who sources this

# One entry of an MBR partition table: status, type, first sector, sectors. CHS fields are not used by anything left alive.
partition() {
    printf "\\x$1\\xfe\\xff\\xff\\x$2\\xfe\\xff\\xff"
    le32 "$3"
    le32 "$4"
}

le32() {
    local hex
    hex=$(printf '%08x' "$1")
    printf "\\x${hex:6:2}\\x${hex:4:2}\\x${hex:2:2}\\x${hex:0:2}"
}

# An image with a disk in /disk, as KubeVirt's containerDisks are: name, disk, file.
make_disk_archive() {
    local name
    name=$(basename "$2")
    rm -rf "$work/layer"
    mkdir -p "$work/layer/disk"
    cp --sparse=always "$2" "$work/layer/disk/$name"
    chmod 444 "$work/layer/disk/$name"
    tar -C "$work/layer" --format=gnu --owner=107 --group=107 --numeric-owner --mtime=@0 --sort=name -cf "$work/layer.tar" disk
    make_archive "$1" "$3"
}

# An OCI layout in a tar, with $work/layer.tar as its one uncompressed layer: name, file.
make_archive() {
    say "making the image archive of $1"
    local dir=$work/oci layer config manifest
    rm -rf "$dir"
    mkdir -p "$dir/blobs/sha256"
    layer=$(blob "$work/layer.tar")
    printf '{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["%s"]}}' "$layer" >"$work/config.json"
    config=$(blob "$work/config.json")
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"%s","size":%s}]}' \
        "$config" "$(size_of "$config")" "$layer" "$(size_of "$layer")" >"$work/manifest.json"
    manifest=$(blob "$work/manifest.json")
    # containerd keeps images under their full names, and a kubelet asks for these.
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"%s","size":%s,"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"}}]}' \
        "$manifest" "$(size_of "$manifest")" "docker.io/$1" "$1" >"$dir/index.json"
    printf '{"imageLayoutVersion":"1.0.0"}' >"$dir/oci-layout"
    tar -C "$dir" --format=gnu --owner=0 --group=0 --numeric-owner --mtime=@0 --sort=name -cf "$2.partial" oci-layout index.json blobs
    mv "$2.partial" "$2"
}

# Moves a file into the layout and prints its digest.
blob() {
    local hex
    hex=$(sha256sum "$1" | cut -d' ' -f1)
    mv "$1" "$work/oci/blobs/sha256/$hex"
    echo "sha256:$hex"
}

size_of() { stat -c %s "$work/oci/blobs/sha256/${1#sha256:}"; }
