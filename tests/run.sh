#!/usr/bin/env bash
# run.sh: runs every test of the workspace that isn't ignored, and fails if one of them fails.
#
# Cargo runs the programs one after the other. Most of those with a control plane wait most of their time on a fast machine, which
# has room for a second one then. On a slow machine two of them would make each other miss deadlines. So a second program starts only
# if no more than four processes for each core wanted to run in the last minute. Each program's output is shown as a whole when it
# has ended. The tests of a program share its control planes, so a runner that gives each test a process of its own would start
# hundreds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/running"

# may_start: whether no other program runs, or the machine has room for a second one.
may_start() {
    [ -z "$(ls "$dir/running")" ] || awk -v cores="$(nproc)" '{exit ($1 > 4 * cores)}' /proc/loadavg
}

# one PACKAGE|PROGRAM: runs a test program, shows its output when it has ended, and keeps the name of one that has failed.
one() {
    local package program name began result=passed
    IFS='|' read -r package program <<<"$1"
    name=$(basename "$program")
    exec 9>"$dir/turn"
    flock 9
    until may_start; do sleep 5; done
    touch "$dir/running/$name"
    exec 9>&-
    began=$SECONDS
    (cd "$package" && CARGO_MANIFEST_DIR=$package "$program") >"$dir/$name.log" 2>&1 </dev/null || result=FAILED
    exec 9>"$dir/lock"
    flock 9
    rm "$dir/running/$name"
    [ "$result" = passed ] || echo "$name" >>"$dir/failed"
    echo "     Running $name: $result after $((SECONDS - began)) s"
    cat "$dir/$name.log"
}
export -f may_start one
export dir

"$cargo" test --locked --workspace --no-run --message-format=json-render-diagnostics >"$dir/messages"
sed -n 's#.*"manifest_path":"\([^"]*\)/Cargo.toml".*"profile":{[^}]*"test":true},.*"executable":"\([^"]*\)".*#\1|\2#p' "$dir/messages" >"$dir/programs"
[ -s "$dir/programs" ] || { echo "run.sh: cargo has named no test program" >&2; exit 1; }
# The longest one comes first, so that it isn't left over at the end. Beside it run those without a control plane, until its load can
# be measured.
awk '/\/e2e-/ {print; next} /\/tests\|/ {last = last $0 "\n"; next} {first = first $0 "\n"} END {printf "%s%s", first, last}' \
    "$dir/programs" >"$dir/order"
xargs -d '\n' -P 2 -n 1 bash -c 'one "$1"' one <"$dir/order"
"$cargo" test --locked --workspace --doc
if [ -s "$dir/failed" ]; then
    echo "FAILED: $(tr '\n' ' ' <"$dir/failed")"
    exit 1
fi
