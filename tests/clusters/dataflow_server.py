"""A fake of what Beam asks of Dataflow: jobs that are created and looked at, and their messages.

No emulator of Dataflow exists. This takes the request that creates a job, as the service's REST
protocol has it, and answers with the states that a test wants. It runs nothing.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from streamveil.mechanisms.core.records import METRICS_NAMESPACE

JOBS = r"/v1b3/projects/([^/]+)/locations/([^/]+)/jobs"


class DataflowServer:
    """Requests that created jobs, and the states that these jobs go through."""

    def __init__(self):
        self.created = []
        """(project, region, job) of each request."""
        self.states = ["JOB_STATE_DONE"]
        """What each look at the job finds; the last one remains."""
        self.messages = []
        """(importance, text) of the job."""
        self.counters = {}
        """Of streamveil, by name."""
        self.failures = []
        """Of requests to come: (method, part of the path, status, reason, whether it was done)."""
        self.work = lambda job: None
        """What workers do with a job, at once."""
        self.seen = []
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"service": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.endpoint = f"http://localhost:{self.server.server_port}"  # REST, for Beam

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, method, path, body):
        """Status and JSON of an answer."""
        with self.lock:
            self.seen.append((method, path))
            fits = (one for one in self.failures if one[0] == method and one[1] in path)
            fault = next(fits, None)
            if fault is None:
                return self._done(method, path, body)
            self.failures.remove(fault)
            _, _, status, reason, done = fault
            if done:
                self._done(method, path, body)
            return error(status, reason, f"{reason} of the test")

    def _done(self, method, path, body):
        if (found := re.fullmatch(JOBS, path)) and method == "POST":
            self.created.append((*found.groups(), body))
            self.work(body)
            return 200, self._job("JOB_STATE_PENDING")
        if not self.created or not (
            found := re.fullmatch(f"{JOBS}/job-1(/messages|/metrics)?", path)
        ):
            return error(404, "NOT_FOUND", f"{method} {path} is not in the fake")
        if found[3] == "/messages":
            return 200, {"jobMessages": [_message(*each) for each in self.messages]}
        if found[3] == "/metrics":
            counted = [each for one in self.counters.items() for each in _counter(*one)]
            return 200, {"metrics": counted}
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return 200, self._job(state)

    def _job(self, state):
        project, region, job = self.created[-1]
        named = {name: job[name] for name in ("name", "type", "clientRequestId")}
        given = {"id": "job-1", "projectId": project, "location": region, "currentState": state}
        return {**given, **named}


def _counter(name, number):
    for tentative in ({}, {"tentative": "true"}):
        context = {"step": "s1", "namespace": METRICS_NAMESPACE, **tentative}
        yield {"name": {"origin": "user", "name": name, "context": context}, "scalar": number}


def _message(importance, text):
    return {
        "id": "1",
        "time": "2024-05-01T00:00:00Z",
        "messageText": text,
        "messageImportance": f"JOB_MESSAGE_{importance}",
    }


def error(status, reason, message):
    """An answer as Google words it."""
    return status, {"error": {"code": status, "message": message, "status": reason}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service = None

    def log_message(self, *_):
        pass

    def _any(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(data) if data else None
        status, answer = self.service.answer(self.command, urlsplit(self.path).path, body)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


for _method in ("GET", "POST", "PUT"):
    setattr(_Handler, f"do_{_method}", _Handler._any)
