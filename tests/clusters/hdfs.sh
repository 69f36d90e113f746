#!/usr/bin/env bash
# A name node of HDFS and a data node, with WebHDFS. Needs a JDK of version 11 or 17, and Maven.
#   hdfs.sh install PLACE       PLACE is a folder: pytest --hdfs_home=PLACE
#   hdfs.sh start PLACE PORT    runs it until it is killed, with an empty folder of its own
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
case "${1:-} $#" in
  "install 2")
    mkdir -p "$2"
    mvn --batch-mode --quiet -f "$here/hdfs/pom.xml" dependency:copy-dependencies \
      -DincludeScope=runtime -DoutputDirectory="$(cd "$2" && pwd)"
    ;;
  "start 3")
    exec java -Xmx300m "@$here/java.options" -cp "$2/*" \
      "$here/hdfs/Hdfs.java" "$3" "$(mktemp -d)"
    ;;
  *) echo "usage: $0 install PLACE | start PLACE PORT" >&2; exit 2 ;;
esac
