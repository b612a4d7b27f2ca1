#!/usr/bin/env bash
# run.sh: runs every test of the workspace that isn't ignored, two test programs at a time, and fails if one of them fails.
#
# Cargo runs the programs one after the other. Most of those with a control plane wait most of their time, so that a machine of two
# cores has room for another one. Each program's output is shown as a whole when it has ended. The tests of a program share its
# control planes, so a runner that gives each test a process of its own would start hundreds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# one PACKAGE|PROGRAM: runs a test program, shows its output when it has ended, and keeps the name of one that has failed.
one() {
    local package program name began=$SECONDS result=passed
    IFS='|' read -r package program <<<"$1"
    name=$(basename "$program")
    (cd "$package" && CARGO_MANIFEST_DIR=$package "$program") >"$dir/$name.log" 2>&1 </dev/null || result=FAILED
    [ "$result" = passed ] || echo "$name" >>"$dir/failed"
    exec 9>"$dir/lock"
    flock 9
    echo "     Running $name: $result after $((SECONDS - began)) s"
    cat "$dir/$name.log"
}
export -f one
export dir

"$cargo" test --locked --workspace --no-run --message-format=json-render-diagnostics >"$dir/messages"
sed -n 's#.*"manifest_path":"\([^"]*\)/Cargo.toml".*"profile":{[^}]*"test":true},.*"executable":"\([^"]*\)".*#\1|\2#p' "$dir/messages" >"$dir/programs"
[ -s "$dir/programs" ] || { echo "run.sh: cargo has named no test program" >&2; exit 1; }
# The longest one comes first, so that it isn't left over at the end.
awk '/\/e2e-/ {print; next} {others = others $0 "\n"} END {printf "%s", others}' "$dir/programs" >"$dir/order"
xargs -d '\n' -P 2 -n 1 bash -c 'one "$1"' one <"$dir/order"
"$cargo" test --locked --workspace --doc
if [ -s "$dir/failed" ]; then
    echo "FAILED: $(tr '\n' ' ' <"$dir/failed")"
    exit 1
fi
