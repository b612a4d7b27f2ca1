#!/usr/bin/env bash
# Searches text that people read for the phrases in tests/words.txt, and log macros for Debug forms (tests/logs.pl). Prints each
# with file, line and a replacement, and fails if there is one. `tests/words.sh PATH...` searches other paths.
set -euo pipefail
cd "$(dirname "$0")/.."

# To check more files, add them here.
paths=(
    '*.md' certs deploy proto src tests webhooks Makefile ':!tests/upgrades/0.1.0' ':!proto/tests/documented'
)
# Folders whose log macros are checked for Debug forms.
logs=(src)
if [ $# != 0 ]; then paths=("$@") logs=("$@"); fi

failed=0
while IFS= read -r line; do
    [[ $line != '#'* && $line == *'  # '* ]] || continue
    pattern=${line%%  *}
    # Names are sentences with underscores.
    pattern=${pattern// /[ _]} pattern=${pattern//\\b/(\\b|_)}
    # 1: not found. More: the expression is wrong.
    found=$(git --no-pager grep --untracked -nIiE -e "$pattern" -- "${paths[@]}" ':!tests/words.txt') || [ $? = 1 ]
    if [ -n "$found" ]; then
        printf '%s\n    write instead: %s\n' "$found" "${line##*  # }"
        failed=1
    fi
done <tests/words.txt
mapfile -t sources < <(git ls-files -- "${logs[@]}" | grep '\.rs$' || true)
tests/logs.pl "${sources[@]}" || failed=1
exit $failed
