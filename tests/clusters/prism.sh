#!/usr/bin/env bash
# Beam's Prism runner, built at the version of Beam that constraints.txt pins. Needs Go.
#   prism.sh install PLACE      PLACE is the binary: pytest --prism_location=PLACE
set -euo pipefail

[[ $# == 2 && $1 == install ]] || { echo "usage: $0 install PLACE" >&2; exit 2; }
place=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
beam=$(sed -n 's/^apache-beam==//p' "$root/constraints.txt")

mkdir -p "$(dirname "$place")"
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
# Beyond a module: go.mod files around here do not count.
(cd "$built" && GOBIN=$built go install "github.com/apache/beam/sdks/v2/go/cmd/prism@v$beam")
mv "$built/prism" "$place"
