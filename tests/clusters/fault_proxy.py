"""An HTTP proxy in front of an emulator that fails as a network or a service may."""

import contextlib
import http.client
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOREVER = 1 << 30
ABORT = struct.pack("ii", 1, 0)  # close with a reset
_ELSEWHERE = re.compile("/@([^/]+)(/.*)")  # a server that the one behind this leads to


@dataclass
class Fault:
    """What goes wrong with the requests that match, so many times after the first few."""

    how: str
    """`reset`, `reset_in_write`, `reset_in_read`, `truncate`, `shorten`, `lose_answer`, `slow`,
    `slow_answer`, `say` what `headers` has, or a status."""
    method: str = ".*"
    path: str = ".*"
    times: int = FOREVER
    after: int = 0
    body: bytes = b""
    seconds: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    """What the answer says besides, or in place of what the server says."""
    call: Callable[[], object] | None = None
    """Called when it strikes, before anything else."""
    hits: int = field(default=0, init=False)

    def hit(self, method, path):
        """Whether it strikes this request."""
        if not (re.fullmatch(self.method, method) and re.search(self.path, path)):
            return False
        self.hits += 1
        return self.after < self.hits <= self.after + self.times


class FaultProxy:
    """Forwards requests to `upstream`, HOST:PORT; a token server for fake accounts as well.

    A redirection to another server leads through it, too.
    """

    def __init__(self, upstream, port):
        self.upstream, self.port = upstream, port
        self.address = f"127.0.0.1:{port}"
        self.faults = []
        self.seen = []
        self.lock = threading.Lock()
        self.server = None
        self.start()

    @property
    def url(self):
        return f"http://{self.address}"

    def start(self):
        """Take connections."""
        proxy = self

        class Handler(_Handler):
            pass

        Handler.proxy = proxy
        ThreadingHTTPServer.allow_reuse_address = True
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        """Refuse connections from now on."""
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def reset(self):
        """Forget all faults and what was seen, and take connections."""
        with self.lock:
            self.faults, self.seen = [], []
        if self.server is None:
            self.start()

    def fault_of(self, method, path):
        with self.lock:
            self.seen.append((method, path))
            return next((one for one in self.faults if one.hit(method, path)), None)

    def through(self, location):
        """That address by way of this proxy, also of another server than its own."""
        found = re.match("https?://([^/]+)(.*)", location)
        if found is None or found[1] == self.upstream:
            return location.replace(self.upstream, self.address)
        return f"{self.url}/@{found[1]}{found[2]}"

    def struck(self):
        """How many requests were struck by a fault."""
        with self.lock:
            return sum(max(0, min(one.hits - one.after, one.times)) for one in self.faults)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy = None

    def log_message(self, *_):
        pass

    def handle(self):
        with contextlib.suppress(OSError):
            super().handle()

    def _abort(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        self.close_connection = True
        self.wfile.flush()
        self.connection.close()

    def _any(self):
        proxy = self.proxy
        if proxy.server is None:  # a connection from before it was stopped
            return self._abort()
        fault = proxy.fault_of(self.command, self.path)
        if fault and fault.call:
            fault.call()
        length = int(self.headers.get("Content-Length") or 0)
        how = fault.how if fault else ""
        if how == "reset":
            return self._abort()
        if how == "reset_in_write":
            self.rfile.read(length // 2)
            return self._abort()
        if self.headers.get("Expect", "").lower() == "100-continue":
            pass  # BaseHTTPRequestHandler has answered it
        chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
        body = self._chunks() if chunked else self.rfile.read(length)
        if how.isdecimal():
            kind = "application/json" if fault.body.startswith(b"{") else "text/plain"
            headers = {"Content-Type": kind, **fault.headers}
            return self._answer(int(how), headers.items(), fault.body)
        if self.path.endswith("/token"):
            token = {"access_token": "fake", "expires_in": 3600, "token_type": "Bearer"}
            return self._answer(
                200, [("Content-Type", "application/json")], json.dumps(token).encode()
            )
        if how == "slow":
            time.sleep(fault.seconds)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("host", "transfer-encoding", "connection", "expect")
        }
        server, path = proxy.upstream, self.path
        if away := _ELSEWHERE.match(path):
            server, path = away.groups()
        headers["Host"] = proxy.address if "X-Amz-Date" in self.headers else server
        if chunked:
            headers["Content-Length"] = str(len(body))
        try:
            upstream = http.client.HTTPConnection(server, timeout=60)
            upstream.request(self.command, path, body, headers)
            response = upstream.getresponse()
            content = response.read()
        except OSError:
            return self._abort()
        if how == "lose_answer":
            return self._abort()
        if how == "slow_answer":
            time.sleep(fault.seconds)
        ours, theirs = proxy.address.encode(), proxy.upstream.encode()
        changed = {name.lower(): value for name, value in (fault.headers if fault else {}).items()}
        dropped = {"transfer-encoding", "connection", "content-length", "date", *changed}
        answered = [
            (name, proxy.through(value) if name.lower() == "location" else value)
            for name, value in response.getheaders()
            if name.lower() not in dropped
        ] + list(changed.items())
        if "json" in response.getheader("Content-Type", ""):
            content = content.replace(theirs, ours)
        given = response.getheader("Content-Length")
        size = int(given) if self.command == "HEAD" and given else len(content)
        return self._answer(response.status, answered, content, how, size)

    def _chunks(self):
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status, headers, content, how="", size=None):
        half = len(content) // 2
        if how == "shorten":
            content = content[:half]
            size = half
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if size is None else size))
        self.end_headers()
        if self.command == "HEAD":
            return
        if how in ("truncate", "reset_in_read"):
            self.wfile.write(content[:half])
            self.wfile.flush()
            if how == "reset_in_read":
                time.sleep(0.05)
                self._abort()
            else:
                self.close_connection = True
            return
        self.wfile.write(content)


for _method in ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"):
    setattr(_Handler, f"do_{_method}", _Handler._any)
