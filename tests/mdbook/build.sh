#!/usr/bin/env bash
# Builds mdBook, unless it is built already, and prints the path of the program. Readers need no other feature than the search.
exec "$(dirname "${BASH_SOURCE[0]}")/../crate.sh" mdbook 0.5.4 --no-default-features --features search
