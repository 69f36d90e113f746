"""Print so many ports of this machine that are free and stay so until a server binds them.

A port that the system hands out may be handed out again before the server is up: to a connection,
or to one of the many servers that a Flink cluster starts. So these lie below those that it hands
out, where it says which. Servers that start side by side are not given the same one: who takes a
port leaves a file that says so for a while.
"""

import os
import random
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

SYSTEM = Path("/proc/sys/net/ipv4/ip_local_port_range")
TAKEN = Path(tempfile.gettempdir()) / f"streamveil-ports-{os.getuid()}"
SECONDS = 300  # in which a server is up


def take(port):
    """Whether nobody else took it within the last minutes."""
    file = TAKEN / str(port)
    if file.exists() and time.time() - file.stat().st_mtime > SECONDS:
        file.unlink(missing_ok=True)
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def free_ports(wanted):
    """Different ports, free on the loopback."""
    top = int(SYSTEM.read_text().split()[0]) if SYSTEM.is_file() else 32768
    TAKEN.mkdir(exist_ok=True)
    found = []
    with ExitStack() as held:
        for port in random.SystemRandom().sample(range(top // 2, top), 1000):
            one = held.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            if not take(port):
                continue
            found.append(port)
            if len(found) == wanted:
                return found
    raise SystemExit(f"free_ports.py: no {wanted} free ports between {top // 2} and {top}")


if __name__ == "__main__":
    print(*free_ports(int(sys.argv[1])))
