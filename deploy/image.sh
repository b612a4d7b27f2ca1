#!/usr/bin/env bash
# image.sh PROGRAM ARCHITECTURE ARCHIVE: writes the image as an OCI archive that `docker load`, `podman load` and `skopeo copy
# oci-archive:ARCHIVE docker://...` read. ARCHITECTURE is amd64 or arm64.
#
# The image is one layer on nothing, which tar can write: no registry is asked, and no privilege is needed. It has no time but
# that of the commit (SOURCE_DATE_EPOCH), so that two images of the same program are the same. deploy/Dockerfile makes an image
# with the same contents; a test compares the two.
set -euo pipefail
export LC_ALL=C
program=$(realpath "$1") architecture=$2 archive=$(realpath -m "$3")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
bundle=${CA_BUNDLE:-/etc/ssl/certs/ca-certificates.crt}
[ -r "$bundle" ] || { echo "CA_BUNDLE: there is no $bundle; install ca-certificates" >&2; exit 1; }
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

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
reproducible=(--sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=ustar)

# Who makes the directories doesn't matter, nor their umask.
install -d -m 0755 "$work/root" "$work/root/etc" "$work/root/etc/ssl" "$work/root/etc/ssl/certs"
install -m 0755 "$program" "$work/root/outrigger"
install -m 0644 LICENSE "$work/root/LICENSE"
install -m 0644 deploy/nsswitch.conf "$work/root/etc/nsswitch.conf"
install -m 0644 "$bundle" "$work/root/etc/ssl/certs/ca-certificates.crt"
tar -C "$work/root" "${reproducible[@]}" -cf "$work/layer" LICENSE etc outrigger
diff_id=$(sha256sum "$work/layer" | cut -d' ' -f1)
gzip -n "$work/layer"

mkdir -p "$work/oci/blobs/sha256"
# blob FILE: moves a file to the blobs. Sets `descriptor` to digest and size, and `digest`.
blob() {
    digest=$(sha256sum "$1" | cut -d' ' -f1)
    descriptor="\"digest\":\"sha256:$digest\",\"size\":$(stat -c %s "$1")"
    mv "$1" "$work/oci/blobs/sha256/$digest"
}
blob "$work/layer.gz"
layer=$descriptor layer_digest=$digest

labels='"org.opencontainers.image.title":"outrigger"'
labels+=',"org.opencontainers.image.description":"Companion Pods on the DPUs of the hosts that tenants'\'' Pods run on."'
labels+=',"org.opencontainers.image.licenses":"Apache-2.0"'
labels+=",\"org.opencontainers.image.version\":\"$version\""
# The user has no name, because a kubelet verifies runAsNonRoot by the number.
printf '{"created":"%s","architecture":"%s","os":"linux","config":{"User":"65532:65532","ExposedPorts":%s,"Entrypoint":["/outrigger"],"Labels":{%s}},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{"created":"%s","created_by":"deploy/image.sh"}]}' \
    "$created" "$architecture" '{"8080/tcp":{},"9090/tcp":{},"9443/tcp":{}}' "$labels" "$diff_id" "$created" >"$work/config"
blob "$work/config"
config=$descriptor config_digest=$digest

oci=application/vnd.oci.image
printf '{"schemaVersion":2,"mediaType":"%s.manifest.v1+json","config":{"mediaType":"%s.config.v1+json",%s},"layers":[{"mediaType":"%s.layer.v1.tar+gzip",%s}],"annotations":{%s}}' \
    $oci $oci "$config" $oci "$layer" "$labels" >"$work/manifest"
blob "$work/manifest"
printf '{"schemaVersion":2,"mediaType":"%s.index.v1+json","manifests":[{"mediaType":"%s.manifest.v1+json",%s,"platform":{"architecture":"%s","os":"linux"},"annotations":{"org.opencontainers.image.ref.name":"%s"}}]}' \
    $oci $oci "$descriptor" "$architecture" "$version" >"$work/oci/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$work/oci/oci-layout"
# Docker before 25 reads this instead of the index.
printf '[{"Config":"blobs/sha256/%s","RepoTags":["outrigger:%s"],"Layers":["blobs/sha256/%s"]}]' \
    "$config_digest" "$version" "$layer_digest" >"$work/oci/manifest.json"
chmod -R u=rwX,go=rX "$work/oci"
mkdir -p "$(dirname "$archive")"
tar -C "$work/oci" "${reproducible[@]}" -cf "$archive" blobs index.json manifest.json oci-layout
echo "$archive"
