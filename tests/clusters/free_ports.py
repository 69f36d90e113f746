"""Print so many ports of this machine that are free and stay so until a server binds them.

A port that the system hands out may be handed out again before the server is up: to a connection,
or to one of the many servers that a Flink cluster starts. So these lie below those that it hands
out, where it says which.
"""

import random
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

SYSTEM = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(wanted):
    """Different ports, free on the loopback."""
    top = int(SYSTEM.read_text().split()[0]) if SYSTEM.is_file() else 32768
    found = []
    with ExitStack() as held:
        for port in random.SystemRandom().sample(range(top // 2, top), 1000):
            one = held.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == wanted:
                return found
    raise SystemExit(f"free_ports.py: no {wanted} free ports between {top // 2} and {top}")


if __name__ == "__main__":
    print(*free_ports(int(sys.argv[1])))
