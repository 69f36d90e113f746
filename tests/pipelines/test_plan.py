"""`streamveil plan`: what is printed of expected errors, and what is refused in one line."""

import re

import pytest

from streamveil.pipelines.commands import plan

QUERIES = """
slot: 1h
queries:
  - {name: places, by: place, keys: [cafe, park, zoo], mechanism: uniform, weight: 2}
  - {name: delay, every: 3h, statistic: mean, of: delay, bounds: [-30, 180]}
  - {name: late, every: 6h, statistic: quantiles, of: delay, edges: [0, 10, 60],
     quantiles: [0.5, 0.95], share: 0.25}
"""


@pytest.fixture
def run(toolbox, tmp_path):
    file = tmp_path / "queries.yaml"
    file.write_text(QUERIES)

    def run(*flags, text=None):
        if text is not None:
            file.write_text(text)
        given = ("--default_requirement=6,1,2000", *flags)
        return toolbox.run("plan", f"--queries={file}", *given)

    return run


@pytest.mark.slow  # three queries are simulated
def test_errors_shares_and_the_epsilon_that_is_needed_are_reported(run):
    outcome = run("--rate=400,late:100", "--drift=0", "--wanted=places:50,late:5")
    assert outcome.code == 0, outcome.err
    rows = [line.split(" | ") for line in outcome.out.splitlines() if line.startswith("| ")]
    assert [(row[0], row[1], row[2]) for row in rows[2:]] == [
        ("| places", "1h", "count"),
        ("| delay", "3h", "mean"),
        ("| late", "6h", "p50"),
        ("| late", "6h", "p95"),
    ]
    for row in rows[2:4]:
        error, half, twice = (float(cell.strip(" |").replace(",", "")) for cell in row[4:])
        assert half > error > twice
    assert rows[4][3] == "25.0%"
    assert "400 events in 1h" in outcome.out
    assert "assumed for late: 100 events" in outcome.out
    assert "budgets: epsilon 1 over 6 base slots; 2,000 users (as given)" in outcome.out
    factor = r"^places: for an error of 50, .*, multiply the epsilon of every user by [\d.]+: "
    assert re.search(factor, outcome.out, re.M)
    assert re.search(r"^late: for an error of 5, .* over 6 base slots$", outcome.out, re.M)


TWO = """
slot: 1d
queries:
  - {name: hires, by: place, keys: [cafe, park, zoo], mechanism: uniform}
  - {name: stay, by: kind, keys: [short, long], mechanism: uniform}
"""


def test_shares_and_epsilon_for_all_wanted_errors_are_reported(run):
    outcome = run("--rate=400", "--drift=0", "--wanted=hires:9,stay:40", text=TWO)
    assert outcome.code == 0, outcome.err
    (line,) = (one for one in outcome.out.splitlines() if one.startswith("together: "))
    match = re.fullmatch(
        r"together: epsilon ([\d.]+) over 6 base slots and these shares give all of these errors: "
        r"hires ([\d.]+), stay ([\d.]+); write them as share: in the file",
        line,
    )
    assert match, line
    epsilon, hires, stay = map(float, match.groups())
    assert hires + stay == pytest.approx(1)
    text = TWO.replace("uniform}", f"uniform, share: {hires}}}", 1)
    text = text.replace("uniform}", f"uniform, share: {stay}}}", 1)
    outcome = run("--rate=400", "--drift=0", f"--default_requirement=6,{epsilon},2000", text=text)
    rows = [line.split(" | ") for line in outcome.out.splitlines() if line.startswith("| ")][2:]
    assert [float(row[4].strip(" |")) for row in rows] == pytest.approx([9, 40], rel=0.1)


def test_queries_without_a_wanted_error_keep_theirs(run):
    outcome = run("--rate=400", "--drift=0", "--wanted=hires:9", text=TWO)
    assert "these shares give this error and leave the errors of other queries as th" in outcome.out


def test_rollups_and_dropped_events_of_one_budget_are_reported(toolbox, tmp_path):
    (tmp_path / "q.yaml").write_text(
        "slot: 1d\nqueries:\n"
        "  - {name: places, by: place, keys: [cafe], mechanism: uniform, rollups: [7d, 1mo]}\n"
    )
    flags = f"--queries={tmp_path / 'q.yaml'}", "--budget=1/7d", "--rate=2000"
    outcome = toolbox.run("plan", *flags)
    assert outcome.code == 0, outcome.err
    assert "budgets: epsilon 1 over 7 base slots; 1,000 users (assumed)" in outcome.out
    assert "at half the share" not in outcome.out  # one query has all of it
    rows = [line.split(" | ") for line in outcome.out.splitlines() if line.startswith("| places")]
    assert [row[1] for row in rows] == ["1d", "1w (rollup)", "1mo (rollup)"]
    slot, week, month = (float(row[4].strip(" |")) for row in rows)
    assert slot < week < month
    assert "places: contribution bounding would drop about 50% of the events" in outcome.out
    outcome = toolbox.run("plan", *flags, "--default_requirement=7,1")
    assert "--budget=1/7d is the requirement of every user" in outcome.err


