"""Every benchmark runs, at sizes that measure nothing, and the page follows from the results."""

import importlib.util
import json
import statistics
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.forked import finished

pytestmark = pytest.mark.slow  # whole benchmarks, if small ones

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

# Options that make each of them small.
SMALL = {
    "release_stage": ("--users=250", "--windows=5", "--slots=5", "--repeats=1"),
    "noise": ("--sizes=10", "--scales=2", "--opendp_size=10", "--seconds=0.01", "--repeats=1"),
    "state_bytes": ("--slots=20", "--mechanisms=pba"),
    "changing": ("--slots=50", "--keys=1", "--streams=tlns", "--budgets=0.2"),
    "ledgers": ("--users=20", "--slots=5", "--mechanisms=dpbd"),
    "following": ("--slots=2", "--repeats=1", "--old", "1", "--caught_up=10000"),
    "infinite": (
        *("--slots=20", "--keys=1", "--streams", "even", "drifting", "--pool=20"),
        *("--many_bins=1000", "--many_slots=30", "--processes=1"),
    ),
    "presence": (
        *("--seeds", "4", "--streams", "ratings", "flights-hourly", "--slots=30", "--repeats=1"),
        *("--events=20000", "--users=5000", "--active=2000"),
    ),
    "query_sets": (
        *("--seeds", "4", "--query_sets", "films", "--days=35", "--streams", "sparse"),
        *("--keys=1", "--film_seeds=2", "--slots=30", "--city_days=1"),
    ),
    "delays": ("--seeds", "4", "--days=3"),
    "discovery": (
        *("--streams", "zipf-1", "--epsilons", "8", "--max_keys", "1", "--users=2000"),
        *("--days=14", "--keys=50", "--sizes", "1000", "--compared", "zipf-1", "--repeats=1"),
    ),
    "for_ever": ("--users=3000", "--slots=120", "--seeds", "4", "--processes=1"),
    "readers": ("--events=3000", "--formats", "avro", "--repeats=1"),
    "messages": (
        *("--events=100", "--per_message", "10", "--kinds", "json", "--repeats=1"),
        *("--odd", "not UTF-8"),
    ),
    "local": (
        *("--users=900", "--slots=40", "--keys=1", "--streams=tlns", "--bins=10"),
        *("--many=900", "--many_slots=3", "--processes=1"),
    ),
    "local_presence": (*("--users", "200", "--slots=8", "--keys=1", "--window=4", "--turns", "2"),),
    "per_record": (
        *("--draws=1", "--runs=5", "--data", "zipf-5", "--tried", "--local_runs=0", "--ticks"),
        *("50", "--records", "--processes=1"),
    ),
    "query_pass": (
        *("--events=2000", "--queries", "1", "--users=200", "--slots=12", "--repeats=1"),
        *("--kinds", "fast places"),
    ),
    "coverage": ("--seeds", "4", "--streams", "steps", "--epsilons", "3", "--slots=30"),
    "real": ("--seeds=2", "--streams", "visits", "--epsilons", "1"),
    "scaling": (
        *("--events=5000", "--users", "50", "--bins", "10", "--slots=3", "--files"),
        *("--repeats=1",),
    ),
    "factor": ("--streams", "flat", "one week", "--slots=30", "--seeds", "1", "--epsilons=1"),
    "total": ("--streams", "flat", "--slots=30", "--seeds", "1"),
    "mutants": ("--mutants", "the_truth_too_often", "--repeats=1", "--processes=1"),
    "utility": ("--slots=50", "--keys=1", "--draws=1", "--streams=tlns", "--budgets=0.2"),
}


def run(script, *options):
    code, output, errors = finished(BENCHMARKS / f"{script}.py", *options)
    assert code == 0, errors
    return output


def tables(folder, name):
    (found,) = json.loads((folder / f"{name}.json").read_text())
    return found["tables"]


@pytest.mark.parametrize(
    "name",
    [
        *("release_stage", "state_bytes", "ledgers", "changing", "local_presence"),
        *("query_pass", "mutants", "coverage", "real", "factor", "total", "discovery"),
    ],
)
def test_benchmarks_of_one_kind_of_case_give_full_tables(name, tmp_path):
    run(name, *SMALL[name], f"--results={tmp_path}")
    for table in tables(tmp_path, name):
        assert table["rows"]
        assert all(len(row) == len(table["columns"]) for row in table["rows"])


