"""A small web server of one page and its JSON, in threads beside the passes of a run.

It answers GET and HEAD of three paths and nothing else, has no password, and loads nothing from
elsewhere. A client that is slow holds a thread of its own for some seconds, and nothing else: where
there are too many, the one that has been there longest makes room. Where threads wait for figures,
such as those in files that cannot be read now, none makes room, and whoever comes is hung up on.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import urlsplit

from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.console.errors import reason_of
from streamveil.pipelines.console.logs import tell
from streamveil.pipelines.monitoring.board import Board
from streamveil.pipelines.monitoring.condition import ALARMS
from streamveil.pipelines.pages.document import document, stylesheet

_LOGGER = logging.getLogger("streamveil")

_HERE = Path(__file__).parent
_HTML, _JSON, _TEXT = (
    f"{kind}; charset=utf-8" for kind in ("text/html", "application/json", "text/plain")
)
_NOTHING = "default-src 'none'"  # of a page is loaded or run
_METHODS = ("GET", "HEAD")
_CLIENTS = 16  # at a time
_THREADS = 64  # with those of clients that were hung up on, until they notice
_SECONDS_FOR_A_CLIENT = 10.0  # in all: one that sends a byte now and then would stay for ever
_SECONDS_BETWEEN_LOOKS = 0.1
# By these names a browser on this machine asks; any other one was made to lead here by a stranger.
_OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")


@cache
def _page() -> tuple[bytes, str]:
    """The page, and the policy by which a browser runs and loads what is in it and nothing else."""
    style = stylesheet(_HERE / "page.css")
    body, script = ((_HERE / f"page.{kind}").read_text("utf-8") for kind in ("html", "js"))
    page = document("streamveil", style, body, script)
    policy = {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return page.encode(), "; ".join(f"{name} {value}" for name, value in policy.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class _Handler(BaseHTTPRequestHandler):
    """Answers one request and closes."""

    server: _Server
    server_version, sys_version = "streamveil", ""

    def parse_request(self) -> bool:
        """Read the request; what is not to be answered is refused here."""
        if not super().parse_request():
            return False
        if self.command not in _METHODS:
            self.send_error(405)
        elif not self._is_for_us():
            self.send_error(421)
        else:
            return True
        return False

    def _is_for_us(self) -> bool:
        """Whether the name that was asked for is one of this machine, where only it may ask."""
        host = self.headers.get("Host")
        if host is None or not self.server.is_loopback:
            return True
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name.lower() in (*_OWN_NAMES, self.server.name)

    def do_GET(self) -> None:
        """Answer with one of the three things there are."""
        try:
            answer = self._found(urlsplit(self.path).path)
        except Exception as error:  # the run must not end by it, and whoever looks must know
            _LOGGER.debug(f"{opt.serve} has no answer", exc_info=True)
            words = f"this cannot be shown: {reason_of(error)}\n"
            answer = 500, _TEXT, words.encode(errors="replace"), _NOTHING
        if answer is None:
            self.send_error(404)
        else:
            self._answer(*answer)

    def _found(self, path: str) -> tuple[int, str, bytes, str] | None:
        """Status, kind, body and policy of what is at the path; None if nothing is."""
        board = self.server.board
        if path == "/":
            return 200, _HTML, *_page()
        if path == "/status.json":
            body = json.dumps(board.record(), allow_nan=False)
            return 200, _JSON, body.encode(), _NOTHING
        if path == "/healthz":
            name, words = board.condition
            code = 503 if name in ALARMS else 200
            return code, _TEXT, f"{name}: {words}\n".encode(errors="replace"), _NOTHING
        return None

    def do_HEAD(self) -> None:
        """The same without the body."""
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse in a line, which repeats nothing of what was asked."""
        words = {
            404: "nothing is here: there are /, /status.json and /healthz",
            405: f"only {' and '.join(_METHODS)} are answered",
            421: "this page is for this machine: ask for localhost",
        }.get(code, "this cannot be answered")
        self._answer(code, _TEXT, f"{words}\n".encode())

    def _answer(self, code: int, kind: str, body: bytes, policy: str = _NOTHING) -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            *([("Allow", ", ".join(_METHODS))] if code == 405 else []),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *given: Any) -> None:
        """Keep requests out of the log."""


class _Server(ThreadingHTTPServer):
    """One thread for each client; none is waited for when the run ends."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = _CLIENTS

    def __init__(self, address: tuple[str, int], board: Board) -> None:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, place = found[0][0], found[0][4]
        self.board = board
        self.name = address[0]
        self._clients: dict[socket.socket, None] = {}  # those who came first are first
        self._leaving: set[socket.socket] = set()  # hung up on, each with a thread still
        self._coming = threading.Lock()
        super().__init__(place, _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Bind, without asking anybody how this machine is called."""
        TCPServer.server_bind(self)
        self.server_port = self.server_address[1]

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can ask."""
        return ipaddress.ip_address(str(self.server_address[0])).is_loopback

    @property
    def place(self) -> str:
        """Address and port as in a URL."""
        host, port = str(self.server_address[0]), self.server_port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, where there is room."""
        if self._taken_in(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _taken_in(self, request: socket.socket) -> bool:
        """Whether there is a thread for it; where clients are too many, the first is hung up on."""
        with self._coming:
            if len(self._clients) + len(self._leaving) >= _THREADS:
                return False
            if len(self._clients) >= _CLIENTS:
                first = next(iter(self._clients))
                del self._clients[first]
                self._leaving.add(first)
                _hang_up(first)
            self._clients[request] = None
            return True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, for as long as a client has."""
        limit = threading.Timer(_SECONDS_FOR_A_CLIENT, _hang_up, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()

    def shutdown_request(self, request: Any) -> None:
        """Hang up, and make room."""
        with self._coming:
            self._clients.pop(request, None)
            self._leaving.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note that a client went away, or what else happened, where the run does not stop."""
        _LOGGER.debug(f"a client of {opt.serve} got no answer", exc_info=True)


def _hang_up(request: socket.socket) -> None:
    """End a connection whose thread may wait for it."""
    with suppress(OSError):  # it has ended
        request.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(address: tuple[str, int], board: Board) -> Iterator[str]:
    """Show the board at an address while the block runs; gives where.

    Raises ConfigurationError where nothing can listen there.
    """
    host, port = address
    try:
        server = _Server(address, board)
    except OSError as error:
        raise ConfigurationError(
            f"{opt.serve}: nothing can listen on {host}:{port}: {error.strerror}: choose another "
            f"port, 0 for any that is free, or another address of this machine"
        ) from error
    thread = threading.Thread(
        target=server.serve_forever, args=(_SECONDS_BETWEEN_LOOKS,), name="streamveil-page"
    )
    _tell_place(server)
    thread.start()
    try:
        yield server.place
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _tell_place(server: _Server) -> None:
    tell(f"the page of this run, for operators, is at http://{server.place}/")
    if not server.is_loopback:
        tell(
            f"warning: {opt.serve}={server.place}: the page has no password, and anyone who can "
            "reach it sees event metrics that are not private: leave the address out, or let "
            "only operators through",
            logging.WARNING,
        )