COUNT_AND_SUM = """
slot: 1h
queries:
  - {name: places, by: place, keys: [cafe, park, zoo], mechanism: uniform, share: 0.5}
  - {name: delay, statistic: sum, of: delay, bounds: [-30, 180], mechanism: ba, share: 0.5}
"""


def test_a_per_cent_is_of_the_average_count(run):
    wanted = "of an average count of 133.3), with the same share"
    for flag in ("--wanted=places:50%", "--wanted=50%"):
        outcome = run("--rate=400", flag, "--drift=0", text=COUNT_AND_SUM)
        assert outcome.code == 0, outcome.err
        assert f"places: for an error of 66.67 (50% {wanted}" in outcome.out
        assert "delay: for" not in outcome.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--wanted=places",), "write QUERY:ERROR, such as places:10 or places:5%"),
        (("--wanted=10",), "write QUERY:ERROR, such as places:10 or places:5%"),
        (("--wanted=delay:5%",), "5% is for counts, and query 'delay' is of the numbers of delay"),
        (("--wanted=places:some%",), "'some' is not a number"),
        (("--wanted=place:3",), "there is no query 'place': choose one of places, delay, late"),
        (("--wanted=places:0",), "give an error above 0"),
        (("--value_column=x",), "it reads no events, and the bins and slots of each query are in"),
        (("--input=a.csv",), "--input=a.csv is not for streamveil plan: it reads no events"),
        (("--rate=5,5",), "--rate=5,5 has two numbers for all queries: give one"),
        (("--rate=late:1,5,late:2",), "has two numbers for query 'late': give one"),
        (("--rate=many",), "'many' is not a number"),
        (("--rate=0",), "the rate is 0: give the number of events"),
        (("--rate=5,place:3",), "there is no query 'place'"),
        (("--drift=2",), "the drift is 2: give the fraction by which a count changes"),
        (
            ("--long_drift=late:-1",),
            "query 'late': the long drift is -1: give the fraction by which a count changes",
        ),
        (("--chance=nan",), "the chance is nan: give the variance"),
        (("--default_requirement=",), "no requirements are given"),
    ],
)
def test_what_cannot_be_planned_is_reported_in_one_line(run, flags, words):
    outcome = run(*flags)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slot: [1h", "is not YAML: line 1"),
        (
            "slot: 1h\nslot: 2h\n",
            "line 2, column 1: the key 'slot' is written twice",
        ),
        ("slot: 1h\n", "queries is missing"),
        ("slot: 2001-02-30\n", "is not YAML: "),
        ("", "it is empty: write slot and queries"),
    ],
)
def test_a_file_of_queries_that_is_none_is_reported_in_one_line(run, text, words):
    outcome = run(text=text)
    assert outcome.code == 2
    assert words in outcome.err
    assert "queries.yaml" in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_per_cent_of_no_count_is_refused_in_one_line(run):
    mean = "{name: glucose, statistic: mean, of: level, bounds: [40, 400], mechanism: uniform}"
    outcome = run("--wanted=10%", text=f"slot: 1d\nqueries: [{mean}]\n")
    assert outcome.code == 2
    assert "--wanted=10%: a per cent without a query is for counts, and no query" in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_file_that_is_not_there_and_no_file_at_all(toolbox):
    asked = "--default_requirement=6,1,2000"
    outcome = toolbox.run("plan", "--queries=gone.yaml", asked)
    assert "file of queries gone.yaml does not exist" in outcome.err
    assert "--queries is missing" in toolbox.run("plan", asked).err


def test_numbers_are_for_all_queries_or_for_one(tmp_path):
    (tmp_path / "q.yaml").write_text(QUERIES)
    query_set = plan.read_queries(str(tmp_path / "q.yaml"))
    of = plan._by_query
    assert of("rate", None, query_set, 7.0) == [7.0, 7.0, 7.0]
    assert of("rate", "5", query_set, 7.0) == [5.0, 5.0, 5.0]
    assert of("rate", "late:1,5", query_set, 7.0) == [5.0, 5.0, 1.0]
    assert of("rate", "late:1", query_set, 7.0) == [7.0, 7.0, 1.0]


def test_bounds_that_nobody_knows_cannot_be_planned(run):
    asked = "{name: a, statistic: mean, of: b, bounds: auto}"
    outcome = run(text=f"slot: 1h\nqueries: [{asked}]\n")
    assert outcome.code == 2
    assert "query 'a' has bounds: auto, and without bounds its error cannot" in outcome.err
    assert outcome.err.count("\n") == 1
