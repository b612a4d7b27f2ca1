#!/usr/bin/env bash
# image.sh NAME ARCHIVE ENTRYPOINT FILE...: writes an image for containerd, as `docker save` writes it. A FILE is PATH=SOURCE, where the
# source is a file of the machine, or `->TARGET` for a link.
set -euo pipefail
name=$1 archive=$(realpath -m "$2") entrypoint=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/root" "$work/image"
for file in "${@:4}"; do
    at=$work/root/${file%%=*} source=${file#*=}
    mkdir -p "$(dirname "$at")"
    case $source in
    '->'*) ln -s "${source#->}" "$at" ;;
    *) cp -L "$source" "$at" ;;
    esac
done
chmod -R a+rX "$work/root"
tar -C "$work/root" --owner=0 --group=0 --numeric-owner -cf "$work/image/layer.tar" .
digest=$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)
printf '{"architecture":"%s","os":"linux","config":{"User":"65532:65532","Env":["PATH=/bin"],"Entrypoint":%s},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(dpkg --print-architecture)" "$entrypoint" "$digest" >"$work/image/config.json"
printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$name" >"$work/image/manifest.json"
tar -C "$work/image" -cf "$archive.part" .
mv "$archive.part" "$archive"
