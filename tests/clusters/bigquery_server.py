"""A fake of what Beam asks of BigQuery: tables, streamed rows, load jobs; and of Google's tokens.

No emulator of BigQuery can be installed from a package registry. This speaks the JSON protocol of
the service to the clients of Google, as far as they use it. Load jobs read the bucket of `files`.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TABLES = r"/projects/([^/]+)/datasets/([^/]+)/tables"


class BigQueryServer:
    """Tables by PROJECT.DATASET.TABLE, each a schema and rows."""

    def __init__(self, datasets=("a-project.stats",), files=None):
        self.datasets, self.files = set(datasets), files
        self.schemas, self.rows, self.inserted, self.jobs = {}, {}, {}, {}
        self.failures = []
        """Of requests to come: (part of the path, status, reason, whether it was done)."""
        self.lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"service": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, method, path, body):
        """Status and JSON of an answer."""
        if path.endswith("/token"):
            return 200, {"access_token": "fake", "expires_in": 3600, "token_type": "Bearer"}
        with self.lock:
            fault = next((one for one in self.failures if one[0] in path), None)
            if fault is None:
                return self._done(method, path, body)
            self.failures.remove(fault)
            _, status, reason, done = fault
            if done:
                self._done(method, path, body)
            return error(status, reason, f"{reason} of the test")

    def _done(self, method, path, body):
        path = path.partition("?")[0].removeprefix("/bigquery/v2")
        if found := re.fullmatch(f"{TABLES}/([^/]+)/insertAll", path):
            return self._insert(".".join(found.groups()), body)
        if found := re.fullmatch(f"{TABLES}/([^/]+)", path):
            name = ".".join(found.groups())
            if name not in self.schemas:
                return error(404, "notFound", f"Not found: Table {name}")
            return 200, self._table(name)
        if (found := re.fullmatch(TABLES, path)) and method == "POST":
            if ".".join(found.groups()) not in self.datasets:
                return error(404, "notFound", f"Not found: Dataset {':'.join(found.groups())}")
            name = ".".join((*found.groups(), body["tableReference"]["tableId"]))
            if name in self.schemas:
                return error(409, "duplicate", f"Already Exists: Table {name}")
            self._make(name, body["schema"])
            return 200, self._table(name)
        if re.fullmatch("/projects/[^/]+/jobs", path) and method == "POST":
            return self._load(body)
        if found := re.fullmatch("/projects/[^/]+/jobs/([^/]+)", path):
            return 200, self.jobs[found[1]]
        return error(404, "notFound", f"{method} {path} is not in the fake")

    def _make(self, name, schema):
        self.schemas[name], self.rows[name], self.inserted[name] = schema, [], set()

    def _table(self, name):
        project, dataset, table = name.split(".")
        reference = {"projectId": project, "datasetId": dataset, "tableId": table}
        return {"kind": "bigquery#table", "tableReference": reference, "schema": self.schemas[name]}

    def _insert(self, name, body):
        if name not in self.schemas:
            return error(404, "notFound", f"Not found: Table {name}")
        known = {field["name"]: field for field in self.schemas[name]["fields"]}
        wrong = [
            {"index": number, "errors": [{"reason": "invalid", "location": why, "message": why}]}
            for number, row in enumerate(body["rows"])
            if (why := _fault(known, row["json"]))
        ]
        if wrong:
            return 200, {"kind": "bigquery#tableDataInsertAllResponse", "insertErrors": wrong}
        for row in body["rows"]:
            if row.get("insertId") is None or row["insertId"] not in self.inserted[name]:
                self.inserted[name].add(row.get("insertId"))
                self.rows[name].append(row["json"])
        return 200, {"kind": "bigquery#tableDataInsertAllResponse"}

    def _load(self, body):
        load = body["configuration"]["load"]
        into = load["destinationTable"]
        name = ".".join(into[part] for part in ("projectId", "datasetId", "tableId"))
        if name not in self.schemas:
            self._make(name, load["schema"])
        known = {field["name"]: field for field in self.schemas[name]["fields"]}
        status = {"state": "DONE"}
        rows = []
        for place in load["sourceUris"]:
            rows += [json.loads(line) for line in self.files(place).splitlines()]
        wrong = next(filter(None, (_fault(known, row) for row in rows)), None)
        if wrong:
            status["errorResult"] = {"reason": "invalid", "message": f"no such field: {wrong}"}
        else:
            self.rows[name] += rows
        job = {
            "kind": "bigquery#job",
            "jobReference": {**body["jobReference"], "location": "US"},
            "configuration": body["configuration"],
            "status": status,
        }
        self.jobs[body["jobReference"]["jobId"]] = job
        return 200, job


def _fault(known, row):
    """Why a row is none of a table; None if it is one."""
    for name, value in row.items():
        if name not in known:
            return f"no such field: {name}"
        if (known[name]["mode"] == "REPEATED") is not isinstance(value, list):
            return f"{name} is not {known[name]['mode']}"
        if isinstance(value, list) and None in value:
            return f"{name} holds null"
    missing = [name for name, one in known.items() if one["mode"] == "REQUIRED" and name not in row]
    return f"missing: {missing[0]}" if missing else None


def error(status, reason, message):
    """An answer as Google words it."""
    errors = [{"reason": reason, "message": message, "domain": "global"}]
    return status, {"error": {"code": status, "message": message, "errors": errors}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service = None

    def log_message(self, *_):
        pass

    def _any(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_json = "json" in self.headers.get("Content-Type", "")
        body = json.loads(data) if is_json and data else None
        status, answer = self.service.answer(self.command, self.path, body)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


for _method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._any)
