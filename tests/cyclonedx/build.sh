#!/usr/bin/env bash
# Builds cargo-cyclonedx, which writes the bill of materials, unless it is built already, and prints the path of the program.
exec "$(dirname "${BASH_SOURCE[0]}")/../crate.sh" cargo-cyclonedx 0.5.9
