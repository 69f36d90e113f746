"""A fake of what Beam and Google's client ask of BigQuery, and of Google's tokens.

No emulator of BigQuery can be installed from a package registry. This speaks the JSON protocol of
the service to the clients of Google, as far as they use it: tables and their schemas, streamed
rows, load jobs of uploaded files and of those in the bucket of `files`, query jobs, pages of rows.
SQLite runs the queries, as far as it has the same SQL.
"""

import datetime as dt
import email
import itertools
import json
import re
import sqlite3
import threading
import urllib.parse
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TABLES = r"/projects/([^/]+)/datasets/([^/]+)/tables"
AS_OF = re.compile(r"\s+FOR SYSTEM_TIME AS OF TIMESTAMP '([^']+)'")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


class BigQueryServer:
    """Tables by PROJECT.DATASET.TABLE, each a schema and rows."""

    def __init__(self, datasets=("a-project.stats",), files=None):
        self.datasets, self.files = set(datasets), files
        self.schemas, self.rows, self.inserted, self.jobs = {}, {}, {}, {}
        self.earlier = {}
        """Of tables, what they held up to some time."""
        self.page = 1000
        """Rows of a page at most."""
        self.failures = []
        """Of requests to come: (part of the path, status, reason, whether it was done)."""
        self.failing_jobs = []
        """Why the next jobs fail: (reason, message)."""
        self.location = "US"
        """Of all datasets; jobs elsewhere than in US and EU are found only where it is named."""
        self.before_job = None
        """Called before a job is done."""
        self.before_insert = None
        """Called before rows are streamed."""
        self.seen = []
        """What was asked for: methods and paths."""
        self.lock = threading.RLock()
        self.numbers = itertools.count(1)
        handler = type("Handler", (_Handler,), {"service": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def fill(self, name, types, rows, modes=None):
        """Make a table of columns of these types, and put rows of Python's values in."""
        modes = modes or {}
        fields = [
            {"name": column, "type": kind, "mode": modes.get(column, "NULLABLE")}
            for column, kind in types.items()
        ]
        self._make(name, {"fields": fields})
        self.rows[name] = [dict(zip(types, row, strict=True)) for row in rows]

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, method, path, body):
        """Status and JSON of an answer."""
        if path.endswith("/token"):
            return 200, {"access_token": "fake", "expires_in": 3600, "token_type": "Bearer"}
        with self.lock:
            self.seen.append((method, path))
            fault = next((one for one in self.failures if one[0] in path), None)
            if fault is None:
                try:
                    return self._done(method, path, body)
                except Exception as wrong:  # of the fake: clients are not to try that again
                    return error(400, "fake", repr(wrong))
            self.failures.remove(fault)
            _, status, reason, done = fault
            if done:
                self._done(method, path, body)
            return error(status, reason, f"{reason} of the test")

    def _done(self, method, path, body):
        path, _, asked = path.partition("?")
        asked = {name: values[0] for name, values in urllib.parse.parse_qs(asked).items()}
        path = urllib.parse.unquote(path)
        upload = path.startswith("/upload")
        path = path.removeprefix("/upload").removeprefix("/bigquery/v2")
        if found := re.fullmatch(f"{TABLES}/([^/]+)/insertAll", path):
            return self._insert(".".join(found.groups()), body)
        if found := re.fullmatch(f"{TABLES}/([^/]+)/data", path):
            return self._listed(".".join(found.groups()), asked)
        if found := re.fullmatch(f"{TABLES}/([^/]+)", path):
            name = ".".join(found.groups())
            if name not in self.schemas:
                return error(404, "notFound", f"Not found: Table {name}")
            return 200, self._table(name)
        if found := re.fullmatch("/projects/([^/]+)/datasets/([^/]+)", path):
            if ".".join(found.groups()) not in self.datasets:
                return error(404, "notFound", f"Not found: Dataset {':'.join(found.groups())}")
            reference = dict(zip(("projectId", "datasetId"), found.groups(), strict=True))
            return 200, {"kind": "bigquery#dataset", "datasetReference": reference}
        if (found := re.fullmatch(TABLES, path)) and method == "POST":
            if ".".join(found.groups()) not in self.datasets:
                return error(404, "notFound", f"Not found: Dataset {':'.join(found.groups())}")
            name = ".".join((*found.groups(), body["tableReference"]["tableId"]))
            if name in self.schemas:
                return error(409, "duplicate", f"Already Exists: Table {name}")
            self._make(name, body["schema"])
            return 200, self._table(name)
        if re.fullmatch("/projects/[^/]+/jobs", path) and method == "POST":
            body, uploaded = (body[0], body[1]) if upload else (body, None)
            return self._job(body, uploaded)
        if found := re.fullmatch("/projects/[^/]+/jobs/([^/]+)", path):
            known = self.location in ("US", "EU", asked.get("location"))
            if found[1] not in self.jobs or not known:
                return error(404, "notFound", f"Not found: Job {found[1]}")
            return 200, self.jobs[found[1]]
        if found := re.fullmatch("/projects/[^/]+/queries/([^/]+)", path):
            return self._results(found[1], asked)
        return error(404, "notFound", f"{method} {path} is not in the fake")

    def _listed(self, name, asked):
        if name not in self.schemas:
            return error(404, "notFound", f"Not found: Table {name}")
        start = int(asked.get("pageToken") or asked.get("startIndex") or 0)
        most = min(self.page, int(asked.get("maxResults", self.page)))
        fields, rows = self.schemas[name]["fields"], self.rows[name]
        cells = [
            {"f": [{"v": _cell(row.get(field["name"]), field)} for field in fields]}
            for row in rows[start : start + most]
        ]
        answer = {"kind": "bigquery#tableDataList", "totalRows": str(len(rows)), "rows": cells}
        if start + most < len(rows):
            answer["pageToken"] = str(start + most)
        return 200, answer

    def _job(self, body, uploaded=None):
        reference = {**body["jobReference"], "location": self.location}
        dry = body["configuration"].get("dryRun")
        if not dry and reference["jobId"] in self.jobs:
            return error(409, "duplicate", f"Already Exists: Job {reference['jobId']}")
        if self.before_job is not None and not dry:
            self.before_job(body)
        job = {
            "kind": "bigquery#job",
            "jobReference": reference,
            "configuration": body["configuration"],
            "status": {"state": "DONE"},
            "statistics": {"creationTime": "1714600000000", "startTime": "1714600000000"},
        }
        failed = self.failing_jobs.pop(0) if self.failing_jobs and not dry else None
        try:
            if failed is not None:
                raise _Wrong(*failed)
            if "query" in body["configuration"]:
                self._query(job, dry)
            else:
                self._load(body["configuration"]["load"], uploaded)
        except _Wrong as wrong:
            if dry:
                return error(404 if wrong.reason == "notFound" else 400, *wrong.args)
            why = {"reason": wrong.reason, "message": wrong.args[1]}
            job["status"] |= {"errorResult": why, "errors": [why]}
        if not dry:
            self.jobs[reference["jobId"]] = job
        return 200, job

    def _query(self, job, dry):
        fields, rows = self._selected(job["configuration"]["query"]["query"])
        statistics = {"schema": {"fields": fields}, "totalBytesProcessed": "1000"}
        job["statistics"] |= {"query": statistics, "totalBytesProcessed": "1000"}
        if dry:
            return
        into = {
            "projectId": job["jobReference"]["projectId"],
            "datasetId": "_anonymous",
            "tableId": f"anon{next(self.numbers)}",
        }
        job["configuration"]["query"]["destinationTable"] = into
        name = ".".join(into.values())
        self._make(name, {"fields": fields})
        self.rows[name] = rows

    def _results(self, job_id, asked):
        job = self.jobs.get(job_id)
        if job is None:
            return error(404, "notFound", f"Not found: Job {job_id}")
        wrong = job["status"].get("errorResult")
        if wrong:
            status = {"notFound": 404, "accessDenied": 403, "quotaExceeded": 403}
            status |= {"backendError": 503, "internalError": 500, "rateLimitExceeded": 403}
            return error(status.get(wrong["reason"], 400), wrong["reason"], wrong["message"])
        name = ".".join(job["configuration"]["query"]["destinationTable"].values())
        rows = {} if asked.get("maxResults") == "0" else self._listed(name, asked)[1]
        return 200, {
            **rows,
            "kind": "bigquery#getQueryResultsResponse",
            "jobReference": job["jobReference"],
            "jobComplete": True,
            "schema": self.schemas[name],
            "totalRows": str(len(self.rows[name])),
        }

    def _selected(self, sql):
        """Columns and rows of a query, by SQLite."""
        known = {}
        with sqlite3.connect(":memory:") as base:
            base.create_function("DATE", 1, lambda micros: str((EPOCH + _micros(micros)).date()))
            base.create_function("TIMESTAMP", 1, _literal)
            for name in dict.fromkeys(re.findall(r"`([^`]+[.][^`]+[.][^`]+)`", sql)):
                if name not in self.schemas:
                    raise _Wrong("notFound", f"Not found: Table {name}")
                fields = self.schemas[name]["fields"]
                known |= {field["name"]: field for field in fields}
                found = AS_OF.search(sql)
                rows = self.rows[name]
                if found and name in self.earlier:
                    until, before = self.earlier[name]
                    rows = before if _literal(found[1]) < until else rows
                columns = ", ".join(f'"{field["name"]}"' for field in fields)
                base.execute(f'CREATE TABLE "{name}" ({columns})')
                cells = [[_stored(row.get(field["name"])) for field in fields] for row in rows]
                marks = ", ".join("?" * len(fields))
                base.executemany(f'INSERT INTO "{name}" VALUES ({marks})', cells)
            plain = AS_OF.sub("", sql).replace("`", '"').replace("AS STRING", "AS TEXT")
            plain = re.sub(r"TIMESTAMP '([^']+)'", lambda found: str(_literal(found[1])), plain)
            plain = re.sub(r"(?:DATE|DATETIME) ('[^']+')", r"\1", plain)
            try:
                cursor = base.execute(plain)
            except sqlite3.Error as wrong:
                raise _Wrong("invalidQuery", f"Syntax error or unknown name: {wrong}") from None
            names, rows = [one[0] for one in cursor.description], cursor.fetchall()
        fields = []
        for at, name in enumerate(names):
            kinds = {type(row[at]) for row in rows} - {type(None)}
            kind = "FLOAT" if float in kinds else "INTEGER" if int in kinds else "STRING"
            fields.append(known.get(name) or {"name": name, "type": kind, "mode": "NULLABLE"})
        return fields, [dict(zip(names, row, strict=True)) for row in rows]

    def _make(self, name, schema):
        self.schemas[name], self.rows[name], self.inserted[name] = schema, [], set()

    def _table(self, name):
        project, dataset, table = name.split(".")
        reference = {"projectId": project, "datasetId": dataset, "tableId": table}
        return {
            "kind": "bigquery#table",
            "tableReference": reference,
            "schema": self.schemas[name],
            "numRows": str(len(self.rows[name])),
            "location": "US",
            "type": "TABLE",
        }

    def _insert(self, name, body):
        if self.before_insert is not None:
            self.before_insert()
            self.before_insert = None
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

    def _load(self, load, uploaded):
        into = load["destinationTable"]
        name = ".".join(into[part] for part in ("projectId", "datasetId", "tableId"))
        if ".".join((into["projectId"], into["datasetId"])) not in self.datasets:
            raise _Wrong("notFound", f"Not found: Dataset {into['projectId']}:{into['datasetId']}")
        if name not in self.schemas:
            self._make(name, load["schema"])
        known = {field["name"]: field for field in self.schemas[name]["fields"]}
        given = {field["name"]: field for field in load["schema"]["fields"]}
        added = set(given) - set(known)
        if added and "ALLOW_FIELD_ADDITION" not in load.get("schemaUpdateOptions", ()):
            raise _Wrong("invalid", f"Provided Schema does not match Table. Cannot add {added}")
        for column, field in {**given, **known}.items():
            mode = given.get(column, {}).get("mode")
            if mode != field["mode"] or (column in added and mode == "REQUIRED"):
                why = f"Field {column} is missing in new schema, or REQUIRED, or of another mode"
                raise _Wrong("invalid", f"Provided Schema does not match Table {name}. {why}")
        known |= {column: given[column] for column in given if column in added}
        texts = [uploaded] if uploaded is not None else map(self.files, load["sourceUris"])
        rows = [json.loads(line) for text in texts for line in text.splitlines()]
        wrong = next(filter(None, (_fault(known, row) for row in rows)), None)
        if wrong:
            raise _Wrong("invalid", f"no such field: {wrong}")
        self.schemas[name] = {"fields": list(known.values())}
        self.rows[name] += rows


class _Wrong(Exception):  # noqa: N818
    """Why a job fails: a reason and a message."""

    @property
    def reason(self):
        return self.args[0]


def _micros(number):
    return dt.timedelta(microseconds=number)


def _literal(text):
    found = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    found = found if found.tzinfo else found.replace(tzinfo=dt.timezone.utc)
    return (found - EPOCH) // _micros(1)


def _stored(value):
    """What SQLite keeps of a value."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return (value - EPOCH) // _micros(1)
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    return str(value) if isinstance(value, Decimal) else value


def _cell(value, field):
    """A cell of a row as the service writes it."""
    value = _stored(value)
    if value is None:
        return None
    if field["type"] in ("BOOLEAN", "BOOL"):
        return "true" if value else "false"
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
    return str(value)


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
    begun = {}
    """Of resumable uploads, what was said when they began."""

    def log_message(self, *_):
        pass

    def _any(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.headers.get("Content-Type", "")
        if "uploadType=resumable" in self.path and self.command == "POST":
            number = str(len(self.begun))
            self.begun[number] = json.loads(data)
            return self._send(
                200, b"{}", Location=f"{self.service.url}{self.path}&upload_id={number}"
            )
        if "upload_id=" in self.path:
            body = self.begun[self.path.rpartition("=")[2]], data
            self.command = "POST"
        elif kind.startswith("multipart/"):
            parts = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\n\n" + data)
            said, content = (one.get_payload(decode=True) for one in parts.get_payload())
            body = json.loads(said), content
        else:
            body = json.loads(data) if "json" in kind and data else None
        status, answer = self.service.answer(self.command, self.path, body)
        return self._send(status, json.dumps(answer).encode())

    def _send(self, status, content, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


for _method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._any)
