"""Columns computed by DuckDB: what a record gives is a function of that record alone."""

import pickle
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.io import check_events, read_events
from streamveil.io.sql import query_of
from streamveil.mechanisms.core.records import ConfigurationError

pytest.importorskip("duckdb")

T = "read_csv('trips/*.csv.gz')"

# What would mix records, hang on when or how often it runs, or reach elsewhere; and what is said.
REFUSED = {
    "SELECT count(*) AS n FROM T": "count_star is an aggregate function",
    "SELECT max(a) AS n FROM T": "max is an aggregate function",
    "SELECT list(a) AS n FROM T": "list is an aggregate function",
    "SELECT string_agg(a) AS n FROM T": "string_agg is an aggregate function",
    "SELECT any_value(a) AS n FROM T": "any_value is an aggregate function",
    "SELECT approx_quantile(a, 0.5) AS n FROM T": "approx_quantile is an aggregate function",
    "SELECT sum(a) FILTER (WHERE b) AS n FROM T": "sum with FILTER, DISTINCT or ORDER BY",
    "SELECT first(a ORDER BY b) AS n FROM T": "first with FILTER, DISTINCT or ORDER BY",
    "SELECT count(DISTINCT a) AS n FROM T": "count with FILTER, DISTINCT or ORDER BY",
    "SELECT a FROM T GROUP BY a": "GROUP BY",
    "SELECT a FROM T GROUP BY ALL": "GROUP BY",
    "SELECT a FROM T GROUP BY a HAVING count(*) > 3": "GROUP BY",
    "SELECT a, sum(b) OVER (ORDER BY t) AS s FROM T": "a window function",
    "SELECT a, row_number() OVER () AS s FROM T": "a window function",
    "SELECT lag(a) AS b FROM T": "lag is not a function of one record",
    "SELECT a FROM T QUALIFY row_number() OVER () < 3": "QUALIFY",
    "SELECT DISTINCT a FROM T": "DISTINCT",
    "SELECT DISTINCT ON (a) a, b FROM T": "DISTINCT",
    "SELECT a FROM T LIMIT 10": "LIMIT",
    "SELECT a FROM T LIMIT 10%": "LIMIT",
    "SELECT a FROM T OFFSET 3": "OFFSET",
    "SELECT a FROM T ORDER BY b": "ORDER BY",
    "SELECT a FROM T USING SAMPLE 10%": "SAMPLE",
    "SELECT a FROM T TABLESAMPLE 10%": "SAMPLE",
    "SELECT a FROM T UNION SELECT a FROM T": "UNION is more than one SELECT",
    "SELECT a FROM T UNION ALL SELECT a FROM T": "UNION is more than one SELECT",
    "SELECT a FROM T INTERSECT SELECT a FROM T": "more than one SELECT",
    "SELECT x.a FROM T x JOIN T y ON x.b = y.b": "a join",
    "SELECT x.a FROM T x, T y": "a join",
    "SELECT x.a FROM T x ASOF JOIN T y ON x.b >= y.b": "a join",
    "SELECT x.a FROM T x, LATERAL (SELECT x.a) y": "a join",
    "SELECT a, (SELECT max(b) FROM T) AS m FROM T": "a SELECT inside an expression",
    "SELECT a FROM T WHERE b > (SELECT avg(b) FROM T)": "a SELECT inside an expression",
    "SELECT a FROM T x WHERE EXISTS (SELECT 1 FROM T y WHERE y.a = x.a)": "a SELECT inside",
    "SELECT a FROM T WHERE a IN (SELECT a FROM T)": "a SELECT inside an expression",
    "SELECT a FROM (SELECT a FROM T)": "a SELECT inside FROM",
    "WITH e AS (SELECT a FROM T) SELECT a FROM e": "WITH is more than one SELECT",
    "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r) SELECT x FROM r": "WITH",
    "PIVOT T ON a USING count(*)": "no SELECT",
    "UNPIVOT T ON a, b": "PIVOT",
    "SELECT a, random() AS r FROM T": "random is not a function of one record",
    "SELECT a FROM T WHERE random() < 0.5": "random is not a function of one record",
    "SELECT list_transform([1], lambda x: random()) AS r FROM T": "random is not a function",
    "SELECT a, system.main.random() AS r FROM T": "named with its schema",
    "SELECT a, uuid() AS r FROM T": "uuid is not a function of one record",
    "SELECT a, now() AS r FROM T": "now is not a function of one record",
    "SELECT a, today() AS r FROM T": "today is not a function of one record",
    "SELECT a, age(b) AS r FROM T": "age is not a function of one record",
    "SELECT a, ago(INTERVAL 1 DAY) AS r FROM T": "ago is not a function of one record",
    "SELECT a, nextval('s') AS r FROM T": "nextval is not a function of one record",
    "SELECT a, getvariable('s') AS r FROM T": "getvariable is not a function of one record",
    "SELECT a, current_setting('threads') AS r FROM T": "current_setting is not a function",
    "SELECT a, stats(b) AS r FROM T": "stats is not a function of one record",
    "SELECT a, sleep_ms(9) AS r FROM T": "sleep_ms is not a function of one record",
    "SELECT a, json_serialize_sql('x') AS r FROM T": "json_serialize_sql is not a function",
    "SELECT a, nonsense(b) AS r FROM T": "no function nonsense",
    "SELECT upper(unnest(a)) AS r FROM T": "unnest stands inside an expression",
    "SELECT COLUMNS('a.*') FROM T": "COLUMNS",
    "SELECT upper(COLUMNS(*)) AS b FROM T": "COLUMNS",
    "SELECT * REPLACE (1 AS a) FROM T": "REPLACE",
    "SELECT *, * FROM T": "twice",
    "SELECT a, a FROM T": "two columns are named 'a'",
    "SELECT a || 'x' FROM T": "has no name",
    "SELECT #1 FROM T": "a column by its number",
    "SELECT $1 AS a FROM T": "a parameter",
    "SELECT __row__ FROM T": "begins with __",
    "SELECT x.__row__ FROM T x": "begins with __",
    "SELECT a AS __row__ FROM T": "begins with __",
    "SELECT a FROM T AS x(a, b)": "a list of names",
    "SELECT 1 AS a": "a SELECT without FROM",
    "VALUES (1)": "VALUES",
    "SELECT a FROM T; DROP TABLE x": "no SELECT",
    "SELECT a FROM T; SELECT a FROM T": "2 statements",
    "COPY (SELECT 1) TO 'x.csv'": "no SELECT",
    "ATTACH 'x.db'": "no SELECT",
    "INSTALL httpfs": "no SELECT",
    "PRAGMA version": "no SELECT",
    "SET threads = 3": "no SELECT",
    "CREATE TABLE x (a INT)": "no SELECT",
    "nonsense": "syntax error",
    "SELECT a FROM events": "no file whose name says its format",
    "SELECT a FROM information_schema.tables": "no file whose name says its format",
    "SELECT a FROM read_text('/etc/passwd')": "read_text(...) is not known here",
    "SELECT a FROM glob('*')": "glob(...) is not known here",
    "SELECT a FROM duckdb_settings()": "duckdb_settings(...) is not known here",
    "SELECT a FROM query('SELECT 1')": "query(...) is not known here",
    "SELECT a FROM T WITH ORDINALITY": "WITH ORDINALITY",
    "SELECT a FROM read_csv(['x.csv', 'y.csv'])": "takes one path",
    "SELECT a FROM read_csv('x' || '.csv')": "takes one path",
    "SELECT a FROM read_csv('pubsub:projects/p/topics/t')": "is a stream",
    "SELECT a FROM read_csv('x.parquet')": "write read_parquet('x.parquet')",
    "SELECT a FROM read_csv_auto('x.csv')": "guesses from the data",
    "SELECT a FROM read_csv('x.csv', auto_detect = true)": "guesses from the data",
    "SELECT a FROM read_csv('x.csv', sample_size = -1)": "guesses from the data",
    "SELECT a FROM read_csv('x.csv', ignore_errors = true)": "dead letters",
    "SELECT a FROM read_csv('x.csv', union_by_name = true)": "by its own columns",
    "SELECT a FROM read_csv('x.csv', quote = '|')": "no setting quote",
    "SELECT a FROM read_csv('x.csv', header = false)": "columns = {...}",
    "SELECT a FROM read_csv('x.csv', auto_detect = false)": "header = true",
    "SELECT a FROM read_csv('x.csv', types = {'a': 'INT), (SELECT 1'})": "is none",
    "SELECT a FROM read_csv('x.csv', types = {'a': 3})": "is none",
    "SELECT a FROM read_csv('x.csv', delim = 'ab')": "is not one character",
    "SELECT a FROM read_json('x.json')": "guesses from the data",
    "SELECT a FROM 'x.jsonl'": "write read_json('x.jsonl', columns = {",
    "SELECT a FROM read_json_auto('x.json')": "guesses from the data",
    "SELECT a FROM read_parquet('x.parquet', file_row_number = true)": "depends on other records",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_no_function_of_one_record_is_refused(sql):
    with pytest.raises(ConfigurationError) as refused:
        query_of(re.sub(r"\bT\b", T, sql))
    message = str(refused.value)
    assert message.startswith(("--sql: ", "the delimiter"))
    assert REFUSED[sql] in message
    assert "\n" not in message


def read(sql, columns, folder=None):
    """Rows and dead letters, as every command reads them."""
    query = query_of(sql if folder is None else sql.replace("FOLDER", str(folder)))
    check_events(query.path, columns, dialect=query.dialect)
    rows, letters = [], []
    for batch, rejected in read_events(query.path, columns, dialect=query.dialect):
        rows += batch.to_pylist()
        letters += rejected.to_pylist() if rejected is not None else []
    return rows, letters


@pytest.fixture
def trips(tmp_path):
    """A file of trips with its path; lines stand in it from line 2 on."""

    def write(*lines, name="trips.csv"):
        path = tmp_path / name
        path.write_text("\n".join(["user,begin,end", *lines]) + "\n")
        return path

    return write


TYPED = "types = {'begin': 'TIMESTAMP', 'end': 'TIMESTAMP'}"
SECONDS = f"SELECT user, epoch(\"end\" - begin) AS seconds FROM read_csv('FOLDER', {TYPED})"


def test_a_column_is_computed(trips):
    path = trips("a,2024-01-01 10:00:00,2024-01-01 10:00:30", "b,2024-01-01 10:00:00,")
    rows, letters = read(SECONDS, ["seconds", "user"], path)
    assert rows == [
        {"seconds": 30.0, "user": "a", "__row__": 2},
        {"seconds": None, "user": "b", "__row__": 3},
    ]
    assert letters == []


# By expression, a value of `begin` of which it fails.
FAILING = {
    "begin::TIMESTAMP": "soon",
    "begin::INT + 1": "2147483647",
    "strptime(begin, '%Y')": "soon",
    "1 // begin::INT": "0",
    "regexp_matches('x', begin)": "(",
    "json_extract(begin, '$.a')": "{",
    "make_date(begin::INT, 1, 1)": "99999999",
    "factorial(begin::INT)": "99",
    "list_transform([begin], lambda x: x::INT)": "x",
    "unnest([begin::INT])": "x",
}


@pytest.mark.parametrize("expression", FAILING)
def test_a_record_that_fails_is_a_dead_letter_and_touches_no_other(trips, expression):
    good = "7" if "json" not in expression else '"{""a"":1}"'
    good = "2024-01-01" if "TIMESTAMP" in expression else "2024" if "strp" in expression else good
    bad = f'"{FAILING[expression]}"'
    sql = f"SELECT user, {expression} AS made FROM 'FOLDER'"
    alone, none = read(sql, ["user", "made"], trips(*(f"u{n},{good}," for n in range(5))))
    lines = [f"u{n},{good}," for n in range(5)]
    lines.insert(2, f"bad,{bad},")
    rows, letters = read(sql, ["user", "made"], trips(*lines))
    assert none == []
    assert [(r["user"], r["made"]) for r in rows] == [(r["user"], r["made"]) for r in alone]
    (letter,) = letters
    assert letter["row"] == 4
    assert letter["reason"] == "unparsable"
    assert letter["detail"] == "'made' of --sql fails"
    assert FAILING[expression] in letter["record"].replace('\\"', '"')


def test_a_value_of_another_type_is_a_dead_letter(trips):
    rows, letters = read(SECONDS, ["user", "seconds"], trips("a,soon,", "b,2024-01-01,"))
    assert [row["user"] for row in rows] == ["b"]
    assert [letter["detail"] for letter in letters] == [
        "'begin' is not of the type that --sql says"
    ]


def test_a_condition_that_fails(trips):
    path = trips("a,1,", "b,soon,", "c,2,")
    listed = "SELECT user, begin::INT AS number, number * 2 AS doubled FROM 'FOLDER' WHERE "
    for where, detail in {
        "begin::INT > 1": "the condition of --sql fails",
        "number > 1": "'number' of --sql fails",
        "doubled > 2": "'number' of --sql fails",
        "begin <> 'x' AND user <> 'a'": "'number' of --sql fails",
    }.items():
        rows, letters = read(listed + where, ["user"], path)
        assert [row["user"] for row in rows] == ["c"], where
        assert [letter["detail"] for letter in letters] == [detail], where
    rows, letters = read(f"{listed} user <> 'b'", ["user"], path)  # which is not to be computed
    assert [row["user"] for row in rows] == ["a", "c"]
    assert letters == []


def test_a_quote_that_does_not_end_swallows_no_other_record(trips):
    path = trips("a,1,", 'b,"2,', "c,3,", "d,4,5,6", "e,5,")
    rows, letters = read("SELECT user, begin FROM 'FOLDER'", ["user"], path)
    assert [row["user"] for row in rows] == ["a", "c", "e"]
    assert [letter["row"] for letter in letters] == [3, 5]


def test_one_record_becomes_many_of_its_row(trips):
    sql = "SELECT user, unnest(string_split(begin, ' ')) AS stop FROM 'FOLDER' WHERE user <> 'b'"
    rows, _ = read(sql, ["user", "stop"], trips("a,x y,", "b,z,", "c,z,"))
    assert [(row["user"], row["stop"], row["__row__"]) for row in rows] == [
        ("a", "x", 2),
        ("a", "y", 2),
        ("c", "z", 4),
    ]


def test_what_a_file_lacks_is_said(trips):
    path = trips("a,1,2")
    for sql, columns, *words in (
        ("SELECT user AS u FROM 'FOLDER'", ["user"], "no column 'user'", "EXPRESSION AS NAME"),
        ("SELECT place FROM 'FOLDER'", ["place"], "reads a column 'place'", "'user', 'begin'"),
        (
            "SELECT user AS current_date, current_user AS user FROM 'FOLDER'",
            ["user"],
            "current_user",
        ),
        ("SELECT current_date AS current_date FROM 'FOLDER'", ["user"], "reads a column"),
        ("SELECT current_date AS d FROM 'FOLDER'", ["d"], "reads a column 'current_date'"),
        ("SELECT user FROM 'FOLDER' WHERE rowid < 9", ["user"], "reads a column 'rowid'"),
        ("SELECT t AS d FROM 'FOLDER' t", ["d"], "reads a column 't'"),
        ("SELECT \"end\" - begin AS d FROM 'FOLDER'", ["d"], "types = {'started_at'", "VARCHAR"),
        ("SELECT a FROM read_csv('FOLDER', types = {'a': 'INT'})", ["a"], "reads a column 'a'"),
        ("SELECT user FROM read_csv('FOLDER', types = {'user': 'no'})", ["user"], "name no does"),
        ("SELECT grouping(user) AS g FROM 'FOLDER'", ["g"], "GROUPING"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            read(sql, columns, path)
        assert all(text in str(refused.value) for text in words), refused.value
        assert "\n" not in str(refused.value)


def test_settings_of_csv(tmp_path):
    path = tmp_path / "u.data"
    path.write_text("a\t1\nb\tx\n")
    settings = r"delim = '\t', header = false, columns = {'user': 'VARCHAR', 'n': 'INTEGER'}"
    sql = f"SELECT user, n + 1 AS more FROM read_csv('{path}', {settings})"
    rows, letters = read(sql, ["user", "more"])
    assert [(row["user"], row["more"]) for row in rows] == [("a", 2)]
    assert [letter["row"] for letter in letters] == [2]
    for more in ("all_varchar = true", "header := true", "auto_detect = false, header = true"):
        rows, _ = read(f"SELECT * FROM read_csv('{path}', {more}, sep = '\t')", ["1"])
        assert [row["1"] for row in rows] == ["x"]


def test_parquet_of_hive_partitions(tmp_path):
    for month, users in {5: ["a", "b"], 6: ["c"]}.items():
        folder = tmp_path / "year=2024" / f"month={month}"
        folder.mkdir(parents=True)
        table = pa.table({"user": users, "day": list(range(30, 30 + len(users)))})
        pq.write_table(table, folder / "part.parquet")
    types = "hive_partitioning = true, hive_types = {'year': 'INT', 'month': 'INT'}"
    sql = f"""SELECT user, make_date(year, month, day::INT) AS date
        FROM read_parquet('{tmp_path}/**/*.parquet', {types}) WHERE year = 2024"""
    rows, letters = read(sql, ["user", "date"])
    assert [(row["user"], str(row["date"])) for row in rows] == [
        ("a", "2024-05-30"),
        ("b", "2024-05-31"),
        ("c", "2024-06-30"),
    ]
    assert letters == []


def test_nested_json(tmp_path):
    path = tmp_path / "trips.jsonl"
    path.write_text(
        '{"trip": {"user": {"id": 7}, "stops": [{"place": "x"}, {"place": "y"}]}, "n": 3}\n'
        '{"trip": {"user": {"id": "u"}}, "n": "many"}\n'
        "no json\n"
        '{"trip": "none"}\n'
        '{"trip": {"user": {"id": 8}, "stops": []}}\n'
    )
    by_path = f"""SELECT trip->>'$.user.id' AS user, n
        FROM read_json('{path}', columns = {{'trip': 'JSON', 'n': 'INT'}})"""
    rows, letters = read(by_path, ["user", "n"])
    assert [(row["user"], row["n"], row["__row__"]) for row in rows] == [
        ("7", 3, 1),
        ("8", None, 5),
    ]
    assert [letter["row"] for letter in letters] == [3, 2, 4]
    kind = 'STRUCT("user" STRUCT(id VARCHAR), stops STRUCT(place VARCHAR)[])'
    by_type = f"""SELECT trip.user.id AS user, unnest(list_transform(trip.stops, lambda s: s.place))
        AS place FROM read_json('{path}', columns = {{'trip': '{kind}'}})"""
    rows, letters = read(by_type, ["user", "place"])
    assert [(row["user"], row["place"]) for row in rows] == [("7", "x"), ("7", "y")]
    assert [letter["row"] for letter in letters] == [3, 4]


def test_a_value_of_another_type_inside_json(tmp_path):
    """With a type it is null, as a missing key is; as JSON it is a dead letter."""
    path = tmp_path / "trips.jsonl"
    path.write_text(
        '{"u": 1, "t": {"n": 1, "z": 2}}\n{"u": 2, "t": {"n": "x"}}\n{"u": 3, "t": {}}\n'
    )
    source = f"read_json('{path}', columns = {{'u': 'INT', 't': 'KIND'}})"
    typed = f"SELECT u, t.n AS n FROM {source}".replace("KIND", "STRUCT(n INT)")
    rows, letters = read(typed, ["u", "n"])
    assert [(row["u"], row["n"]) for row in rows] == [(1, 1), (2, None), (3, None)]
    assert letters == []
    as_json = f"SELECT u, (t->'n')::INT AS n FROM {source}".replace("KIND", "JSON")
    rows, letters = read(as_json, ["u", "n"])
    assert [(row["u"], row["n"]) for row in rows] == [(1, 1), (3, None)]
    assert [letter["row"] for letter in letters] == [2]


FAR = 1 << 62  # milliseconds

# Cells of Parquet that DuckDB stops at, beside a good one, and an expression over them.
STOPPING = {
    "text inside": (
        pa.StructArray.from_arrays([pa.array([b"a", b"\xff"]).view(pa.string())], ["x"]),
        "upper(cell.x)",
    ),
    "text in a list": (
        pa.ListArray.from_arrays([0, 1, 2], pa.array([b"a", b"\xff"]).view(pa.string())),
        "upper(cell[1])",
    ),
    "a time": (pa.array([0, FAR], pa.timestamp("ms")), "cell::VARCHAR"),
    "a time inside": (
        pa.array([{"t": 0}, {"t": FAR}], pa.struct([("t", pa.timestamp("ms"))])),
        "cell.t::VARCHAR",
    ),
    "a time of day": (pa.array([0, FAR], pa.time64("ns")), "cell::VARCHAR"),
    "a map": (
        pa.array([[("k", 1)], [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int32())),
        "cell['k']",
    ),
}


@pytest.mark.parametrize("what", STOPPING)
def test_a_cell_at_which_duckdb_stops_touches_no_other(tmp_path, what):
    cells, expression = STOPPING[what]
    sql = f"SELECT user, {expression} AS made FROM 'FOLDER'"
    path, alone = tmp_path / "all.parquet", tmp_path / "good.parquet"
    numbers = [f"u{n}" for n in range(50)]
    order = pa.array([0] * 30 + [1] + [0] * 19)
    pq.write_table(pa.table({"user": numbers, "cell": cells.take(order)}), path)
    good = [n for n in range(50) if n != 30]
    pq.write_table(
        pa.table(
            {"user": [numbers[n] for n in good], "cell": cells.take(order.take(pa.array(good)))}
        ),
        alone,
    )
    rows, letters = read(sql, ["user", "made"], path)
    for row in rows:
        del row["__row__"]
    kept, none = read(sql, ["user", "made"], alone)
    assert rows == [{name: row[name] for name in ("user", "made")} for row in kept]
    assert none == []
    (letter,) = letters
    assert letter["row"] == 30
    detail = letter["detail"]
    assert any(why in detail for why in ("--sql cannot be computed", "not UTF-8", "does not have"))
    assert '"user": "u30"' in letter["record"]


@pytest.mark.many
@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("ms", "UTC"), pa.timestamp("ms"), pa.duration("ms"), pa.time64("ns")],
    ids=str,
)
def test_many_times_that_duckdb_has_not_take_no_time(tmp_path, kind):
    path = tmp_path / "far.parquet"
    far = pa.array([FAR, -FAR, None, 1] * 5000).cast(kind)
    pq.write_table(pa.table({"user": pa.array(range(len(far))), "cell": far}), path)
    rows, letters = read("SELECT user, cell::VARCHAR AS made FROM 'FOLDER'", ["user"], path)
    assert [row["user"] for row in rows] == [n for n in range(len(far)) if n % 4 >= 2]
    assert {letter["detail"] for letter in letters} == {
        "'cell' is a time that DuckDB does not have"
    }


def test_a_type_that_duckdb_has_not(tmp_path):
    path = tmp_path / "half.parquet"
    pq.write_table(pa.table({"user": pa.array([1.0], pa.float16())}), path)
    with pytest.raises(ConfigurationError, match=r"half.parquet: --sql cannot be computed: Not"):
        read("SELECT user FROM 'FOLDER'", ["user"], path)


def test_duckdb_reaches_nothing_and_a_query_travels(trips):
    from streamveil.io import sql

    connection = sql._connection()
    with pytest.raises(Exception, match="disabled by configuration"):
        connection.execute("SELECT * FROM read_text('/etc/passwd')")
    with pytest.raises(Exception, match="locked"):
        connection.execute("SET enable_external_access = true")
    query = query_of(f"SELECT user FROM '{trips('a,1,2')}'")
    dialect = pickle.loads(pickle.dumps(query.dialect))
    assert sql.query_in(dialect) is query


def test_columns_that_differ_in_capitals_alone(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,A\n1,2\n")
    with pytest.raises(ConfigurationError, match="more than one column 'a'"):
        read(f"SELECT a FROM '{path}'", ["a"])
