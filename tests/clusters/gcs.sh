#!/usr/bin/env bash
# gcp-storage-emulator, a server that speaks the JSON API of Google Cloud Storage, in an
# environment of its own.
#   gcs.sh install PLACE        PLACE is a folder: pytest --gcs_home=PLACE
#   gcs.sh start PLACE PORT     runs it until it is killed
set -euo pipefail

case "${1:-} $#" in
  "install 2")
    python3 -m venv "$2"
    "$2/bin/python" -m pip install --quiet --no-compile "gcp-storage-emulator==2026.7.19"
    ;;
  "start 3")
    exec "$2/bin/gcp-storage-emulator" start --host=127.0.0.1 --port="$3" --in-memory
    ;;
  *) echo "usage: $0 install PLACE | start PLACE PORT" >&2; exit 2 ;;
esac
