#!/usr/bin/env bash
# Builds cargo-deny, which judges licenses, sources and versions of dependencies, unless it is built already, and prints the path of the program.
exec "$(dirname "${BASH_SOURCE[0]}")/../crate.sh" cargo-deny 0.20.2
