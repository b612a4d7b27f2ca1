#!/usr/bin/env bash
# release.sh PROFILE DIRECTORY ARCHITECTURES: writes everything that a release consists of, and lists it. `make release` calls it;
# docs/releases.md says what each file is and how it is verified. ARCHITECTURES is amd64, arm64 or "amd64 arm64".
#
#   PROGRAM=FILE         takes this static program instead of building one, for one architecture
#   RELEASE_URL=URL      where the files will be downloaded from, for krew
#   SIGNING_KEY=FILE     a private key for Ed25519 (PEM), by which the checksums and the provenance are signed
#   SIGNING_PASSPHRASE   the passphrase of the key; without it openssl asks for it, if the key has one
#   BUILDER_ID=URI, SOURCE_URL=URL   what deploy/provenance.sh names; without them there is no provenance
#   SOURCE_DATE_EPOCH    the time that files have; the commit's by default
set -euo pipefail
export LC_ALL=C
profile=$1 out=$(realpath -m "$2")
read -ra architectures <<<"$3"
key=${SIGNING_KEY:+$(realpath "$SIGNING_KEY")}
program=${PROGRAM:+$(realpath "$PROGRAM")}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The bill of the image is written by it.
command -v jq >/dev/null || tests/debian.sh jq

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
url=${RELEASE_URL:-https://downloads.example/outrigger/v$version}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
declare -A targets=([amd64]=x86_64-unknown-linux-gnu [arm64]=aarch64-unknown-linux-gnu)
for architecture in "${architectures[@]}"; do
    [ -n "${targets[$architecture]:-}" ] || { echo "ARCH: is $architecture; use amd64 or arm64" >&2; exit 1; }
done
# Completions and manual pages are the program's own, so one has to run here.
here=$(uname -m)-unknown-linux-gnu programs=() native=
for architecture in "${architectures[@]}"; do
    target=${targets[$architecture]}
    built=${program:-$(deploy/program.sh "$profile" "$target")}
    programs+=("$built" "$architecture")
    if [ "$target" = "$here" ]; then native=$built; fi
done
native=${native:-$(deploy/program.sh dev "$here")}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out"

# archive DIRECTORY FILE: the same directory makes the same archive, whoever packs it.
archive() {
    chmod -R u=rwX,go=rX "$1"
    tar -C "$(dirname "$1")" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=ustar \
        -cf - "$(basename "$1")" | gzip -n >"$2"
}

# command_line PROGRAM ARCHITECTURE
command_line() {
    local program=$1 architecture=$2
    local name=outrigger-$version-linux-$architecture
    local dir=$work/$name
    mkdir -p "$dir/completions" "$dir/man/man1"
    install -m 0755 "$program" "$dir/outrigger"
    install -m 0644 LICENSE "$dir/LICENSE"
    "$native" completion bash >"$dir/completions/outrigger.bash"
    "$native" completion zsh >"$dir/completions/_outrigger"
    "$native" completion fish >"$dir/completions/outrigger.fish"
    "$native" manual --output-dir "$dir/man/man1"
    archive "$dir" "$out/$name.tar.gz"
    krew "$name" "$architecture"
}

# krew NAME ARCHITECTURE: the manifest of the plugin of kubectl, for krew.
krew() {
    cat >"$out/outrigger-$version-krew-linux-$2.yaml" <<YAML
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: outrigger
spec:
  version: v$version
  shortDescription: Explain and check companion Pods on DPUs
  description: |
    Explains which rule gives which workload a companion, finds faults in an installation, and predicts what a change of
    rules would do.
  platforms:
    - selector:
        matchLabels: {os: linux, arch: $2}
      uri: $url/$1.tar.gz
      sha256: $(sha256sum "$out/$1.tar.gz" | cut -d' ' -f1)
      bin: outrigger
      files:
        - {from: $1/outrigger, to: .}
        - {from: $1/LICENSE, to: .}
YAML
}

manifests() {
    local kubectl overlay
    kubectl=$(dirname "$(tests/controlplane/build.sh)")/kubectl
    for overlay in infrastructure tenant all-in-one webhook-only; do
        "$kubectl" kustomize "deploy/overlays/$overlay" >"$out/outrigger-$version-$overlay.yaml"
    done
    "$kubectl" kustomize deploy/crds >"$out/outrigger-$version-crds.yaml"
    # As `helm package` would name and lay it out, without the time of packing that Helm writes into it. Directories of
    # definitions and roles are links to those of deploy/, whose kustomizations .helmignore leaves out.
    mkdir -p "$work/chart"
    cp -rL deploy/helm/outrigger "$work/chart/outrigger"
    find "$work/chart" -iname 'kustomization*' -delete
    archive "$work/chart/outrigger" "$out/outrigger-$version.tgz"
}

# bill ARCHITECTURE: the bill of materials (CycloneDX) of its program. The tool writes beside each Cargo.toml, so it gets a copy.
bill() {
    local tool copy=$work/source-$1
    tool=$(tests/cyclonedx/build.sh)
    mkdir "$copy"
    git ls-files -z -- Cargo.toml Cargo.lock proto src tests | tar --null -T - -cf - | tar -C "$copy" -xf -
    "$tool" cyclonedx --quiet --manifest-path "$copy/src/cli/Cargo.toml" --format json --spec-version 1.5 \
        --target "${targets[$1]}" --override-filename bill >&2
    sed "s|file://$copy|file:///src|g" "$copy/src/cli/bill.json" >"$out/outrigger-$version-linux-$1.cdx.json"
}

# packages ARCHITECTURE: the distribution's packages that the image has something of, as components: the CA bundle, and glibc, which is
# linked statically. Nothing where there is no dpkg.
packages() {
    local distribution
    command -v dpkg-query >/dev/null || return 0
    distribution=$(. /etc/os-release && echo "$ID $ID-$VERSION_ID")
    dpkg-query -W -f '${Package} ${Version} ${Architecture} ${source:Package} ${db:Status-Abbrev}\n' \
        ca-certificates "libc6-dev:$1" "libc6-dev-$1-cross" 2>/dev/null |
        awk '$5 == "ii" {print $1, $2, $3, $4}' |
        jq -R --arg distribution "$distribution" '(. / " ") as [$name, $version, $architecture, $source]
            | ($distribution / " ") as [$id, $release]
            | {type: "library", "bom-ref": "deb:\($name)", name: $name, version: $version,
               purl: "pkg:deb/\($id)/\($name)@\($version | @uri)?arch=\($architecture)&distro=\($release)&upstream=\($source)"}' || true
}

# bill_of_image NUMBER ARCHITECTURE: the bill of materials of an image of the archive: its files by their hashes, the packages that it has
# something of, and what the bill of its program has.
bill_of_image() {
    local archive=$out/outrigger-$version-image-linux-$all.tar root=$work/image-$2 layer
    layer=$(tar -xOf "$archive" manifest.json | jq -r ".[$1].Layers[0]")
    mkdir "$root"
    tar -xOf "$archive" "$layer" | tar -C "$root" -xz
    {
        (cd "$root" && find . -type f -print0 | sort -z | xargs -0 sha256sum) |
            jq -R 'capture("^(?<hash>[0-9a-f]+) [ *][.](?<name>.*)$")
                | {type: "file", "bom-ref": .name, name, hashes: [{alg: "SHA-256", content: .hash}]}'
        packages "$2"
    } | jq -s --slurpfile program "$out/outrigger-$version-linux-$2.cdx.json" --arg version "$version" --arg layer "${layer##*/}" '
            . as $parts | $program[0] | .metadata.component as $binary | del(.serialNumber)
            | .metadata.component = {type: "container", "bom-ref": "image", name: "outrigger", version: $version,
                properties: [{name: "outrigger.dev/layer", value: "sha256:\($layer)"}]}
            | .components = [$binary] + $parts + .components
            | .dependencies += [{ref: "image", dependsOn: ([$binary["bom-ref"]] + [$parts[]["bom-ref"]])}]' \
            >"$out/outrigger-$version-image-linux-$2.cdx.json"
}

# What the changelog says of this version.
notes() {
    awk -v heading="## $version" '$0 == heading {found = 1; next} /^## / {found = 0} found' CHANGELOG.md >"$work/notes"
    [ -s "$work/notes" ] || { echo "CHANGELOG.md has no section \"## $version\"" >&2; exit 1; }
    { printf '# Outrigger %s\n' "$version"; cat "$work/notes"; } >"$out/outrigger-$version-notes.md"
}

for ((i = 0; i < ${#architectures[@]}; i++)); do
    command_line "${programs[@]:2*i:2}"
    bill "${architectures[i]}"
done
all=$(IFS=-; echo "${architectures[*]}")
deploy/image.sh "${programs[@]}" "$out/outrigger-$version-image-linux-$all.tar" >/dev/null
for ((i = 0; i < ${#architectures[@]}; i++)); do
    bill_of_image $i "${architectures[i]}"
done
manifests
notes
(cd "$out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" SHA256SUMS)
if [ -z "$key" ]; then
    echo "not signed: SIGNING_KEY isn't set" >&2
else
    export SIGNING_KEY=$key
    deploy/sign.sh "$out/SHA256SUMS"
    if [ -n "${BUILDER_ID:-}" ] && [ -n "${SOURCE_URL:-}" ]; then
        deploy/provenance.sh "$out" "$profile" "${architectures[*]}" >"$work/provenance"
        mv "$work/provenance" "$out/outrigger-$version-linux-$all.intoto.jsonl"
    else
        echo "no provenance: BUILDER_ID and SOURCE_URL aren't both set" >&2
    fi
fi
chmod 0644 "$out"/*
ls -l --time-style=+ "$out" | awk 'NR > 1 {printf "%12d  %s\n", $5, $6}'
