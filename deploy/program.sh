#!/usr/bin/env bash
# program.sh PROFILE TARGET: builds the program as it is released and prints its path. TARGET is a Rust target, such as
# x86_64-unknown-linux-gnu.
#
#   FEATURES=fips   builds in features of the program: docs/releases.md says which there are
#
# The program is static, with glibc in it. musl would do as well, but then tests would run on another C library than
# installations, and another resolver of names.
#
# Profile dev is for tests: it takes the objects of dependencies that `cargo build` has made, with the features that tests give them. All
# others have no path of the build in them, so that builds in different directories can be the same, and contain the list of their
# dependencies (cargo-auditable).
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

profile=$1 target=$2
cargo=${CARGO:-cargo}
out=${CARGO_TARGET_DIR:-$PWD/target}
args=(rustc --locked --quiet --profile "$profile" --package outrigger-cli --bin outrigger)
features=${FEATURES:-}
if [ "$profile" = dev ]; then features="as-tested $features"; fi
args+=(--features "$features")
static=(-- -C target-feature=+crt-static)

if [ "$profile" = dev ]; then
    [ "${target%%-*}" = "$(uname -m)" ] || { echo "profile dev is for this machine; $target needs profile release" >&2; exit 1; }
    "$cargo" "${args[@]}" "${static[@]}" -C strip=debuginfo >&2
    # The next `cargo build` puts its own program there.
    mkdir -p "$out/static"
    cp "$out/debug/outrigger" "$out/static/outrigger.$$"
    mv "$out/static/outrigger.$$" "$out/static/outrigger"
    echo "$out/static/outrigger"
    exit
fi

auditable=$(tests/auditable/build.sh)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
home=${CARGO_HOME:-$HOME/.cargo}
# The last one that fits is taken.
export RUSTFLAGS="--remap-path-prefix=$home=/cargo --remap-path-prefix=$PWD=/src --remap-path-prefix=$out=/target"
export CFLAGS="-g0 -ffile-prefix-map=$home=/cargo -ffile-prefix-map=$PWD=/src -ffile-prefix-map=$out=/target"
export SOURCE_DATE_EPOCH
case $target in
aarch64-*)
    # By default the allocator uses the page size of the build machine: with larger pages, as on many arm64 kernels, the
    # program would not even start. 2^16 bytes are enough for all of them.
    export JEMALLOC_SYS_WITH_LG_PAGE=16
    if [ "$(uname -m)" != aarch64 ]; then
        RUSTC=$(tests/cross/build.sh)
        export RUSTC CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    fi
    ;;
esac
CARGO=$(command -v "$cargo") "$auditable" auditable "${args[@]}" --target "$target" "${static[@]}" >&2
echo "$out/$target/$profile/outrigger"
