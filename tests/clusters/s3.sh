#!/usr/bin/env bash
# moto, a server that speaks S3, in an environment of its own.
#   s3.sh install PLACE         PLACE is a folder: pytest --s3_home=PLACE
#   s3.sh start PLACE PORT      runs it until it is killed
set -euo pipefail

case "${1:-} $#" in
  "install 2")
    python3 -m venv "$2"
    "$2/bin/python" -m pip install --quiet --no-compile "moto[server]==5.2.5"
    ;;
  "start 3") exec "$2/bin/moto_server" --host=127.0.0.1 --port="$3" ;;
  *) echo "usage: $0 install PLACE | start PLACE PORT" >&2; exit 2 ;;
esac
