#!/usr/bin/env bash
# Builds cargo-shear, which finds unused dependencies, unless it is built already, and prints the path of the program.
exec "$(dirname "${BASH_SOURCE[0]}")/../crate.sh" cargo-shear 1.1.14
