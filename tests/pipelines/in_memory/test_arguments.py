"""What a call takes, and how it refuses the rest: one line with argument, value and remedy."""

import datetime as dt
import errno
import inspect
import logging
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest

import streamveil as sv
from streamveil.mechanisms.core.records import MachineFault
from streamveil.pipelines.in_memory.keyword_arguments import COLUMNS
from streamveil.pipelines.options.command_table import COMMANDS
from tests.calls import arguments

KEY = bytes(range(32))


class Foreign:
    """A table of a library that nobody here knows, but for the PyCapsule interface."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class ForeignBatch:
    """A record batch of such a library."""

    def __init__(self, batch):
        self._batch = batch

    def __arrow_c_array__(self, requested_schema=None):
        return self._batch.__arrow_c_array__(requested_schema)


@pytest.fixture
def table(job):
    return pyarrow.csv.read_csv(job.path("events.csv"))


def views(table):
    """The same with text as Polars has it."""
    return table.set_column(0, "user", table["user"].cast(pa.string_view()))


DATA = {
    "pandas": pa.Table.to_pandas,
    "categories of pandas": lambda table: table.to_pandas().astype({"value": "category"}),
    "arrow": lambda table: table,
    "a batch": lambda table: table.combine_chunks().to_batches()[0],
    "batches": pa.Table.to_batches,
    "a reader": lambda table: pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
    "views": views,
    "foreign": Foreign,
    "a foreign batch": lambda table: ForeignBatch(table.combine_chunks().to_batches()[0]),
    "more columns": lambda table: table.append_column("note", pa.nulls(len(table))),
}


@pytest.mark.many
@pytest.mark.parametrize("kind", DATA)
def test_data_of_every_kind_is_counted_alike(table, asked, kind):
    asked |= {"noise_key": KEY}
    expected = sv.release(table, **asked)
    found = sv.release(DATA[kind](table), **asked)
    assert found.to_arrow().equals(expected.to_arrow())
    assert found.summary == expected.summary


def test_a_path_and_a_glob(job, asked, table):
    expected = sv.release(table, **asked).to_arrow()
    assert sv.release(Path(job.path("events.csv")), **asked).to_arrow().equals(expected)
    assert sv.release(job.path("ev*.csv"), **asked).to_arrow().equals(expected)


REQUIREMENTS = {
    "pandas": pd.DataFrame,
    "arrow": lambda columns: pa.table(columns),
    "foreign": lambda columns: Foreign(pa.table(columns)),
    "a mapping": lambda columns: {
        user: (window, epsilon) for user, window, epsilon in zip(*columns.values(), strict=True)
    },
    "a registry": lambda columns: sv.Registry.of(
        {
            user: sv.Requirement(window, epsilon)
            for user, window, epsilon in zip(*columns.values(), strict=True)
        }
    ),
}


@pytest.mark.parametrize("kind", REQUIREMENTS)
def test_requirements_of_every_kind_are_those_of_the_file(job, asked, table, kind):
    rows = pyarrow.csv.read_csv(job.path("users.csv")).to_pydict()
    expected = sv.release(table, **asked)
    found = sv.release(table, **{**asked, "requirements": REQUIREMENTS[kind](rows)})
    assert found.to_arrow().equals(expected.to_arrow())
    assert found.ledger.equals(expected.ledger)


SAME = {
    "slot": dt.timedelta(days=1),
    "domain": ("A", "B", "C"),
    "start": dt.datetime(2024, 1, 1),
    "end": dt.date(2024, 1, 9),
    "max_contributions": np.int64(1),
    "default_requirement": (3, 0.5, 10),
}


def test_values_of_python_are_as_their_text(asked, table):
    text = {
        **{"slot": "1d", "domain": "A,B,C", "start": "2024-01-01", "end": "2024-01-09"},
        **{"max_contributions": 1, "default_requirement": "3,0.5,10"},
    }
    found = sv.release(table, **arguments({**asked, **SAME}))
    assert found.to_arrow().equals(sv.release(table, **arguments({**asked, **text})).to_arrow())


@pytest.mark.parametrize(
    "domain",
    [
        pd.Series(["A", "B", "C"]),
        np.array(["A", "B", "C"]),
        pa.array(["A", "B", "C"]),
        sv.Categories(("A", "B", "C")),
    ],
)
def test_a_domain_of_every_kind(asked, table, domain):
    expected = sv.release(table, **asked).to_arrow()
    assert sv.release(table, **{**asked, "domain": domain}).to_arrow().equals(expected)


def test_bytes_of_a_key_are_as_a_file_of_them(job, asked, table):
    place = job.key(KEY, "other")
    found = sv.release(table, **{**asked, "noise_key": KEY})
    assert found.to_arrow().equals(sv.release(table, **{**asked, "noise_key": place}).to_arrow())


def test_changes_in_memory_are_as_a_file_of_them(job, asked, table):
    text = (
        "user,slot,window_backward,epsilon_backward,window_forward,epsilon_forward\n"
        "u1,19724,2,0.5,2,0.5\nu2,19727,,,,\n"
    )
    path = job.write("changes.csv", text)
    asked |= {"start": "2024-01-01", "end": "2024-01-09"}
    expected = sv.release(table, **asked, requirement_changes=path)
    changes = pyarrow.csv.read_csv(path)
    found = sv.release(table, **asked, requirement_changes=changes)
    assert found.ledger.equals(expected.ledger)
    assert found.ledger.column_names[1] == "window_backward"


@pytest.mark.parametrize("function", [sv.release, sv.collect, sv.per_record])
def test_arguments_are_options_of_the_command_with_its_defaults(function):
    command = COMMANDS[function.__name__.replace("_", "-")]
    usual = command.defaults
    named = inspect.signature(function).parameters
    defaults = {name: each.default for name, each in named.items()}
    if defaults.pop("run", None) is not None:
        defaults |= vars(sv.RunOptions())
    for name, default in defaults.items():
        if name not in ("data", "queries") and default is not inspect.Parameter.empty:
            assert default == usual[COLUMNS.get(name, name)], name


def test_a_release_has_few_arguments_and_help_that_explains_each():
    named = inspect.signature(sv.release).parameters
    assert len(named) <= 21
    for name in named:
        assert f"\n        {name}: " in sv.release.__doc__.replace("*", ""), name
    fields = inspect.getsource(sv.RunOptions)
    for name in vars(sv.RunOptions()):
        assert re.search(rf"^    {name}: .*\n    \"\"\"", fields, re.M), name


REFUSED = {
    "a slot": ({"slot": "1x"}, ["'1x'", "write 1w, 1d"]),
    "a timedelta": ({"slot": dt.timedelta(microseconds=5)}, ["0:00:00.000005", "write 1w, 1d"]),
    "a mechanism": ({"mechanism": "pbe"}, ["'pbe'", "choose one of", "pbd"]),
    "a domain": ({"domain": 3}, ["domain is 3", "give a list"]),
    "a start": ({"start": "May"}, ["start: time 'May'", "write 2024-03-31"]),
    "no requirements": ({"requirements": None}, ["requirements is missing", "budget=1/7d"]),
    "a column": ({"user": "who"}, ["data: the table has no column 'who'", "'user'"]),
    "two columns": ({"user": ["user", "value"]}, ["user names 2 columns", "join them into one"]),
    "a number": ({"max_contributions": 1.5}, ["max_contributions=1.5", "such as 2"]),
    "a choice": ({"guarantee": "none"}, ["guarantee", "'none'", "w-event"]),
    "a key": ({"noise_key": "hunter2"}, ["noise_key is not the key", "file:PATH"]),
    "a key of nothing": ({"noise_key": ""}, ["noise_key is empty", "file:PATH", "leave it out"]),
    "a delimiter of a table": ({"delimiter": ";"}, ["delimiter", "data is a table"]),
    "columns of a table": ({"columns": ["user", "x"]}, ["columns", "data is a table"]),
    "a short key": ({"noise_key": b"hunter2"}, ["7 bytes", "needs 32"]),
    "a budget": ({"epsilon": 1}, ["epsilon=1", "write budget=1/7d"]),
    "a bin for others": (
        {"domain": sv.Categories(("A", "B")), "other": "A"},
        ["'A'"],
    ),
    "requirements of another kind": ({"requirements": 3}, ["requirements is 3", "a mapping"]),
    "columns of requirements": (
        {"requirements": pa.table({"user": ["u1"], "epsilon": [1.0]})},
        ["requirements: the table has no column 'window'"],
    ),
    "a row of requirements": (
        {"requirements": pa.table({"user": ["u1"], "window": [0], "epsilon": [1.0]})},
        ["requirements: row 0: window 0 is not a whole number"],
    ),
    "a default of a registry": (
        {"requirements": {"u1": (1, 1.0)}, "default_requirement": "1,1,5"},
        ["default_requirement=1,1,5 is for a table"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_reported_in_one_line(asked, table, case):
    more, words = REFUSED[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        sv.release(table, **arguments({**asked, **more}))
    message = str(caught.value)
    assert isinstance(caught.value, sv.ConfigurationError)
    assert caught.value.__suppress_context__  # else it is printed twice, first in other words
    assert "\n" not in message
    assert "hunter2" not in message
    assert "--" not in message
    assert not [word for word in words if word not in message], message


@pytest.mark.parametrize("data", [3, None, [], [3], {"user": ["u1"]}])
def test_data_of_another_type_is_a_type_error(asked, data):
    with pytest.raises(TypeError, match=r"data is of type .*: give a path, a glob, a table"):
        sv.release(data, **asked)


def test_a_plan_of_a_table_is_to_be_collected(asked):
    class LazyFrame:
        def collect(self):
            raise AssertionError("nobody asked for it")

    with pytest.raises(TypeError, match=r"data is of type LazyFrame: collect it first"):
        sv.release(LazyFrame(), **asked)


def test_a_key_of_another_type_is_a_type_error_that_does_not_show_it(asked, table):
    with pytest.raises(TypeError, match="noise_key is of type int: give file:PATH") as caught:
        sv.release(table, **{**asked, "noise_key": 1234567})
    assert "1234567" not in str(caught.value)


def test_what_a_user_wrote_stays_as_it_is(asked, table):
    with pytest.raises(sv.ConfigurationError, match=r"^start: time '--slot' ") as caught:
        sv.release(table, **{**asked, "start": "--slot"})
    assert "--start" not in str(caught.value)


def test_what_is_for_the_command_alone_keeps_its_dashes(asked, table):
    with pytest.raises(sv.ConfigurationError, match=r"=3 .*requirement_changes or --"):
        sv.release(table, **asked, run=sv.RunOptions(longest_window=3))


@pytest.mark.parametrize(
    "data",
    [
        pa.array(["u1", "u2"]),
        pd.DataFrame({"user": np.array([1j]), "value": "A", "time": "2024-01-01"}),
        [pa.record_batch({"user": ["u1"]}), pa.record_batch({"value": ["A"]})],
    ],
)
def test_what_is_no_table_of_arrow_is_refused(asked, data):
    with pytest.raises(sv.ConfigurationError, match="data cannot be read as a table of Arrow"):
        sv.release(data, **asked)


def test_a_stream_that_a_person_interrupts_is_no_fault_of_the_data(asked, table):
    def batches():
        yield from table.to_batches()
        raise KeyboardInterrupt

    broken = pa.RecordBatchReader.from_batches(table.schema, batches())
    with pytest.raises(KeyboardInterrupt):
        sv.release(broken, **asked)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            ConnectionResetError("reset\nby the server"),
            "reset by the server: fix that",
        ),
        (OSError(errno.EIO, "a disk"), "a disk: fix that, open it anew"),
        (ValueError("no more"), "no more: fix that, open it anew"),
        (MemoryError("a batch"), "out of memory: give the run more memory"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_stream_that_breaks_off_is_not_released(asked, table, fault, said):
    def batches():
        yield from table.to_batches()
        raise fault

    broken = pa.RecordBatchReader.from_batches(table.schema, batches())
    with pytest.raises(MachineFault, match=said) as caught:
        sv.release(broken, **asked)
    assert str(caught.value).startswith("data could not be read to its end: ")
    assert str(caught.value).endswith(", and run it again")
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert type(fault).__name__ in str(caught.value.__cause__)


@pytest.mark.parametrize("limits", [{}, {"u1": 2}])
def test_limits_are_no_mapping(asked, table, limits):
    with pytest.raises(sv.ConfigurationError) as caught:
        sv.release(table, **asked, max_slots=limits)
    assert str(caught.value) == (
        f"max_slots is {limits}, of type dict: give a number of slots, such as 3, or 'auto'; "
        "limits of some users are a column max_slots of the requirements"
    )


def test_a_value_that_is_no_text_is_a_type_error(asked, table):
    with pytest.raises(TypeError, match=r"start is .* of type set"):
        sv.release(table, **asked, start={1})


def test_a_stream_has_no_end(asked):
    with pytest.raises(sv.ConfigurationError, match=r"data=watch:\*\.csv is unbounded"):
        sv.release("watch:*.csv", **asked)


def test_an_input_that_is_mostly_lost_is_not_released(asked, table):
    with pytest.raises(sv.InputLost, match="nothing is released") as caught:
        sv.release(table, **{**asked, "domain": ["a", "b"]})
    assert "max_rejected=1" in str(caught.value)
    assert "--max_rejected" not in str(caught.value)


def test_events_that_are_not_counted_are_warned_of(asked, table, caplog):
    with caplog.at_level(logging.WARNING, "streamveil"):
        found = sv.release(table, **asked)
    assert found.summary["rejected"] == {"no requirement": 26, "outside the domain": 62}
    assert ".rejected says why" in caplog.text
    assert "give its start and end" in caplog.text
    assert len(found.rejected) == 88
    letter = found.rejected.slice(0, 1).to_pylist()[0]
    assert letter["source"] == "data"
    assert table.slice(letter["row"], 1).to_pylist()[0]["user"] in letter["record"]


def test_much_beyond_the_bound_is_warned_of(asked, table, caplog):
    one = table.filter(pa.compute.equal(table["user"], "u1"))
    many = pa.concat_tables([one] * 5)
    with caplog.at_level(logging.WARNING, "streamveil"):
        sv.release(
            many,
            **{**asked, "domain": ["A", "B", "C", "X"]},
            run=sv.RunOptions(max_rejected=1.0),
        )
    assert "were dropped by the bound of max_contributions" in caplog.text


def test_a_row_that_cannot_be_read_is_a_dead_letter(asked, table):
    bad = pa.array([b"u1", b"\xff"], pa.binary()).view(pa.string())
    rows = pa.table({"user": bad, "value": ["A", "A"], "time": table["time"][:2]})
    found = sv.release(rows, **asked)
    assert found.summary["rejected"] == {"not UTF-8": 1}
    assert found.rejected["row"].to_pylist() == [1]
