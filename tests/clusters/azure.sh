#!/usr/bin/env bash
# Azurite, Microsoft's own emulator of Azure Blob Storage. Needs Node.
#   azure.sh install PLACE      PLACE is a folder: pytest --azure_home=PLACE
#   azure.sh start PLACE PORT   runs it until it is killed
set -euo pipefail

case "${1:-} $#" in
  "install 2")
    mkdir -p "$2"
    cd "$2"
    echo '{"private": true}' >package.json
    npm install --silent --no-audit --no-fund azurite@3.37.0
    ;;
  "start 3")
    exec "$2/node_modules/.bin/azurite-blob" --blobHost 127.0.0.1 --blobPort "$3" \
      --inMemoryPersistence --skipApiVersionCheck --silent
    ;;
  *) echo "usage: $0 install PLACE | start PLACE PORT" >&2; exit 2 ;;
esac
