"""Reading changes of requirements from files of every format, without looking at the rows."""

import json
import pickle

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.io import change_columns, requirement_changes_of
from streamveil.mechanisms import ConfigurationError

FIGURES = ("window_backward", "epsilon_backward", "window_forward", "epsilon_forward")
ROWS = [
    {"user": "ann", "slot": 3, **dict(zip(FIGURES, (7, 1.0, 3, 0.5), strict=True))},
    {"user": "bob", "slot": 4, **dict.fromkeys(FIGURES)},
]


def write(path, rows=ROWS):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        lines = [",".join(rows[0])]
        lines += [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(pipeline, pattern, folder):
    """Batches and dead letters."""

    def note(name):
        def append(batch):
            with (folder / name).open("ab") as file:
                pickle.dump(batch, file)

        return append

    outputs = pipeline | requirement_changes_of(pattern)
    outputs.batches | "Note batches" >> beam.Map(note("batches"))
    outputs.rejected | "Note rejected" >> beam.Map(note("rejected"))
    pipeline.run().wait_until_finish()
    found = []
    for name in ("batches", "rejected"):
        rows = []
        if (folder / name).exists():
            with (folder / name).open("rb") as file:
                while file.peek():
                    rows += pickle.load(file).to_pylist()
        found.append(rows)
    return found


@pytest.mark.parametrize("name", ["c.parquet", "c.csv", "c.jsonl"])
def test_all_formats_give_the_columns(tmp_path, new_pipeline, name):
    path = write(tmp_path / name)
    assert change_columns(path) == ("user", "slot", *FIGURES)
    rows, rejected = read(new_pipeline(), path, tmp_path)
    assert [(row["user"], int(row["slot"])) for row in rows] == [("ann", 3), ("bob", 4)]
    assert [float(rows[0][figure]) for figure in FIGURES] == [7, 1.0, 3, 0.5]
    assert not any(rows[1][figure] for figure in FIGURES)
    assert rejected == []


# A line that is no row is a dead letter.
def test_an_unparsable_line_stops_nothing(tmp_path, new_pipeline):
    path = write(tmp_path / "c.csv")
    with open(path, "a") as file:
        file.write("eve,5\n")
    rows, (letter,) = read(new_pipeline(), path, tmp_path)
    assert len(rows) == 2
    assert (letter["source"], letter["row"], letter["reason"]) == (path, 4, "unparsable")


def test_slot_or_time_or_both(tmp_path):
    timed = [{**row, "time": None} for row in ROWS]
    assert change_columns(write(tmp_path / "both.jsonl", timed))[:3] == ("user", "slot", "time")
    only = [{k: v for k, v in row.items() if k != "slot"} for row in timed]
    assert change_columns(write(tmp_path / "time.jsonl", only))[:2] == ("user", "time")
    write(tmp_path / "slot.jsonl")
    with pytest.raises(ConfigurationError, match=r"slot.jsonl and .*time.jsonl .*alike"):
        change_columns(str(tmp_path / "[st]*.jsonl"))


@pytest.mark.parametrize("missing", ["user", "slot", *FIGURES])
def test_a_missing_column_or_file_is_named(tmp_path, missing):
    rows = [{k: v for k, v in row.items() if k != missing} for row in ROWS]
    with pytest.raises(ConfigurationError, match=rf"c.csv: the file has no column '{missing}'"):
        requirement_changes_of(write(tmp_path / "c.csv", rows))
    with pytest.raises(ConfigurationError, match="no file matches"):
        requirement_changes_of(str(tmp_path / "d.csv"))


def test_a_broker_gives_all_columns():
    source = requirement_changes_of("pubsub:projects/project/subscriptions/some")
    assert tuple(source.columns) == ("user", "slot", "time", *FIGURES)
    with pytest.raises(ConfigurationError, match="--requirement_changes=kafka:nowhere"):
        requirement_changes_of("kafka:nowhere")