# State must not grow with time: what grew with the slots would be three times as large.
def test_the_soak_finds_state_that_does_not_grow(tmp_path):
    slots = ("--slots", "200", "600")
    run("soak", *slots, "--mechanisms", "pba", "dpba", f"--results={tmp_path}")
    (table,) = tables(tmp_path, "soak")
    rows = {tuple(row[:3]): row[3:] for row in table["rows"]}
    streams = {row[:2] for row in rows}
    assert streams == {("pba", "fixed"), ("dpba", "changing")}
    for stream in streams:
        (_, early, keys_before, _, _), (_, later, keys, _, _) = (
            rows[(*stream, slots)] for slots in (200, 600)
        )
        assert later <= 1.5 * early
        assert keys == keys_before <= 20


def test_the_plan_follows_from_the_measured_pieces(tmp_path):
    run("scaling", *SMALL["scaling"], f"--results={tmp_path}")
    events, _, registries, _, ways, plan = tables(tmp_path, "scaling")
    assert [row[0] for row in ways["rows"]] == ["made in the same step", "behind a shuffle"]
    rows = {row[0]: row[1:] for row in plan["rows"]}
    shuffled = rows["MB/s through the shuffle"]
    inside, outside = (row[5] for row in events["rows"])
    assert shuffled == [pytest.approx(2 * inside), pytest.approx(outside)]  # codes of 8 bytes
    state = rows["GB of state in one open slot"]
    assert state == [pytest.approx(60 * megabytes / 1e3) for megabytes in shuffled]
    table = rows["GB of memory for the table, in each worker process"]
    assert table == [pytest.approx(registries["rows"][0][2] * 1e8 / 1e9), 0]
    again = run("scaling", "--plan", "--plan_users=50", f"--results={tmp_path}")
    assert "50 users" in again


def test_noise_is_compared_with_opendp_where_there_is_one(tmp_path):
    run("noise", *SMALL["noise"], f"--results={tmp_path}")
    (table,) = tables(tmp_path, "noise")
    ((_, _, ours, theirs, _),) = table["rows"]
    assert ours > 0
    assert (theirs is not None) == (importlib.util.find_spec("opendp") is not None)


def test_utility_has_a_row_for_each_mechanism(tmp_path):
    run("utility", *SMALL["utility"], f"--results={tmp_path}")
    errors, draws = tables(tmp_path, "utility")
    assert [row[0] for row in errors["rows"]] == ["bd", "bd-1", "ba", "ba-1", "pbd", "pba"]
    assert [row[0] for row in draws["rows"]] == ["pbd", "pba"]
    assert all(row[3] > 0 and 0 <= row[5] <= 1 for row in errors["rows"])


def test_query_sets_are_measured_beside_even_shares_and_what_was_expected(tmp_path):
    run("query_sets", *SMALL["query_sets"], f"--results={tmp_path}")
    shares, expected, city = tables(tmp_path, "query_sets")
    assert city["rows"]
    assert [row[1] for row in shares["rows"]] == ["genres", "visitors", "stars", "all"]
    assert all(row[4] > 0 and row[5] > 0 for row in shares["rows"])
    assert expected["rows"][0][3] > 0


def test_hourly_delays_are_measured_beside_pipeline_dp(tmp_path):
    run("delays", *SMALL["delays"], f"--results={tmp_path}")
    (table,) = tables(tmp_path, "delays")
    assert [row[0] for row in table["rows"]] == ["mean", "mean", "p95", "p95"]
    mean = table["rows"][0]
    assert mean[5] == pytest.approx(mean[4] / mean[2])
    assert mean[5] > 5


def test_local_compares_all_mechanisms(tmp_path):
    run("local", *SMALL["local"], f"--results={tmp_path}")
    errors, correlated, bins, revised, cost = tables(tmp_path, "local")
    assert [row[1] for row in errors["rows"]][-2:] == ["plpa+:project=true", "rotation"]
    assert {row[0] for row in correlated["rows"]} == {"sin", "tlns"}
    assert [row[0] for row in bins["rows"]] == [10, 10]
    assert all(row[2] > 0 for one in (errors, correlated, bins, revised) for row in one["rows"])
    # Later slots tell something of earlier ones, at least on most streams.
    assert [row[0] for row in revised["rows"][-3:]] == ["hours"] * 3
    assert all(0 < coverage <= 1 for row in revised["rows"] for coverage in (row[4], row[6]))
    assert statistics.median(row[5] for row in revised["rows"]) < 1
    assert [row[0] for row in cost["rows"]] == [2, 100]


