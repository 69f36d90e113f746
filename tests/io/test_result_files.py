"""Files of results that are made in this process: all of one block are whole, or none."""

from contextlib import ExitStack

import pyarrow as pa
import pytest

from streamveil.io import read_table
from streamveil.io.result_files import ResultFile
from streamveil.io.tables import TableForm
from streamveil.mechanisms import ConfigurationError

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def batch(numbers):
    return pa.RecordBatch.from_pydict({"n": list(numbers)}, SCHEMA)


FORM = TableForm(SCHEMA, batch, ("n",), batch=2)


def refuses(numbers):
    raise OSError(5, "Input/output error")


def filled(path, form=FORM):
    made = ResultFile(str(path), form)
    for number in (3, 1, 2):
        made.add(number)
    return made


def write(*some):
    with ExitStack() as block:
        for one in some:
            one.write(block)


def test_results_are_sorted_whatever_the_batches(tmp_path):
    write(filled(tmp_path / "one.csv"))
    assert read_table(str(tmp_path / "one.csv")).column("n").to_pylist() == [1, 2, 3]


def test_none_has_its_name_before_all_are_written(tmp_path):
    with ExitStack() as block:
        for name in ("one.csv", "two.csv"):
            filled(tmp_path / name).write(block)
            assert not (tmp_path / name).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"one.csv", "two.csv"}


def test_the_last_one_gets_its_name_first(tmp_path):
    block = ExitStack()
    filled(tmp_path / "one.csv").write(block)
    filled(tmp_path / "two.csv").write(block)
    (tmp_path / "one.csv").mkdir()  # so it cannot have the name
    with pytest.raises(OSError, match="one"):
        block.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.csv", "two.csv"]
    assert (tmp_path / "two.csv").is_file()


def test_what_cannot_be_written_leaves_nothing(tmp_path):
    made = ResultFile(str(tmp_path / "two.csv"), FORM._replace(convert=refuses))
    made.add(1)
    with pytest.raises(OSError, match="Input/output"):
        write(filled(tmp_path / "one.csv"), made)
    assert not list(tmp_path.iterdir())


def test_of_no_results_there_is_an_empty_file(tmp_path):
    write(ResultFile(str(tmp_path / "one.parquet"), FORM))
    assert read_table(str(tmp_path / "one.parquet")).num_rows == 0


def test_an_unknown_format_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="format"):
        ResultFile("out.xls", FORM)
