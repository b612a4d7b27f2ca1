#!/usr/bin/env bash
# Prints the path of a Rust compiler that builds programs for arm64 on another machine, and installs the C compiler that it needs. It is
# the compiler on the PATH if that has the standard library for arm64, as after `rustup target add`. Otherwise it is Debian's `rustc-web`.
#
# The packages are unpacked and not installed: they conflict with Debian's `rustc` and `rustup`. For the same reason the architecture has
# lists of its own, and dpkg keeps its list of architectures. apt verifies both as ever.
set -euo pipefail
export LC_ALL=C
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

missing=()
command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
[ -e /usr/aarch64-linux-gnu/lib/libc.a ] || missing+=(libc6-dev-arm64-cross)
[ ${#missing[@]} = 0 ] || "$tests/debian.sh" "${missing[@]}"
if [ -d "$(rustc --print target-libdir --target aarch64-unknown-linux-gnu)" ]; then
    command -v rustc
    exit
fi
command -v apt-get >/dev/null || { echo "please run: rustup target add aarch64-unknown-linux-gnu" >&2; exit 1; }

# A newer one is taken when the work tree needs it.
rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$tests/../Cargo.toml")
cache=${OUTRIGGER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outrigger}
out=$cache/rustc-arm64-$rust/rustc
mkdir -p "$cache"
exec 8>"$cache/rustc-arm64.lock"
flock 8
if [ ! -x "$out" ]; then
    new=$(mktemp -d "$cache/rustc-arm64.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    mkdir -p "$new/apt/lists/partial" "$new/apt/archives/partial" "$new/debian"
    apt=(-qq -o APT::Architectures="amd64,arm64" -o Dir::State::Lists="$new/apt/lists" -o Dir::Cache="$new/apt")
    apt-get "${apt[@]}" update >&2
    depends() { apt-cache "${apt[@]}" depends "$1" | sed -n "s/^ *Depends: \($2.*\)/\1/p"; }
    std=$(depends libstd-rust-web-dev libstd-rust-web)
    llvm=$(depends "$std" libllvm)
    "$tests/debian.sh" "$llvm"
    (cd "$new/apt" && apt-get "${apt[@]}" download rustc-web "$std" libstd-rust-web-dev libstd-rust-web-dev:arm64) >&2
    for package in "$new"/apt/*.deb; do dpkg-deb -x "$package" "$new/debian"; done
    rm -rf "$new/apt"
    printf '#!/bin/sh\nroot=$(dirname "$0")/debian/usr\nLD_LIBRARY_PATH=$root/lib/%s exec "$root/bin/rustc" "$@"\n' \
        "$(uname -m)-linux-gnu" >"$new/rustc"
    chmod 0755 "$new" "$new/rustc"
    rm -rf "$(dirname "$out")"
    mv "$new" "$(dirname "$out")"
fi
echo "$out"