def test_following_tells_how_late_releases_are_and_what_a_gap_takes(tmp_path):
    run("following", *SMALL["following"], f"--results={tmp_path}")
    follows, catches = tables(tmp_path, "following")
    ((old, _, median, largest, cpu, _),) = follows["rows"]
    assert old == 1
    assert 0 < median <= largest
    assert cpu > 0
    assert [row[0] for row in catches["rows"]] == [10_000]


def test_readers_stand_beside_their_libraries(tmp_path):
    run("readers", *SMALL["readers"], f"--results={tmp_path}")
    (table,) = tables(tmp_path, "readers")
    assert [row[:3] for row in table["rows"]] == [
        ["avro", times, "fastavro"] for times in ("text", "number")
    ]
    assert all(row[5] == row[4] / row[3] > 0 < row[6] for row in table["rows"])


def test_messages_have_a_row_for_each_kind_and_size(tmp_path):
    run("messages", *SMALL["messages"], f"--results={tmp_path}")
    events, odd = tables(tmp_path, "messages")
    assert [row[:2] for row in events["rows"]] == [["json", 10]]
    assert all(len(row) == len(events["columns"]) for row in events["rows"])
    assert [row[0] for row in odd["rows"]] == ["not UTF-8"]


def test_per_record_stands_beside_the_reference(tmp_path):
    run("per_record", *SMALL["per_record"], f"--results={tmp_path}")
    errors, ticks = tables(tmp_path, "per_record")
    assert len(errors["rows"]) == 6
    assert all(row[4] > 0 and row[8] > 0 for row in errors["rows"])
    ((number, error, _, _, plain),) = ticks["rows"]
    assert number == 50
    assert 0 < error < 5 * plain


def test_infinite_compares_with_what_knows_no_data(tmp_path):
    run("infinite", *SMALL["infinite"], f"--results={tmp_path}")
    errors, pools, cost = tables(tmp_path, "infinite")
    assert {row[0] for row in errors["rows"]} == {"even", "drifting"}
    assert {row[2] for row in errors["rows"]} == {0.5, 2.0, 10.0}
    assert all(row[3] > 0 for row in errors["rows"])
    assert [row[0] for row in pools["rows"]] == ["even"] * 3 + ["drifting"] * 3
    assert [row[:2] for row in cost["rows"]] == [[1000, 10], [100, 30]]


def test_presence_is_measured_with_a_limit_and_without(tmp_path):
    run("presence", *SMALL["presence"], f"--results={tmp_path}")
    errors, costs = tables(tmp_path, "presence")
    assert [row[0] for row in errors["rows"]] == ["ratings", "flights-hourly"]
    assert all(0 < row[3] <= 1 for row in errors["rows"])
    assert [row[:2] for row in costs["rows"]] == [
        [users, most] for users in ("in the table", "outside it") for most in (None, 3)
    ]
    assert all(row[6] <= 8 for row in costs["rows"] if row[1])


def test_for_ever_errs_less_than_what_shares_one_budget(tmp_path):
    run("for_ever", *SMALL["for_ever"], f"--results={tmp_path}")
    (errors,) = tables(tmp_path, "for_ever")
    assert [row[1] for row in errors["rows"]] == [3, 2, 4, 3]
    assert all(0 < row[2] <= 1 and 0 < row[3] <= 1 for row in errors["rows"])
    assert all(0 < row[8] <= 1 for row in errors["rows"])


def test_adaptive_fills_its_tables(tmp_path):
    run("adaptive", "--quick", "--processes=1", f"--results={tmp_path}")
    found = tables(tmp_path, "adaptive")
    before, errors, parts, _, bins, flights, costs = found
    assert [row[:2] for row in before["rows"]] == [["sin", "adaptive"]]
    assert [row[0] for row in costs["rows"]] == [100, 10_000]
    assert [row[1] for row in errors["rows"][:3]] == ["pbd", "pba", "adaptive"]
    assert [row[0] for row in parts["rows"]][:2] == ["pba", "ablation"]
    assert {row[0] for row in bins["rows"]} == {10_000, 1_000_000}
    assert {row[1] for row in flights["rows"]} == {365}
    assert all(len(row) == len(one["columns"]) for one in found for row in one["rows"])


