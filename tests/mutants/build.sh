#!/usr/bin/env bash
# Builds cargo-mutants, which changes code and runs the tests, unless it is built already, and prints the path of the program.
exec "$(dirname "${BASH_SOURCE[0]}")/../crate.sh" cargo-mutants 27.1.0
