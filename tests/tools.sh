#!/usr/bin/env bash
# Makes sure that the tools for building are there: a Rust toolchain, Go, a C compiler. What Debian's package client can
# bring it brings; the rest it names.
set -euo pipefail

missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v make >/dev/null || missing+=(make)
command -v flock >/dev/null || missing+=(util-linux)
if [ ${#missing[@]} -gt 0 ]; then
    sudo=$([ "$(id -u)" = 0 ] || echo sudo)
    command -v apt-get >/dev/null || { echo "please install: ${missing[*]}" >&2; exit 1; }
    $sudo apt-get update -qq && $sudo apt-get install -y -qq "${missing[@]}" >&2
fi

# least TOOL VERSION FOUND: whether FOUND is VERSION or newer.
least() {
    [ "$(printf '%s\n%s\n' "$2" "$3" | sort -V | head -n1)" = "$2" ] ||
        { echo "$1 $2 or later is needed, $3 is here" >&2; exit 1; }
}
rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../Cargo.toml")
command -v cargo >/dev/null || { echo "Rust $rust or later is needed: https://rustup.rs" >&2; exit 1; }
least Rust "$rust" "$(rustc --version | cut -d' ' -f2)"
command -v go >/dev/null || { echo "Go 1.21 or later is needed: https://go.dev/dl" >&2; exit 1; }
# An older Go fetches the one that go.mod names by itself, through its module proxy.
least Go 1.21 "$(cd / && go env GOVERSION | sed 's/^go//')"
for component in rustfmt:cargo-fmt clippy:cargo-clippy; do
    command -v "${component#*:}" >/dev/null || rustup component add "${component%%:*}" >&2
done
