#!/usr/bin/env bash
# Apicurio Registry, which speaks the API of Confluent's Schema Registry, with schemas in memory.
#   registry.sh install PLACE         download it (Maven), 150 MB; PLACE is a folder
#   registry.sh start PLACE PORT      runs it until it is killed: http://127.0.0.1:PORT/apis/ccompat/v7
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
version=2.6.13.Final
plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1

case "${1:-} $#" in
  "install 2")
    mkdir -p "$2"
    mvn --quiet --batch-mode "$plugin:copy" -DoutputDirectory="$(realpath "$2")" \
      -Dartifact="io.apicurio:apicurio-registry-app:$version:tar.gz:all"
    tar -xzf "$2/apicurio-registry-app-$version-all.tar.gz" -C "$2"
    rm "$2/apicurio-registry-app-$version-all.tar.gz"
    ;;
  "start 3")
    cd "$2"
    exec java "@$here/java.options" -Xmx512m \
      -Dquarkus.http.host=127.0.0.1 -Dquarkus.http.port="$3" \
      -jar "apicurio-registry-app-$version-runner.jar"
    ;;
  *) echo "usage: $0 install PLACE | start PLACE PORT" >&2; exit 2 ;;
esac