def test_end_to_end_counts_with_and_without_beam(tmp_path):
    out = run(
        "end_to_end",
        *("--events=20000", "--many_users=10000", "--repeats=1", "--sizes", "20000"),
        *("--pipeline_dp_events=0", f"--results={tmp_path}"),
    )
    ours, bare = tables(tmp_path, "end_to_end")
    assert {row[0] for row in ours["rows"]} == {20000}
    assert all(row[6] > 0 for row in ours["rows"])
    assert [row[1] for row in bare["rows"]] == [10_000]
    assert "appended" in out


@pytest.mark.skipif(importlib.util.find_spec("polars") is None, reason="needs polars")
@pytest.mark.skipif(importlib.util.find_spec("duckdb") is None, reason="needs duckdb")
def test_query_engines_count_what_bounding_keeps(tmp_path):
    kept, flags = [], ("--events=3000", "--users", "10", "--repeats=1", f"--folder={tmp_path}")
    run("query_engines", *flags, f"--results={tmp_path}")
    (rows,) = tables(tmp_path, "query_engines")
    assert [row[1:3] for row in rows["rows"][:2]] == [["adaptive", "all"], ["pba", "all"]]
    assert all(number > 0 for row in rows["rows"] for number in row[3:])
    for what in dict.fromkeys(row[1] for row in rows["rows"][2:]):
        output = tmp_path / "counts.parquet"
        case = {"what": what, "threads": 1, "output": str(output)}
        (path,) = tmp_path.glob("3000-*.parquet")
        run("query_engines", f"--case={json.dumps({**case, 'path': str(path)})}")
        kept.append(pc.sum(pq.read_table(output).column(2)).as_py())
    assert kept == [10] * 3  # each user once in the only hour


@pytest.mark.skipif(importlib.util.find_spec("pipeline_dp") is None, reason="needs pipeline-dp")
def test_pipeline_dp_counts_the_same_events(tmp_path):
    events, output = tmp_path / "events.parquet", tmp_path / "counts.csv"
    case = {"path": str(events), "users": 1000, "slots": 1, "ordered": True, "events": 2000}
    run("end_to_end", f"--case={json.dumps(case)}")
    case = {
        "path": str(events),
        "output": str(output),
        "values": ["value-00", "value-01"],
        "first_slot": 1_704_067_200 // 3600,
        "slots": 1,
    }
    run("_pipeline_dp", f"--case={json.dumps(case)}")
    assert len(output.read_text().splitlines()) == 2


def test_the_bare_loop_counts_what_bounding_keeps(tmp_path):
    events, requirements = tmp_path / "events.parquet", tmp_path / "requirements.parquet"
    for path, number in ((requirements, 0), (events, 3000)):
        case = {"path": str(path), "users": 10, "slots": 3, "ordered": True, "events": number}
        run("end_to_end", f"--case={json.dumps(case)}")
    case = {
        "events": str(events),
        "requirements": str(requirements),
        "values": [f"value-{b:02}" for b in range(100)],
        "dictionary": True,
    }
    answer = json.loads(run("_bare_loop", f"--case={json.dumps(case)}"))
    assert answer == {"counted": 30, "slots": 3}


def test_the_page_follows_from_the_results(tmp_path):
    page = tmp_path / "RESULTS.md"
    run("report", f"--output={page}")
    assert page.read_text() == (BENCHMARKS / "RESULTS.md").read_text()


def test_the_way_of_one_event_does_not_grow(tmp_path):
    run("trace_event", f"--results={tmp_path}")
    (table,) = tables(tmp_path, "trace_event")
    name, _, *functions_in_modules = table["rows"][0]
    assert name == "all"
    way, mechanism = (tuple(map(int, each.split(" in "))) for each in functions_in_modules)
    # What runs differs by a function or two from machine to machine.
    for found, goal in ((way, (268, 48)), (mechanism, (122, 17))):
        assert found[0] <= goal[0]
        assert found[1] <= goal[1]
    # Nothing of either is left out: a module of the mechanism's package runs behind no other door.
    modules = [row for row in table["rows"][1:] if row[2] or row[3]]
    assert way[0] + mechanism[0] == sum(row[2] + row[3] for row in modules)
    assert all(
        row[0].startswith("streamveil.mechanisms.adaptive.") == bool(row[3]) for row in modules
    )
