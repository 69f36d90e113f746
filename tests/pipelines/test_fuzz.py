"""Malformed inputs through the command: one line of refusal, or every event accounted for.

Never a traceback, never a message of several lines, and what was read is what was accepted and what
was rejected. A seeded few run always; the 2,000 with `-m slow`.
"""

import io
import json
from pathlib import Path
from random import Random

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

GOOD = {
    "events.csv": b"user,value,time\nu1,A,2024-01-01\nu2,B,2024-01-02\nu3,C,2024-01-03\n" * 3,
    "events.jsonl": b'{"user":"u1","value":"A","time":"2024-01-01"}\n' * 9,
    "domain.txt": b"A\nB\nC\n",
    "domain.csv": b"value,about\nA,x\nB,y\nC,z\n",
    "domain.json": b'["A", "B", "C"]',
    "domain.jsonl": b'{"value":"A"}\n{"value":"B"}\n',
    "requirements.csv": b"user,window,epsilon\nu1,1,1\nu2,2,0.5\nu3,3,1\n",
    "requirements.jsonl": b'{"user":"u1","window":1,"epsilon":1}\n' * 2,
    "budget.csv": b"category,epsilon\nA,1\nB,0.5\n",
}
PIECES = [
    b"",
    b"\n",
    b"\r",
    b'"',
    b",",
    b"\xff",
    b"\0",
    b"null",
    b"-1",
    b"1e999",
    b"[",
    b"{",
    b"NaN",
]
PIECES += [
    b"'",
    b"\xef\xbb\xbf",
    "é".encode(),
    b"0" * 30,
    b"true",
    b"\\ud800",
    b"x" * 5000,
    b";",
    b"\t",
]
FLAGS = {
    "slot": ["0d", "1", "x", "", "1d1d", "9" * 30 + "d", "-1d", "1\nd"],
    "start": ["today", "", "2024-02-30", "9" * 20, "2024-01-01\n"],
    "domain": [
        "A,,B",
        "edges:1",
        "edges:x,y",
        "grid:1",
        "grid:0,0,1,1,0,0",
        ",",
        "A,A",
        "edges:0,1e999",
    ],
    "default_requirement": ["1", "a,b,c", "1,1,-1", "nan,1,5", "1,inf,1", "1e400,1,1"],
    "time_zone": ["Mars", "../x", "\0", "a\nb"],
    "time_unit": ["h", ""],
    "max_contributions": ["0", "x", "-1", "1e3"],
    "allowed_lateness": ["1", "x", "-1s"],
    "noise_key": ["secret", "file:/none", "env:NONE_SUCH", "file:", "a,b@c", "file:x\ny"],
    "mechanism": ["pbaa", "", "pba:x=1", "adaptive:", "a\nb"],
    "delimiter": [";;", "", '"', "\n", "é"],
    "columns": ["", "a,,b", "a,a", ","],
    "shards": ["0", "x"],
    "adjacency": ["x"],
    "guarantee": ["x"],
    "value_column": ["", ",", "a,b,c", "value,value"],
    "user_column": ["", "__row__"],
    "windw": ["1"],
    "input": ["", "none-*.csv", "nowhere://x", "kafka:x", "a\nb.csv"],
    "output": ["", "x.txt", "kafka:x", "pubsub:x"],
    "end": ["x", "1970-01-01"],
}


def mutated(draw, data):
    """Some bytes changed, put in or left out."""
    for _ in range(draw.randint(1, 3)):
        at, to = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        if draw.random() < 0.6:
            to = min(to, at + draw.randrange(4))
        data = data[:at] + draw.choice(PIECES) + data[to:]
    return data


def checked(outcome):
    """A refusal is one line, and a run that ends tells of every event."""
    assert "Traceback" not in outcome.err + outcome.log, outcome
    if outcome.code:
        assert outcome.code in (2, 3), outcome
        lines = outcome.message.splitlines()
        assert len(lines) == 1, outcome.message
        assert lines[0].startswith("streamveil "), outcome.message
        return
    assert outcome.err == ""


def assert_all_counted(path):
    """Of every event that was read the summary tells what became of it; gives their number."""
    summary = json.loads(path.read_text(encoding="utf-8"))
    lost = sum(summary["rejected"].values()) + summary["late"] + summary["beyond_bound"]
    assert summary["read"] == summary["counted"] + lost, summary
    return summary["read"]


def run_once(toolbox, folder, **flags):
    """A run whose output is there already, so that it never comes to run: all else is checked."""
    job = toolbox.Job(folder)
    job.write("events.csv", GOOD["events.csv"])
    job.write("users.csv", GOOD["requirements.csv"])
    job.write("out.jsonl", b"there")
    checked(outcome := job(**flags))
    assert outcome.code == 2, outcome


def options(toolbox, folder, seeds):
    """Values of options that mean nothing."""
    for seed in seeds:
        draw = Random(seed)
        flags = {}
        for name in draw.sample(sorted(FLAGS), draw.randint(1, 2)):
            value = draw.choice(FLAGS[name])
            if draw.random() < 0.3:
                value = mutated(draw, value.encode()).decode(errors="replace").replace("\0", "")
            flags[name] = value
        run_once(toolbox, folder, **flags)
    return len(seeds)


