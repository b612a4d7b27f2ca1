#!/usr/bin/env bash
# Builds cargo-auditable, which writes the list of dependencies into programs, unless it is built already, and prints the path of the program.
exec "$(dirname "${BASH_SOURCE[0]}")/../crate.sh" cargo-auditable 0.7.7
