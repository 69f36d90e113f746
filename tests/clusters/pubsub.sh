#!/usr/bin/env bash
# A Pub/Sub server for tests, built from Google's Go client library. Needs Go.
#   pubsub.sh install PLACE     PLACE is the binary: pytest --pubsub_server=PLACE
set -euo pipefail

[[ $# == 2 && $1 == install ]] || { echo "usage: $0 install PLACE" >&2; exit 2; }
place=$2
here=$(cd "$(dirname "$0")" && pwd)
version=v2.9.0

mkdir -p "$(dirname "$place")"
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
cp "$here/pubsub/main.go" "$built"
cd "$built"
go mod init pubsub-server
go get "cloud.google.com/go/pubsub/v2@$version"
go mod tidy
go build -o pubsub-server .
cd "$OLDPWD"
mv "$built/pubsub-server" "$place"
