"""A proxy of connections, of whatever protocol, that fails as the way to a service may."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.clusters.fault_proxy import ABORT, FOREVER


@dataclass
class Cut:
    """What goes wrong with connections, so many of them after the first few."""

    how: str
    """`reset`, `close`, `stall` until the proxy forgets the cut, or `slow`."""
    after: int = 0
    """Bytes that still get through, in that direction."""
    upward: bool = False
    """Whether bytes to the server are counted and held up, not those from it."""
    times: int = FOREVER
    first: int = 0
    seconds: float = 0.0
    """How long each piece waits where it is slow."""
    call: Callable[[], object] | None = None
    """Called when it strikes, before anything else."""
    hits: int = field(default=0, init=False)


class TcpProxy:
    """Forwards connections from a port of its own to `upstream`, HOST:PORT."""

    def __init__(self, upstream: str, port: int = 0):
        host, _, number = upstream.rpartition(":")
        self.upstream, self.port = (host, int(number)), port
        self.cut = None
        self.taken = self.struck = 0
        self.lock = threading.Lock()
        self.listener = None
        self.held, self.open = False, []
        self.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        """Take connections."""
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def stop(self):
        """Refuse connections from now on; those that are open stay."""
        if self.listener is not None:
            with contextlib.suppress(OSError):  # which wakes the thread that waits for one
                self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
            self.listener = None

    def hold(self):
        """Let nothing from the server through from now on."""
        self.held = True

    def sever(self, how="reset"):
        """End the connections that are open; what was held is lost."""
        with self.lock:
            ended, self.open = self.open, []
        for one in ended:
            _end(one, how)
        self.held = False

    def reset(self, cut=None):
        """Forget what was, take connections, and let this go wrong."""
        self.held = False
        with self.lock:
            self.cut, self.taken, self.struck = cut, 0, 0
            if cut is not None:
                cut.hits = 0
        if self.listener is None:
            self.start()

    def _accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self.lock:
                cut = self.cut
                if cut is not None:
                    cut.hits += 1
                    if not cut.first < cut.hits <= cut.first + cut.times:
                        cut = None
                self.taken += 1
            threading.Thread(target=self._forward, args=(client, cut), daemon=True).start()

    def _forward(self, client, cut):
        try:
            server = socket.create_connection(self.upstream)
        except OSError:
            _end(client, "reset")
            return
        # What it does not take yet waits in the server, which has not done with it.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        with self.lock:
            self.open += [client, server]
        for source, target, upward in ((client, server, True), (server, client, False)):
            mine = cut if cut is not None and cut.upward == upward else None
            threading.Thread(
                target=self._pump, args=(source, target, (client, server), mine), daemon=True
            ).start()

    def _pump(self, source, target, both, cut):
        left = cut.after if cut is not None else FOREVER
        with contextlib.suppress(OSError):
            if left == 0:  # it strikes before anything goes through
                self._strike(cut, both)
            while piece := source.recv(1 << 16):
                while self.held and target is both[0]:
                    time.sleep(0.02)
                if cut is not None and len(piece) >= left:
                    target.sendall(piece[:left])
                    piece, left = piece[left:], 0
                    self._strike(cut, both)
                else:
                    left -= len(piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def _strike(self, cut, both):
        """Let it go wrong: raises OSError where the connection ends."""
        with self.lock:
            self.struck += 1
        if cut.call is not None:
            cut.call()
        if cut.how == "slow":
            time.sleep(cut.seconds)
            return
        while cut.how == "stall" and self.cut is cut:
            time.sleep(0.02)
        for one in both:
            _end(one, cut.how)
        raise ConnectionAbortedError


def _end(connection, how):
    with contextlib.suppress(OSError):
        if how == "close":
            connection.shutdown(socket.SHUT_RDWR)
        else:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            connection.shutdown(socket.SHUT_RD)
        connection.close()
