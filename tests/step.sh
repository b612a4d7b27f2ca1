#!/usr/bin/env bash
# step.sh NAME COMMAND...: runs a step of CI. Where OUTRIGGER_STEPS names a file, a line is added to it: name, result, seconds and seconds
# of processor time. Where OUTRIGGER_DEADLINE is set (in seconds since 1970), a step that is running then gets a SIGTERM, and no further
# one begins.
# step.sh: prints the steps in that file, and the test programs of the last run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
steps=${OUTRIGGER_STEPS:-}

if [ $# = 0 ]; then
    steps=${steps:-target/ci/steps.tsv}
    [ -f "$steps" ] || { echo "step.sh: there is no $steps: run .ci/run first" >&2; exit 1; }
    awk -F'\t' 'BEGIN {printf "%-20s  %-6s  %7s  %7s\n", "step", "result", "seconds", "cpu"}
        {printf "%-20s  %-6s  %7d  %7d\n", $1, $2, $3, $4; seconds += $3; cpu += $4}
        END {printf "%-20s  %-6s  %7d  %7d\n", "all", "", seconds, cpu}' "$steps"
    [ ! -f target/ci/programs.txt ] || { echo; cat target/ci/programs.txt; }
    exit
fi

name=$1
shift
[ -n "$steps" ] || exec "$@"
mkdir -p "$(dirname "$steps")"
left=$((${OUTRIGGER_DEADLINE:-9999999999} - $(date +%s)))
result=passed times=$'0\t0'
if [ "$left" -le 0 ]; then
    result='not run'
else
    # The shell's own measure has the processor time of all that was waited for.
    TIMEFORMAT=$'%R %U %S'
    exec 8>&1 9>&2
    times=$({ time timeout --kill-after=60 "$left" "$@" >&8 2>&9 8>&- 9>&-; } 2>&1) || result=FAILED
    times=$(awk '{printf "%.0f\t%.0f", $1, $2 + $3}' <<<"$times")
fi
printf '%s\t%s\t%s\n' "$name" "$result" "$times" >>"$steps"
[ "$result" = passed ] || { echo "step \"$name\": $result" >&2; exit 1; }
