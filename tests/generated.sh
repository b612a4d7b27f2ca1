#!/usr/bin/env bash
# Fails if a file that is generated from the code isn't what the code generates now.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

# check COMMAND DIRECTORY TARGET: compares the files that `outrigger COMMAND` writes with those in the directory.
check() {
    local file
    mkdir "$new/$1"
    target/debug/outrigger "$1" --output-dir "$new/$1"
    while IFS= read -r file; do
        diff -u "$2/$file" "$new/$1/$file" || { echo "$2/$file is out of date: run 'make $3'" >&2; exit 1; }
    done < <(cd "$new/$1" && find . -type f)
    # What is generated no longer; the webhooks' directory has files by hand too.
    [ "$1" = webhooks ] || diff -r "$2" "$new/$1" || { echo "$2 is out of date: run 'make $3'" >&2; exit 1; }
}
check crd deploy/crds crds
check webhooks webhooks crds
check reference docs/reference reference
