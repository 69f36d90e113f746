#!/usr/bin/env bash
# A Kafka broker and the expansion service of Beam's connector, both on this machine, for tests.
#
#   kafka.sh install PLACE            download the jars (Maven); once
#   kafka.sh start PLACE WORK         start what does not run and print broker=HOST:PORT and
#                                     expansion=HOST:PORT; what the broker had in WORK is kept
#   kafka.sh stop WORK [broker|expansion]
#   kafka.sh kill WORK broker|expansion   at once, with -9
#
# Versions are those of kafka/broker.xml and kafka/connector.xml.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
java=(java "@$here/java.options")
plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1

install() { # PLACE
  for part in broker connector; do
    mvn --quiet --batch-mode --file "$here/kafka/$part.xml" "$plugin:copy-dependencies" \
      -DincludeScope=runtime -DoutputDirectory="$(realpath -m "$1")/$part"
  done
}

running() { # WORK NAME
  [[ -f "$1/$2.pid" ]] && kill -0 "$(cat "$1/$2.pid")" 2>/dev/null
}

launch() { # WORK NAME COMMAND...: in the background; its output goes to WORK/NAME.log
  local work=$1 name=$2
  shift 2
  setsid "$@" >>"$work/$name.log" 2>&1 </dev/null &
  echo $! >"$work/$name.pid"
}

await() { # WORK NAME PORT: until the port is open
  for _ in $(seq 300); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$3") 2>/dev/null; then return; fi
    running "$1" "$2" || break
    sleep 0.2
  done
  fail "$1" "$2"
}

fail() { # WORK NAME
  echo "kafka.sh: the $2 did not start:" >&2
  tail -n 20 "$1/$2.log" >&2
  exit 1
}

configure() { # WORK: settings of a single node that is both broker and controller
  local port controller
  read -r port controller < <(python3 "$here/free_ports.py" 2)
  cat >"$1/broker.properties" <<END_OF_SETTINGS
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
log.dirs=$1/log
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
# Events in the past are kept.
log.retention.ms=-1
END_OF_SETTINGS
  "${java[@]}" -cp "$2/broker/*" kafka.tools.StorageTool format \
    --cluster-id=streamveilTestClusterA --config="$1/broker.properties" >>"$1/broker.log" 2>&1 ||
    fail "$1" broker
  echo "$port" >"$1/broker.port"
}

start() { # PLACE WORK
  local place work
  place=$(realpath "$1")
  mkdir -p "$2"
  work=$(realpath "$2")
  [[ -f "$work/broker.port" ]] || configure "$work" "$place"
  if ! running "$work" broker; then
    launch "$work" broker "${java[@]}" -Xmx512m -cp "$place/broker/*" kafka.Kafka \
      "$work/broker.properties"
  fi
  if ! running "$work" expansion; then
    python3 "$here/free_ports.py" 1 >"$work/expansion.port"
    # Java transforms then run in this process, where others would want Docker.
    launch "$work" expansion "${java[@]}" -Xmx1g -cp "$place/connector/*" \
      org.apache.beam.sdk.expansion.service.ExpansionService \
      "$(cat "$work/expansion.port")" --alsoStartLoopbackWorker
  fi
  for name in broker expansion; do
    await "$work" "$name" "$(cat "$work/$name.port")"
    echo "$name=127.0.0.1:$(cat "$work/$name.port")"
  done
}

stop() { # WORK [NAME]
  local name pid
  for name in ${2:-expansion broker}; do
    running "$1" "$name" || continue
    pid=$(cat "$1/$name.pid")
    kill "$pid"
    for _ in $(seq 100); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
    rm "$1/$name.pid"
  done
}

kill_at_once() { # WORK NAME
  local pid
  pid=$(cat "$1/$2.pid")
  kill -9 "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done # its port is open until then
  rm "$1/$2.pid"
}

case "${1:-} $#" in
  "install 2" | "start 3" | "stop 2" | "stop 3") "$@" ;;
  "kill 3") kill_at_once "$2" "$3" ;;
  *)
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac
