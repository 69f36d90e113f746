import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.io import read_requirements, requirements_of, write_table
from streamveil.mechanisms.core.arguments import registry_of
from streamveil.mechanisms.core.records import MAX_EPSILON, ConfigurationError, Requirement

USERS = ["ann", "bob", "007", "zoé", "bob"]
WINDOWS = [3, 5, 3, 1, 5]
EPSILONS = [0.5, 1.0, 0.5, 2.0, 1.0]
GOOD = "user,window,epsilon\nann,3,0.5\n"


def save(path, users=USERS, windows=WINDOWS, epsilons=EPSILONS):
    if not users:
        users, windows, epsilons = pa.array([], "string"), pa.array([], "int64"), pa.array([], "f8")
    table = pa.table({"epsilon": epsilons, "user": users, "window": windows})
    write_table(str(path), table.schema, table.to_batches())
    return str(path)


@pytest.mark.parametrize("kind", ["parquet", "avro", "csv", "jsonl"])
def test_every_format_gives_the_same_registry(tmp_path, kind):
    registry = read_requirements(save(tmp_path / f"r.{kind}"))
    assert isinstance(registry.users, pa.StringArray)
    assert registry.users.to_pylist() == ["ann", "bob", "007", "zoé"]
    assert registry.classes == (Requirement(1, 2.0), Requirement(3, 0.5), Requirement(5, 1.0))
    assert registry.class_of.tolist() == [1, 2, 1, 0]
    assert registry.sizes.tolist() == [1, 2, 1]


def test_integer_users_repeated_text_and_several_files(tmp_path):
    save(tmp_path / "a.jsonl", [7, 8], [1, 1], [1, 1.5])
    save(tmp_path / "b.parquet", ["x"] * 5000 + ["8"], [2] * 5000 + [1], [3.0] * 5000 + [1.5])
    registry = read_requirements(str(tmp_path / "*"), default=(Requirement(9, 1), 10))
    assert registry.users.to_pylist() == ["7", "8", "x"]
    assert registry.sizes.tolist() == [1, 1, 1, 10]
    assert registry.default_class == 3


def test_pickled_it_is_the_way_to_read_it_again(tmp_path):
    path = save(tmp_path / "r.csv")
    registry = read_requirements(path, default=(Requirement(9, 1), 10))
    data = pickle.dumps(registry)
    assert len(data) < 1_000
    assert pickle.loads(data) is registry
    reload, fingerprint = registry.reload, registry.fingerprint
    del registry
    again = pickle.loads(data)
    assert (again.fingerprint, again.reload) == (fingerprint, reload)
    assert again.users.to_pylist() == ["ann", "bob", "007", "zoé"]


@pytest.mark.parametrize("change", [{"users": ["amy", *USERS[1:]]}, {"epsilons": [0.25] * 5}])
def test_a_table_that_changed_is_noticed(tmp_path, change):
    registry = read_requirements(save(tmp_path / "r.csv"))
    data = pickle.dumps(registry)
    save(tmp_path / "r.csv", **change)
    del registry
    with pytest.raises(ConfigurationError, match="changed after the pipeline was built"):
        pickle.loads(data)


def test_an_empty_table_needs_a_default(tmp_path):
    for kind in ("csv", "parquet", "avro"):
        path = save(tmp_path / f"r.{kind}", [], [], [])
        with pytest.raises(ConfigurationError, match=r"r\.\w+: .* no rows"):
            read_requirements(path)
        registry = read_requirements(path, default=(Requirement(2, 1), 5))
        assert (len(registry.users), registry.sizes.tolist()) == (0, [5])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (",1,1", ["line 3", "user", "missing"]),
        ('"",1,1', ["line 3", "user ''", "empty"]),
        ("bob,,1", ["line 3", "window", "missing"]),
        ("bob,1,", ["line 3", "epsilon", "missing"]),
        ("bob,0,1", ["line 3", "window '0'", "whole number"]),
        ("bob,-1,1", ["line 3", "window '-1'", "whole number"]),
        ("bob,1.5,1", ["line 3", "window '1.5'", "whole number"]),
        ("bob,2147483648,1", ["line 3", "window '2147483648'", "whole number"]),
        ("bob,one,1", ["line 3", "window 'one'", "not a number"]),
        ("bob,1,0", ["line 3", "epsilon '0'", "above 0"]),
        ("bob,1,-0.5", ["line 3", "epsilon '-0.5'", "above 0"]),
        ("bob,1,nan", ["line 3", "epsilon 'nan'", "not a number"]),
        ("bob,1,inf", ["line 3", "epsilon 'inf'", "not a finite number"]),
        ("bob,1,1e999", ["line 3", "epsilon '1e999'", "above 0 and at most"]),
        (f"bob,1,{MAX_EPSILON + 1}", ["line 3", "at most", f"{MAX_EPSILON:g}"]),
        ("bob,1", ["line 3", "cannot be parsed", "'bob,1'"]),
        ("ann,3,0.25", ["'ann'", "line 2", "line 3", "0.5", "0.25", "keep one"]),
    ],
)
def test_a_bad_row_is_named(tmp_path, line, words):
    (tmp_path / "r.csv").write_text(GOOD + line + "\n")
    with pytest.raises(ConfigurationError) as error:
        read_requirements(str(tmp_path / "r.csv"))
    for word in [str(tmp_path / "r.csv"), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("user", [1.5, 2.0], ["column 'user'", "double", "text or an integer"]),
        ("user", [True, False], ["column 'user'", "bool"]),
        ("user", ["a", None], ["row 1", "user", "missing"]),
        ("window", [True, False], ["column 'window'", "bool", "a number"]),
        ("window", [1, None], ["row 1", "window", "missing"]),
        ("window", [1.0, 1.5], ["row 1", "window 1.5"]),
        ("epsilon", [1.0, np.nan], ["row 1", "epsilon nan", "above 0"]),
        ("epsilon", [1.0, np.inf], ["row 1", "epsilon inf", "at most"]),
        ("epsilon", [[1.0], [2.0]], ["column 'epsilon'", "list"]),
    ],
)
def test_a_bad_column_is_named(tmp_path, column, values, words):
    table = {"user": ["a", "b"], "window": [1, 1], "epsilon": [1.0, 1.0], column: values}
    path = str(tmp_path / "r.parquet")
    pq.write_table(pa.table(table), path)
    with pytest.raises(ConfigurationError) as error:
        read_requirements(path)
    for word in [path, *words]:
        assert word in str(error.value)


def test_a_missing_column_or_file_is_named(tmp_path):
    (tmp_path / "r.csv").write_text("user,epsilon\na,1\n")
    with pytest.raises(ConfigurationError, match="no column 'window'"):
        read_requirements(str(tmp_path / "r.csv"))
    with pytest.raises(ConfigurationError, match="no file matches"):
        read_requirements(str(tmp_path / "s.csv"))


def test_columns_may_have_other_names(tmp_path):
    path = tmp_path / "wishes.csv"
    path.write_text("id,user,days,eps\n01,x,7,1.0\n2,y,3,0.5\n")
    names = ("id", "days", "eps")
    registry = read_requirements(str(path), columns=names)
    assert registry.users.to_pylist() == ["01", "2"]
    assert [(r.window, r.epsilon) for r in registry.classes] == [(3, 0.5), (7, 1.0)]
    again = pickle.loads(pickle.dumps(registry))
    assert again.fingerprint == registry.fingerprint
    path.write_text("id,user,days,eps\n1,x,7,inf\n")
    with pytest.raises(ConfigurationError, match="line 2: eps 'inf' is not a finite number"):
        read_requirements(str(path), columns=names)
    with pytest.raises(ConfigurationError, match="'user'"):
        read_requirements(str(tmp_path / "wishes.csv"), columns=("id", "window", "epsilon"))


# ---- participation limits --------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "avro", "csv", "jsonl"])
def test_a_column_of_limits_is_read_where_there_is_one(tmp_path, kind):
    table = pa.table(
        {
            "user": ["ann", "bob", "cy", "dan"],
            "window": [30, 30, 30, 7],
            "epsilon": [1.0, 1.0, 1.0, 1.0],
            "max_slots": pa.array([3, None, 3, None], pa.int64()),
        }
    )
    path = str(tmp_path / f"r.{kind}")
    write_table(path, table.schema, table.to_batches())
    default = (Requirement(30, 1.0), 5)
    registry = read_requirements(path, default=default)
    assert registry.classes == (Requirement(7, 1.0), Requirement(30, 1.0), Requirement(30, 1.0))
    assert registry.max_slots == (None, None, 3)
    assert registry.class_of.tolist() == [2, 1, 2, 0]
    assert registry.sizes.tolist() == [1, 6, 2]
    assert registry.default_class == 1  # who is not in the table has no limit of their own
    assert read_requirements(path, columns=("user", "window", "epsilon", "max_slots")) is not None
    for same in (requirements_of(table, default=default), pickle.loads(pickle.dumps(registry))):
        assert same.fingerprint == registry.fingerprint
    without = requirements_of(table.drop_columns("max_slots"), default=default)
    assert (without.max_slots, len(without.classes)) == ((), 2)
    assert without.fingerprint != registry.fingerprint


def test_a_column_of_blanks_says_nothing(tmp_path):
    (tmp_path / "a.csv").write_text("user,window,epsilon,max_slots\nann,3,0.5,\nbob,3,0.5, \n")
    registry = read_requirements(str(tmp_path / "a.csv"))
    assert registry.max_slots == ()
    (tmp_path / "b.csv").write_text("user,window,epsilon\nann,3,0.5\nbob,3,0.5\n")
    assert registry.fingerprint == read_requirements(str(tmp_path / "b.csv")).fingerprint


def test_it_may_have_another_name_which_must_then_be_there(tmp_path):
    (tmp_path / "a.csv").write_text("id,days,eps,visits,max_slots\nann,30,0.5,2,x\n")
    registry = read_requirements(str(tmp_path / "a.csv"), columns=("id", "days", "eps", "visits"))
    assert registry.max_slots == (2,)
    with pytest.raises(ConfigurationError, match="limit"):
        read_requirements(str(tmp_path / "a.csv"), columns=("id", "days", "eps", "limit"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0", "max_slots '0' is not a whole number of slots from 1 to 1048576: write one"),
        ("-1", "max_slots '-1' is not a whole number of slots"),
        ("1.5", "max_slots '1.5' is not a whole number of slots"),
        ("x", "max_slots 'x' is not a number"),
        ("inf", "max_slots 'inf' is not a finite number"),
        ("1e9", "max_slots '1e9' is not a whole number of slots from 1 to"),
        ('"3,4"', "max_slots '3,4' is not a number"),
    ],
)
def test_what_is_no_limit_is_refused(tmp_path, value, said):
    path = tmp_path / "r.csv"
    path.write_text(f"user,window,epsilon,max_slots\nbob,9,1,\nann,9,1,{value}\n")
    with pytest.raises(ConfigurationError, match=rf"r.csv: line 3: {said}"):
        read_requirements(str(path))


def test_the_users_of_a_class_are_named_with_their_place(tmp_path):
    for name, rows in (("r1", "bob,9,1,\n"), ("r2", "cid,9,1,\nann,30,1,2\n")):
        (tmp_path / f"{name}.csv").write_text(f"user,window,epsilon,max_slots\n{rows}")
    registry = read_requirements(str(tmp_path / "r*.csv"))
    k = registry.max_slots.index(2)
    assert registry.named(k).startswith(f"{tmp_path}/r2.csv: line 3: user 'ann' and whoever")


def test_a_user_with_two_limits_is_refused(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("user,window,epsilon,max_slots\nann,9,1,2\nann,9,1,\n")
    with pytest.raises(ConfigurationError, match=r"max_slots 2 in .* line 2 and .* in .* line 3"):
        read_requirements(str(path))


# ---- delta ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_deltas_are_read_and_part_classes(tmp_path, kind):
    table = pa.table(
        {
            "user": ["ann", "bob", "cy", "dan", "eve"],
            "window": [30, 30, 30, 7, 30],
            "epsilon": [1.0, 1.0, 1.0, 1.0, 1.0],
            "delta": [1e-9, None, 0.0, None, 1e-9],
        }
    )
    path = str(tmp_path / f"r.{kind}")
    write_table(path, table.schema, table.to_batches())
    default = (Requirement(30, 1.0), 5)
    registry = read_requirements(path, default=default)
    assert registry.classes == (Requirement(7, 1.0), *[Requirement(30, 1.0)] * 3)
    assert registry.deltas == (None, None, 0.0, 1e-9)
    assert registry.class_of.tolist() == [3, 1, 2, 0, 3]
    assert registry.sizes.tolist() == [1, 6, 1, 2]
    assert registry.default_class == 1  # the delta of the run applies to users outside the table
    assert registry.deltas_or(1e-6) == (1e-6, 1e-6, 0.0, 1e-9)
    for same in (requirements_of(table, default=default), pickle.loads(pickle.dumps(registry))):
        assert same.fingerprint == registry.fingerprint
        assert same.deltas == registry.deltas
    plain = requirements_of(table.drop_columns("delta"), default=default)
    assert plain.fingerprint != registry.fingerprint
    without = registry.without_deltas()
    for same in (without, pickle.loads(pickle.dumps(without)), plain.without_deltas()):
        assert same.fingerprint == plain.fingerprint
        assert same.deltas == ()


def test_deltas_and_limits_may_both_be_there_under_any_names(tmp_path):
    path = str(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("delta,id,days,eps,visits\n1e-9,ann,30,0.5,2\n,bob,30,0.5,2\n")
    registry = read_requirements(path, columns=("id", "days", "eps", "visits"))
    assert (registry.max_slots, registry.deltas) == ((2, 2), (None, 1e-9))
    assert registry.without_deltas().max_slots == (2,)
    limits = read_requirements(path, columns=("id", "days", "eps", "visits")).named(1)
    assert limits.startswith(f"{path}: line 2: user 'ann'")
    assert registry.without_deltas().named(0).startswith(f"{path}: line 2: user 'ann'")
    (tmp_path / "a.csv").write_text("user,window,epsilon,delta\nann,30,0.5,3\n")
    limited = read_requirements(path, columns=("user", "window", "epsilon", "delta"))
    assert (limited.max_slots, limited.deltas) == ((3,), ())


OTHER_SPELLINGS = {
    "delta": ["Delta", " delta", "detla", "delt", "deltas", "dalta"],
    "max_slots": ["MAX_SLOTS", "max-slots", "maxslots", "max_slot"],
}


@pytest.mark.parametrize(
    ("column", "name"), [(one, name) for one, names in OTHER_SPELLINGS.items() for name in names]
)
def test_optional_columns_are_never_ignored_because_of_their_spelling(tmp_path, column, name):
    (tmp_path / "a.csv").write_text(f"user,window,epsilon,{name}\nann,3,0.5,1\n")
    table = pa.table({"user": ["ann"], "window": [3], "epsilon": [0.5], name: [1]})
    words = f"{name}.*only one column '{column}' is read"
    for read in (
        lambda: read_requirements(str(tmp_path / "a.csv")),
        lambda: requirements_of(table),
        lambda: registry_of(table),
    ):
        with pytest.raises(ConfigurationError, match=words):
            read()
    named = ("user", "window", "epsilon", name)
    assert read_requirements(str(tmp_path / "a.csv"), columns=named).max_slots == (1,)


@pytest.mark.parametrize("name", ["data", "date", "slots", "name", "d"])
def test_other_columns_are_ignored(tmp_path, name):
    (tmp_path / "a.csv").write_text(f"user,window,epsilon,{name}\nann,3,0.5,1\n")
    registry = read_requirements(str(tmp_path / "a.csv"))
    assert (registry.max_slots, registry.deltas) == ((), ())


@pytest.mark.parametrize("name", ["Delta", " delta", "MAX_SLOTS"])
def test_no_line_of_json_has_a_key_that_is_ignored_because_of_its_case(tmp_path, name):
    row = '{"user": "DELTA %d", "window": 3, "epsilon": 0.5, "delta": 0, "more": {"Delta": 1}}\n'
    path = tmp_path / "a.jsonl"
    path.write_text("".join(row % user for user in range(200)))
    assert read_requirements(str(path)).deltas == (0.0,)
    with path.open("a") as file:
        file.write(f'{{"user": "ann", "window": 3, "epsilon": 0.5, "{name}": 1}}\n')
    folder = tmp_path / f"{name}=0"
    folder.mkdir()
    (folder / "a.jsonl").write_text(row % 0)
    words = f"{name}.*only one column '{name.strip().lower()}' is read"
    for each in (path, folder / "a.jsonl"):
        with pytest.raises(ConfigurationError, match=words):
            read_requirements(str(each))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("-1e-9", "delta '-1e-9' is neither 0 nor a number from 1e-15 to 0.1: write one"),
        ("0.5", "delta '0.5' is neither 0 nor a number from 1e-15 to 0.1"),
        ("1e-16", "delta '1e-16' is neither 0 nor"),
        ("x", "delta 'x' is not a number"),
        ("inf", "delta 'inf' is not a finite number"),
    ],
)
def test_what_is_no_delta_is_refused(tmp_path, value, said):
    path = tmp_path / "r.csv"
    path.write_text(f"user,window,epsilon,delta\nbob,9,1,\nann,9,1,{value}\n")
    with pytest.raises(ConfigurationError, match=rf"r.csv: line 3: {said}"):
        read_requirements(str(path))


def test_a_user_with_two_deltas_is_refused(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("user,window,epsilon,delta\nann,9,1,1e-9\nann,9,1,\n")
    with pytest.raises(ConfigurationError, match=r"delta 1e-09 in .* line 2 and .* in .* line 3"):
        read_requirements(str(path))
    path.write_text("user,window,epsilon,delta\nann,9,1,1e-9\nann,9,1,0.000000001\nbob,9,1,\n")
    assert read_requirements(str(path)).sizes.tolist() == [1, 1]
