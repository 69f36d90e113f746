#!/usr/bin/env bash
# Spark on this machine's loopback, with Beam's job server before it.
#
#   spark.sh install PLACE               fetch Spark and Beam's job server (needs Maven, and a JDK),
#                                        and run a job of Beam's (needs it in python)
#   spark.sh embedded PLACE WORK         a job server in which Spark runs: --master=local[2]
#   spark.sh start PLACE WORK            a master, a worker of two cores and a job server
#   spark.sh server PLACE WORK MASTER    a job server alone, before a master that is named
#   spark.sh stop WORK                   stop all of it
#
# All but `stop` and `install` print NAME=VALUE lines, such as the job server's endpoint. Logs and
# process ids are in WORK. It takes Java 17 and less than 2 GB.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/clusters/jvm.sh
. "$here/jvm.sh"
export SPARK_LOCAL_IP=127.0.0.1

install() { # PLACE: a worker looks for the jars of its executors in a folder called jars
  if is_installed "$1" "$here/spark-pom.xml"; then return; fi
  fetch "$here/spark-pom.xml" "$1"
  ln -sfn "$jars" "$1/jars"
  # A jar that starts the job server, for --spark_job_server_jar.
  local manifest names
  manifest=$(mktemp)
  names=("$1/$jars"/*.jar)
  {
    echo "Main-Class: org.apache.beam.runners.spark.SparkJobServerDriver"
    echo "Add-Opens: $(printf '%s\n' "${opens[@]}" | sed -n 's/^--add-opens=\(.*\)=.*/\1/p' | paste -sd' ')"
    echo "Class-Path: "
    printf '  %s\n' "${names[@]#"$1/"}"
  } >"$manifest"
  jar --create --file="$1/job-server.jar" --manifest="$manifest"
  rm "$manifest"
  record "$(absolute "$1")"
}

job_server() { # PLACE WORK MASTER [HEAP]
  local job artifact expansion
  read -r job artifact expansion < <(python3 "$here/free_ports.py" 3)
  # Spark reads properties of Java as its settings. Its page would take one more port.
  settings=(-Dspark.ui.enabled=false -Dspark.driver.host=127.0.0.1
    "-Dspark.local.dir=$2/tmp" "-Dspark.executor.memory=512m"
    "-Dspark.executor.extraJavaOptions=@$here/java.options ${opens[*]}")
  run jobserver "$1" "$2" "${4:-512m}" "${settings[@]}" \
    org.apache.beam.runners.spark.SparkJobServerDriver \
    --spark-master-url="$3" --job-host=127.0.0.1 --job-port="$job" --artifact-port="$artifact" \
    --expansion-port="$expansion" --artifacts-dir="$2/artifacts"
  await "$job" "$2" jobserver
  echo "job_endpoint=127.0.0.1:$job"
}

embedded() { # PLACE WORK
  job_server "$1" "$2" "local[2]" 1g
}

start() { # PLACE WORK
  local master page worker
  read -r master page worker < <(python3 "$here/free_ports.py" 3)
  export SPARK_HOME=$1 SPARK_SCALA_VERSION=2.12 SPARK_PUBLIC_DNS=127.0.0.1
  run master "$1" "$2" 256m org.apache.spark.deploy.master.Master \
    --host 127.0.0.1 --port "$master" --webui-port "$page"
  await "$master" "$2" master
  run worker "$1" "$2" 256m org.apache.spark.deploy.worker.Worker \
    --host 127.0.0.1 --cores 2 --memory 1g --webui-port "$worker" --work-dir "$2/executors" \
    "spark://127.0.0.1:$master"
  await "$worker" "$2" worker
  echo "spark_master=spark://127.0.0.1:$master"
  job_server "$1" "$2" "spark://127.0.0.1:$master"
}

case "${1:-} $#" in
  "install 2") install "$2" ;;
  "embedded 3") embedded "$(absolute "$2")" "$(absolute "$3")" ;;
  "start 3") start "$(absolute "$2")" "$(absolute "$3")" ;;
  "server 4") job_server "$(absolute "$2")" "$(absolute "$3")" "$4" ;;
  "stop 2") stop "$2" ;;
  *) usage ;;
esac
