#!/usr/bin/env bash
# image.sh PROGRAM ARCHITECTURE [PROGRAM ARCHITECTURE]... ARCHIVE: writes the image as an OCI archive that `docker load`, `podman load` and
# `skopeo copy --all oci-archive:ARCHIVE docker://...` read. ARCHITECTURE is amd64 or arm64. With several programs the archive has
# one image under one name, from which each machine takes its own.
#
# The image is one layer on nothing, which tar can write: no registry is asked, and no privilege is needed. It has no time but
# that of the commit (SOURCE_DATE_EPOCH), so that two images of the same program are the same. deploy/Dockerfile makes an image
# with the same contents; a test compares the two.
set -euo pipefail
export LC_ALL=C
programs=()
while [ $# -gt 1 ]; do
    programs+=("$(realpath "$1")" "$2")
    shift 2
done
archive=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
bundle=${CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}
[ -r "$bundle" ] || { echo "CA_BUNDLE: there is no $bundle; install ca-certificates" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
reproducible=(--sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=ustar)
oci=application/vnd.oci.image
labels='"org.opencontainers.image.title":"outrigger"'
labels+=',"org.opencontainers.image.description":"Companion Pods on the DPUs of the hosts that tenants'\'' Pods run on."'
labels+=',"org.opencontainers.image.licenses":"Apache-2.0"'
labels+=",\"org.opencontainers.image.version\":\"$version\""
name="\"annotations\":{\"org.opencontainers.image.ref.name\":\"$version\"}"

mkdir -p "$work/oci/blobs/sha256"
# blob FILE: moves a file to the blobs. Sets `descriptor` to digest and size, and `digest`.
blob() {
    digest=$(sha256sum "$1" | cut -d' ' -f1)
    descriptor="\"digest\":\"sha256:$digest\",\"size\":$(stat -c %s "$1")"
    mv "$1" "$work/oci/blobs/sha256/$digest"
}

# image PROGRAM ARCHITECTURE: adds the image of a program. Sets `manifest` to its descriptor, and `docker` to what Docker before 25 reads.
image() {
    local program=$1 architecture=$2 machine diff_id layer layer_digest config
    machine=$(readelf --file-header --wide "$program" | sed -n 's/^ *Machine: *//p')
    case $architecture:$machine in
    amd64:*X86-64 | arm64:AArch64) ;;
    *) echo "$program is for $machine, not for $architecture" >&2; exit 1 ;;
    esac
    # The image has no dynamic linker.
    if readelf --program-headers --wide "$program" | grep -q 'INTERP'; then
        echo "$program is not static: deploy/program.sh builds one that is" >&2
        exit 1
    fi

    # Who makes the directories doesn't matter, nor their umask.
    rm -rf "$work/root"
    install -d -m 0755 "$work/root" "$work/root/etc" "$work/root/etc/ssl" "$work/root/etc/ssl/certs"
    install -m 0755 "$program" "$work/root/outrigger"
    install -m 0644 LICENSE "$work/root/LICENSE"
    install -m 0644 deploy/nsswitch.conf "$work/root/etc/nsswitch.conf"
    install -m 0644 "$bundle" "$work/root/etc/ssl/certs/ca-certificates.crt"
    tar -C "$work/root" "${reproducible[@]}" -cf "$work/layer" LICENSE etc outrigger
    diff_id=$(sha256sum "$work/layer" | cut -d' ' -f1)
    gzip -n "$work/layer"
    blob "$work/layer.gz"
    layer=$descriptor layer_digest=$digest

    # The user has no name, because a kubelet verifies runAsNonRoot by the number.
    printf '{"created":"%s","architecture":"%s","os":"linux","config":{"User":"65532:65532","ExposedPorts":%s,"Entrypoint":["/outrigger"],"Labels":{%s}},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{"created":"%s","created_by":"deploy/image.sh"}]}' \
        "$created" "$architecture" '{"8080/tcp":{},"9090/tcp":{},"9443/tcp":{}}' "$labels" "$diff_id" "$created" >"$work/config"
    blob "$work/config"
    config=$descriptor
    docker="\"Config\":\"blobs/sha256/$digest\",\"Layers\":[\"blobs/sha256/$layer_digest\"]"

    printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{"mediaType":"%s.config.v1+json",%s},"layers":[{"mediaType":"%s.layer.v1.tar+gzip",%s}],"annotations":{%s}}' \
        $oci $oci "$config" $oci "$layer" "$labels" >"$work/manifest"
    blob "$work/manifest"
    manifest="\"mediaType\":\"$oci.manifest.v1+json\",$descriptor,\"platform\":{\"architecture\":\"$architecture\",\"os\":\"linux\"}"
}

# index DESCRIPTOR...: prints an index of images.
index() {
    local IFS=,
    printf '{"schemaVersion":2,"mediaType":"%s.index.v1+json","manifests":[%s]}' $oci "$*"
}

if [ ${#programs[@]} = 2 ]; then
    image "${programs[@]}"
    index "{$manifest,$name}" >"$work/oci/index.json"
    dockers="{\"RepoTags\":[\"outrigger:$version\"],$docker}"
else
    # One entry with the name, for an index in which there is one image for each architecture. Docker before 25 knows no such
    # index, and gets a name for each.
    manifests=() dockers=
    for ((i = 0; i < ${#programs[@]}; i += 2)); do
        image "${programs[@]:i:2}"
        manifests+=("{$manifest}")
        dockers+="${dockers:+,}{\"RepoTags\":[\"outrigger:$version-${programs[i + 1]}\"],$docker}"
    done
    index "${manifests[@]}" >"$work/index"
    blob "$work/index"
    index "{\"mediaType\":\"$oci.index.v1+json\",$descriptor,$name}" >"$work/oci/index.json"
fi
printf '[%s]' "$dockers" >"$work/oci/manifest.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$work/oci/oci-layout"
chmod -R u=rwX,go=rX "$work/oci"
mkdir -p "$(dirname "$archive")"
tar -C "$work/oci" "${reproducible[@]}" -cf "$archive" blobs index.json manifest.json oci-layout
echo "$archive"
