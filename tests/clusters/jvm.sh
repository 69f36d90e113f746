# What flink.sh and spark.sh share: processes of Java on this machine. Sourced, not run.

# Where the jars are. Every process of a cluster has them on its class path, and Beam's job server
# uploads nothing that lies in a folder of this name: 160 MB with every job otherwise.
jars=gradle/wrapper

# Flink and Spark on Java 17 look into these.
opens=()
for package in java.lang java.lang.invoke java.lang.reflect java.net java.io java.nio java.text \
  java.time java.util java.util.concurrent java.util.concurrent.atomic java.util.concurrent.locks \
  sun.nio.ch sun.security.action; do
  opens+=("--add-opens=java.base/$package=ALL-UNNAMED")
done
opens+=(--add-exports=java.base/sun.net.util=ALL-UNNAMED)

fetch() { # POM PLACE: the jars of a list (needs Maven)
  mkdir -p "$2"
  mvn --batch-mode --quiet -f "$1" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$(cd "$2" && pwd)/$jars"
}

is_installed() { # PLACE POM: whether `record` has ended there, since these files were changed
  local file
  for file in "$2" "$here/jvm.sh" "$here/java.options"; do
    [ "$1/classes.jsa" -nt "$file" ] || return 1
  done
}

record() { # PLACE: run a job and archive the classes that it loads, for later processes to map
  local work endpoints job_endpoint pid
  rm -f "$1/classes.jsa"
  work=$(mktemp -d)
  endpoints=$(recorded=yes embedded "$1" "$work")
  eval "$endpoints"
  pid=$(cat "$work/jobserver.pid")
  echo "some words" >"$work/words"
  python -m apache_beam.examples.wordcount --runner=PortableRunner --environment_type=LOOPBACK \
    --job_endpoint="$job_endpoint" --input="$work/words" --output="$work/counts" \
    >"$work/job.log" 2>&1 || {
    cat "$work/job.log" >&2
    exit 1
  }
  kill "$pid"
  for _ in $(seq 300); do
    if ! kill -0 "$pid" 2>/dev/null; then break; fi
    sleep 0.1
  done
  rm -r "$work"
}

run() { # NAME PLACE WORK HEAP CLASS [ARGUMENTS]: a Java process in the background
  local name=$1 place=$2 work=$3 heap=$4 archive=()
  shift 4
  if [ -n "${recorded:-}" ]; then
    archive=("-XX:ArchiveClassesAtExit=$place/classes.jsa")
  elif [ -e "$place/classes.jsa" ]; then
    archive=("-XX:SharedArchiveFile=$place/classes.jsa")
  fi
  (
    cd "$work"
    exec setsid java "-Xmx$heap" "@$here/java.options" \
      "${archive[@]}" \
      -Dorg.slf4j.simpleLogger.showDateTime=true \
      "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS" "${opens[@]}" \
      -cp "$place/$jars/*:$work/$jars" "$@" >>"$work/$name.log" 2>&1 </dev/null
  ) &
  echo $! >"$work/$name.pid"
}

await() { # PORT WORK NAME: until the process listens, or is no more
  for _ in $(seq 600); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return; fi
    if ! kill -0 "$(cat "$2/$3.pid")" 2>/dev/null; then break; fi
    sleep 0.1
  done
  echo "$(basename "$0"): the $3 did not come up:" >&2
  tail -n 20 "$2/$3.log" >&2
  exit 1
}

stop() { # WORK
  local pid
  for file in "$1"/*.pid; do
    [ -e "$file" ] || continue
    pid=$(cat "$file")
    kill -9 "$pid" 2>/dev/null || true
    rm -f "$file"
  done
}

absolute() { # FOLDER, which is made
  mkdir -p "$1" && cd "$1" && pwd
}

usage() {
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
  exit 2
}
