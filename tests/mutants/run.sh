#!/usr/bin/env bash
# run.sh CRATE [OPTION...]: runs the unit tests of a crate on changes of its code, each in a build of its own. Options are those of
# cargo-mutants, such as `--file GLOB`, `--shard 0/40` or `--iterate`, which leaves out what earlier runs have caught.
#
#   SINCE=REVISION   only changes of lines that differ from that revision
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# Lints are no tests of a change.
unset RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS
# Builds of a crate take seconds with these, and the tests have the same random inputs in each run: what only one of hundreds of inputs
# shows needs a test of its own.
export CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=none PROPTEST_RNG_SEED=1 PROPTEST_CASES=64 PROPTEST_MAX_SHRINK_ITERS=0
crate=$1
shift
out=target/mutants/$crate
mkdir -p "$out"
if [ -n "${SINCE:-}" ]; then
    git diff "$SINCE" -- "src/$crate" >"$out/since.diff"
    set -- --in-diff "$out/since.diff" "$@"
fi
status=0
"$(tests/mutants/build.sh)" mutants --config tests/mutants/mutants.toml --package "outrigger-$crate" --output "$out" \
    --jobs "$(nproc)" --no-shuffle "$@" || status=$?
# Tests that don't end have caught the change: cargo-mutants ends with 3 if nothing else is to be said.
[ "$status" = 3 ] || exit "$status"
