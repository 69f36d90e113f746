#!/usr/bin/env bash
# A real Flink cluster on this machine's loopback, with Beam's job server before it.
#
#   flink.sh install PLACE                        fetch Flink and Beam's job server (needs Maven),
#                                                 and run a job of Beam's (needs it in python)
#   flink.sh start PLACE WORK [MANAGERS] [SLOTS]  a job manager, task managers and a job server
#   flink.sh embedded PLACE WORK                  a job server that is a cluster by itself
#   flink.sh taskmanager PLACE WORK               one more task manager; prints its name
#   flink.sh stop WORK                            stop all of it
#
# `start` and `embedded` print NAME=VALUE lines, such as the job server's endpoint. Logs, process
# ids and checkpoints are in WORK. It takes Java 11 or 17 and less than 2 GB with two task managers.
# STATE_BACKEND=rocksdb in the environment of `start` keeps state in RocksDB, not in memory; it needs
# javac, for RocksDB's options.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)

# shellcheck source=tests/clusters/jvm.sh
. "$here/jvm.sh"

install() { # PLACE
  if is_installed "$1" "$here/flink-pom.xml"; then return; fi
  fetch "$here/flink-pom.xml" "$1"
  record "$(absolute "$1")"
}

job_server() { # PLACE WORK MASTER [HEAP]
  local job artifact expansion
  read -r job artifact expansion < <(python3 "$here/free_ports.py" 3)
  run jobserver "$1" "$2" "${4:-256m}" org.apache.beam.runners.flink.FlinkJobServerDriver \
    --flink-master="$3" --flink-conf-dir="$2/conf" --job-host=127.0.0.1 --job-port="$job" \
    --artifact-port="$artifact" --expansion-port="$expansion" --artifacts-dir="$2/artifacts"
  await "$job" "$2" jobserver
  echo "job_endpoint=127.0.0.1:$job"
}

prepare() { # PLACE WORK: an empty folder for a cluster
  mkdir -p "$2/conf" "$2/checkpoints" "$2/tmp" "$2/$jars"
  if [ "${STATE_BACKEND:-}" = rocksdb ]; then
    javac -cp "$1/$jars/*" -d "$2/$jars" "$here/flink/SmallManifest.java"
  fi
}

settings() { # WORK RPC REST SLOTS
  cat <<YAML
jobmanager.rpc.address: 127.0.0.1
jobmanager.rpc.port: $2
jobmanager.bind-host: 127.0.0.1
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: $3
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
taskmanager.numberOfTaskSlots: $4
taskmanager.cpu.cores: $4
taskmanager.memory.task.heap.size: 256m
taskmanager.memory.task.off-heap.size: 0
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 64m
taskmanager.memory.jvm-overhead.max: 64m
taskmanager.memory.managed.size: 64m
taskmanager.memory.network.min: 128m
taskmanager.memory.network.max: 128m
io.tmp.dirs: $1/tmp
state.backend.type: ${STATE_BACKEND:-hashmap}
state.checkpoints.dir: file://$1/checkpoints
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 30
restart-strategy.fixed-delay.delay: 200 ms
classloader.resolve-order: parent-first
heartbeat.interval: 500
heartbeat.timeout: 5000
YAML
  if [ "${STATE_BACKEND:-}" = rocksdb ]; then
    echo "state.backend.rocksdb.options-factory: SmallManifest"
  fi
}

taskmanager() { # PLACE WORK
  local n=1
  while [ -e "$2/taskmanager-$n.pid" ]; do n=$((n + 1)); done
  run "taskmanager-$n" "$1" "$2" 448m \
    org.apache.flink.runtime.taskexecutor.TaskManagerRunner --configDir "$2/conf" \
    "-Dtaskmanager.resource-id=taskmanager-$n"
  echo "taskmanager-$n"
}

start() { # PLACE WORK MANAGERS SLOTS
  local rpc rest
  prepare "$1" "$2"
  read -r rpc rest < <(python3 "$here/free_ports.py" 2)
  settings "$2" "$rpc" "$rest" "$4" >"$2/conf/flink-conf.yaml"
  run jobmanager "$1" "$2" 256m \
    org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint --configDir "$2/conf"
  await "$rest" "$2" jobmanager
  for ((i = 0; i < $3; i++)); do taskmanager "$1" "$2" >/dev/null; done
  echo "flink_master=127.0.0.1:$rest"
  job_server "$1" "$2" "127.0.0.1:$rest"
}

embedded() { # PLACE WORK
  prepare "$1" "$2"
  settings "$2" 0 0 4 >"$2/conf/flink-conf.yaml"
  job_server "$1" "$2" "[local]" 512m
}

case "${1:-}" in
  install) install "$2" ;;
  start) start "$(absolute "$2")" "$(absolute "$3")" "${4:-1}" "${5:-4}" ;;
  embedded) embedded "$(absolute "$2")" "$(absolute "$3")" ;;
  taskmanager) taskmanager "$(absolute "$2")" "$(absolute "$3")" ;;
  stop) stop "$2" ;;
  *) usage ;;
esac