def tables(toolbox, folder, seeds):
    """Public tables with some bytes changed."""
    for seed in seeds:
        draw = Random(seed)
        name = draw.choice([name for name in GOOD if not name.startswith("events")])
        job = toolbox.Job(folder)
        path = job.write(name, mutated(draw, GOOD[name]) or b"x")
        kind = name.split(".")[0]
        if kind != "budget":
            run_once(toolbox, folder, **{kind: path})
            continue
        arguments = ["--statistic=count", "--budget_column=value", f"--budget=table:{path}"]
        places = [f"--input={job.path('events.csv')}", f"--output={job.path('out.jsonl')}"]
        job.write("events.csv", GOOD["events.csv"])
        job.write("out.jsonl", b"there")
        checked(outcome := toolbox.run("per-record", *places, *arguments))
        assert outcome.code == 2, outcome
    return len(seeds)


def parquet_file(draw):
    text = [draw.choice([None, b"u1", b"\xff", b"A"]) for _ in range(20)]
    column = pa.array(text, pa.binary()).view(pa.string())
    sink = io.BytesIO()
    times = pa.array([draw.getrandbits(draw.choice([63, 50])) for _ in text]).view(
        pa.timestamp("us")
    )
    pq.write_table(pa.table({"user": column, "value": column, "time": times}), sink)
    return sink.getvalue()


def avro_file(draw):
    time = {"type": "long", "logicalType": "timestamp-micros"}
    fields = [{"name": n, "type": "string"} for n in ("user", "value")] + [
        {"name": "time", "type": time}
    ]
    rows = [
        {
            "user": draw.choice(["u1", "", "x"]),
            "value": "A",
            "time": draw.choice([2**62, 1704067200000000]),
        }
        for _ in range(20)
    ]
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "R", "fields": fields}, rows)
    return sink.getvalue()


def files(toolbox, folder, seeds):
    """Files of events with some bytes changed: each may stop a run, so each has one."""
    for seed in seeds:
        draw = Random(seed)
        kind = draw.choice(["csv", "jsonl", "parquet", "avro"])
        made = {"parquet": parquet_file, "avro": avro_file}.get(kind)
        data = mutated(draw, made(draw) if made else GOOD[f"events.{kind}"])
        job = toolbox.Job(folder / str(seed))
        job.folder.mkdir()
        job.write("users.csv", GOOD["requirements.csv"])
        path = job.write(f"events.{kind}", data)
        summary = Path(job.path("summary.json"))
        range_ = {"start": "2024-01-01", "end": "2024-01-04"}
        checked(job(input=path, summary=str(summary), **range_))
        if summary.exists():
            assert_all_counted(summary)
    return len(seeds)


def rows(toolbox, folder, number):
    """Malformed records, some thousand in a run over many files."""
    job = toolbox.Job(folder)
    job.write("users.csv", GOOD["requirements.csv"])
    draw = Random(number)
    lines, objects = [], []
    for _ in range(number // 2):
        line = mutated(draw, b"u1,A,2024-01-01").replace(b"\n", b"")
        lines.append(line if line.strip() else b"x")
        made = mutated(draw, b'{"user":"u1","value":"A","time":"2024-01-01"}').replace(b"\n", b"")
        objects.append(made if made.strip() else b"x")
    share = max(1, len(lines) // 5)
    for at in range(0, len(lines), share):
        job.write(f"in{at}.csv", b"user,value,time\n" + b"\n".join(lines[at : at + share]) + b"\n")
        whole = b'{"user":"u1","value":"A","time":"2024-01-01"}\n'
        job.write(f"in{at}.jsonl", whole + b"\n".join(objects[at : at + share]) + b"\n")
    for name, made in (("in.parquet", parquet_file), ("in.avro", avro_file)):
        job.write(name, made(draw))
    outcome = job(
        input=job.path("in*"),
        rejected=job.path("letters.jsonl"),
        start="2024-01-01",
        end="2024-01-04",
        summary=job.path("summary.json"),
        max_rejected="1",
    )
    assert outcome.code == 0, outcome
    checked(outcome)
    letters = (folder / "letters.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(json.loads(line)["reason"] for line in letters)
    read = assert_all_counted(folder / "summary.json")
    assert len(letters) > number // 3
    return read


def test_a_few_malformed_inputs(toolbox, tmp_path):
    kinds = {
        "options": (options, range(25)),
        "tables": (tables, range(25)),
        "files": (files, range(3)),
    }
    for name, (kind, seeds) in kinds.items():
        folder = tmp_path / name
        folder.mkdir()
        kind(toolbox, folder, seeds)
    (tmp_path / "rows").mkdir()
    assert rows(toolbox, tmp_path / "rows", 300) > 250


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [(options, range(1000, 1500)), (tables, range(2000, 2500)), (files, range(3000, 3060))],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_thousand_malformed_inputs(toolbox, tmp_path, kind, seeds):
    assert kind(toolbox, tmp_path, seeds) == len(seeds)


@pytest.mark.slow
def test_a_thousand_malformed_records(toolbox, tmp_path):
    assert rows(toolbox, tmp_path, 1000) > 900
