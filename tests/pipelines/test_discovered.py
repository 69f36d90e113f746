"""Keys that are discovered, from Python and from the command line to results and cards."""

import csv
import itertools
import json
import logging
import random
import re
import shutil

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.engine.capabilities import OF_DISCOVERED, OF_DISCOVERED_ON_BEAM, OF_GROWING
from streamveil.io import StateFolder
from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.core.records import MachineFault, NothingChosen
from streamveil.pipelines.commands import plan

KEY = bytes(range(32))
ASKED = {"user": "user", "time": "day", "slot": "1d", "noise_key": KEY}
OPTIONS = {**ASKED, "budget": "8/7d", "delta": 1e-6, "start": "2024-05-02", "end": "2024-05-16"}
FLAGS = ("--user_column=user", "--time_column=day", "--start=2024-05-02", "--end=2024-05-16")
BUDGET = ("--budget=8/7d", "--delta=1e-6")


def events(users=900):
    draws = random.Random(3)
    rows = {"user": [], "term": [], "kind": [], "bill": [], "day": []}
    for day in range(2, 16):
        for user in range(users):
            if draws.random() < 0.5:
                continue
            term = draws.choices(["tea", " Tea", "milk", f"own {user}"], [5, 5, 4, 6])[0]
            rows["user"].append(f"u{user}")
            rows["term"].append(term)
            rows["kind"].append(draws.choice(["buy", "look"]))
            rows["bill"].append(draws.uniform(5, 15))
            rows["day"].append(f"2024-05-{day:02}")
    return pa.table(rows)


EVENTS = events()


def released(*queries, data=EVENTS, **asked):
    return sv.release(data, *queries, **{**OPTIONS, **asked})


def searches(keys="discover", **options):
    return sv.count("searches", by="term", keys=keys, **options)


def keys_of(result, query="searches"):
    return set(result[query].to_arrow()["key"].to_pylist())


def test_shared_keys_are_found_and_no_others():
    found = released(searches())
    assert keys_of(found) == {"tea", "Tea", "milk", "unlisted"}
    assert found.summary["kept"] == EVENTS.num_rows


def test_all_events_are_counted_by_key():
    table = released(searches({"discover": {"fold_case": True}})).to_arrow().to_pandas()
    terms = EVENTS["term"].to_pylist()
    totals = table.groupby("key")["value"].sum()
    assert set(totals.index) == {"tea", "milk", "unlisted"}
    teas = sum(one.strip().lower() == "tea" for one in terms)
    assert totals["tea"] == pytest.approx(teas, rel=0.1)
    assert totals["milk"] == pytest.approx(terms.count("milk"), rel=0.1)
    assert totals.sum() == pytest.approx(len(terms), rel=0.05)


def test_the_same_events_in_another_order_give_the_same():
    order = list(range(EVENTS.num_rows))
    random.Random(1).shuffle(order)
    first, again = released(searches()), released(searches(), data=EVENTS.take(order))
    assert first.to_arrow().equals(again.to_arrow())


def test_lists_of_keys():
    rules = {"allow": ["coffee"], "deny": ["milk"], "fold_case": True}
    assert keys_of(released(searches({"discover": rules}))) == {"tea", "coffee", "unlisted"}


def test_the_bin_of_other_keys_has_the_name_that_it_is_given():
    found = released(searches({"discover": {"fold_case": True}}, other="rest"))
    assert keys_of(found) == {"tea", "milk", "rest"}


def test_nothing_is_found_among_keys_of_one_user_each():
    found = released(searches(), data=events(20), budget="1/7d")
    assert keys_of(found) == {"unlisted"}
    assert found.card["data"]["queries"][0]["domain"]["values"] == []


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_ranks_the_keys_that_are_found_and_not_all_others(k):
    found = released(sv.top("top", by="term", keys="discover", k=k, rollups=["1w"]))
    table = found["top"].to_arrow().to_pandas()
    # Keys of one user each are together more than tea.
    assert table.groupby("key")["value"].sum().idxmax() == "unlisted"
    assert table[table["key"] == "unlisted"]["rank"].isna().all()
    ranks = table.groupby(["length", "slot"])["rank"].apply(lambda some: sorted(some.dropna()))
    assert set(map(tuple, ranks)) == {tuple(range(1, min(k, 3) + 1))}
    counted = released(searches()).to_arrow().to_pandas()
    assert set(table["key"]) == set(counted["key"])


def test_top_of_no_keys_has_no_ranks():
    found = released(sv.top("top", by="term", keys="discover", k=3), data=events(20), budget="1/7d")
    table = found["top"].to_arrow()
    assert set(table["key"].to_pylist()) == {"unlisted"}
    assert table["rank"].null_count == table.num_rows


LEVELS = [{"drinks": ["tea", "Tea", "coffee"], "own": ["own *", "unlisted"], "rest": ["milk"]}]


@pytest.mark.parametrize(
    ("statistic", "options"),
    [
        (sv.count, {}),
        (sv.distinct, {}),
        (sv.sum, {"of": "bill", "bounds": (0, 20)}),
        (sv.mean, {"of": "bill", "bounds": (0, 20)}),
        (sv.quantiles, {"of": "bill", "bounds": (0, 20)}),
    ],
)
def test_levels_add_up_discovered_keys_and_all_others(statistic, options):
    asked = {"by": "term", "keys": "discover", **options}
    found = released(statistic("searches", **asked, levels=[*LEVELS, "all"], rollups=["1w"]))
    table = found["searches"].to_arrow().to_pandas()
    keys = {"tea", "Tea", "milk", *(f"unlisted: {group}" for group in ("drinks", "own", "rest"))}
    levels = table.groupby("level")["key"].agg(set).tolist()
    assert levels == [keys | {"unlisted"}, {"drinks", "own", "rest"}, {"all"}]
    if statistic in (sv.count, sv.distinct, sv.sum):
        totals = table[table["length"] == "1w"].groupby("key")["value"].sum()
        assert totals[list(keys)].sum() + totals["unlisted"] == pytest.approx(totals["all"])
        milk = totals["milk"] + totals["unlisted: rest"]
        assert milk == pytest.approx(totals["rest"])
    if statistic is sv.count:
        terms = EVENTS["term"].to_pylist()
        teas = sum(one.strip().lower() == "tea" for one in terms)
        own = sum(one.startswith("own ") for one in terms)
        assert totals["drinks"] == pytest.approx(teas, rel=0.05)
        assert totals["own"] == pytest.approx(own, rel=0.05)
        assert totals["all"] == pytest.approx(len(terms), rel=0.03)
        assert not any(one.startswith("own ") for one in keys_of(found))
        stated = found.card["data"]["queries"][0]["domain"]["discovered"]
        assert stated["groups"] == ["unlisted: drinks", "unlisted: own", "unlisted: rest"]


def test_a_denied_key_is_counted_in_its_group():
    rules = {"discover": {"deny": ["milk"], "fold_case": True}}
    found = released(searches(rules, levels=[{"drinks": ["TEA", "Mil*"], "rest": ["unlisted"]}]))
    totals = found["searches"].to_arrow().to_pandas().groupby("key")["value"].sum()
    assert set(totals.index) == {"tea", "unlisted: drinks", "unlisted", "drinks", "rest"}
    milk = EVENTS["term"].to_pylist().count("milk")
    assert totals["unlisted: drinks"] == pytest.approx(milk, rel=0.1)


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ([{"drinks": ["tea"]}], "'unlisted' is in none of 'drinks'"),
        ([{"tea": ["tea"], "rest": ["unlisted"]}], "levels has 'tea', which is the name of"),
        ([{"a": ["tea"], "b": [" tea", "unlisted"]}], "'tea' is listed twice"),
        ([{"a": ["*", "unlisted"]}], "stands for all keys"),
        ([{"a": ["unlisted"], "unlisted: b": ["x"], "b": ["y"]}], "'unlisted: b' is called as a"),
        (["kind"], "to group by another column, add a query by"),
    ],
)
def test_levels_that_are_no_groups_of_keys_are_refused(levels, words):
    with pytest.raises(ConfigurationError, match=words):
        searches(levels=levels)


def test_an_empty_text_is_no_key():
    blank = [" " if one == "milk" else one for one in EVENTS["term"].to_pylist()]
    data = EVENTS.set_column(1, "term", pa.array(blank))
    found = released(searches(null="none"), data=data)
    assert keys_of(found) == {"tea", "Tea", "unlisted", "none"}


def test_only_events_that_meet_the_conditions_are_discovered():
    found = released(searches(where=sv.where.term == "milk"))
    assert keys_of(found) == {"milk", "unlisted"}
    assert keys_of(released(searches(where=sv.where.kind == "none"), sv.count("all"))) == {
        "unlisted"
    }


def test_whole_numbers_are_keys():
    numbers = [
        7 if one == "milk" else index for index, one in enumerate(EVENTS["term"].to_pylist())
    ]
    data = EVENTS.set_column(1, "term", pa.array(numbers))
    assert keys_of(released(searches(), data=data)) == {"7", "unlisted"}


def terms(of_row, data=EVENTS):
    """The events with other terms."""
    found = pa.array([of_row(row) for row in range(data.num_rows)])
    return data.set_column(data.column_names.index("term"), "term", found)


@pytest.mark.parametrize("deny", ["true", "TRUE", True])
@pytest.mark.parametrize("values", [(True, False), ("TRUE", "False"), ("true", "FALSE")])
def test_all_spellings_of_a_denied_boolean_are_denied(deny, values):
    data = terms(lambda row: values[row % 2])
    found = released(searches({"discover": {"deny": [deny]}}), data=data)
    table = found.to_arrow().to_pandas().groupby("key")["value"].sum()
    assert set(table.index) == {"false", "unlisted"}
    assert table["unlisted"] == pytest.approx(data.num_rows / 2, rel=0.1)


@pytest.mark.parametrize("number", [1, "1"])
def test_a_denied_number_is_its_decimal_text(number):
    rules = {"discover": {"deny": [number]}}
    assert keys_of(released(searches(rules), data=terms(lambda row: 1 + row % 2))) == {
        "2",
        "unlisted",
    }
    texts = terms(lambda row: "01" if row % 2 else "1")
    assert keys_of(released(searches(rules), data=texts)) == {"01", "unlisted"}


HOSTILE = "a\x1b[31m\x07\u202e<b>"


def test_found_keys_are_printed_without_control_characters(run, files, toolbox):
    pq.write_table(terms(lambda row: HOSTILE if row % 2 else "tea"), files / "events.parquet")
    (files / "queries.yaml").write_text(ONE_QUERY)
    tried = run(*BUDGET, "--dry_run")
    outcome = run(*BUDGET, f"--page={files / 'page.html'}")
    assert outcome.code == 0, outcome.err
    assert HOSTILE in pq.read_table(files / "answers" / "searches.parquet")["key"].to_pylist()
    card = toolbox.run("card", str(files / "answers" / "card.json")).out
    page = (files / "page.html").read_text()
    result = released(searches(), data=terms(lambda row: HOSTILE))
    notebook, line = result["searches"]._repr_html_(), str(result["searches"])
    assert "a\\x1b[31m\\x07\\u202e<b>" in tried.out + tried.err
    for text in (outcome.out, outcome.err, tried.out, tried.err, card, page, notebook, line):
        assert not set("\x1b\x07\u202e") & set(text)
    assert "a\\x1b[31m\\x07\\u202e<b>" in card
    for html in (page, notebook):
        assert "a\\x1b[31m\\x07\\u202e&lt;b&gt;" in html


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint16(), pa.uint32(), pa.uint64()])
def test_dictionaries_of_any_kind_have_keys(kind):
    coded = EVENTS["term"].combine_chunks().dictionary_encode()
    places = [None, *coded.indices.to_pylist()[1:]]
    again = pa.DictionaryArray.from_arrays(pa.array(places, kind), coded.dictionary)
    found = released(searches(null="none"), data=EVENTS.set_column(1, "term", again))
    assert keys_of(found) == {"tea", "Tea", "milk", "unlisted", "none"}


def test_a_stream_that_can_be_read_once_is_released_as_a_table_is():
    again = released(searches(), data=EVENTS.to_reader())
    assert again.to_arrow().equals(released(searches()).to_arrow())


def test_fractions_are_no_keys():
    with pytest.raises(ConfigurationError, match="column 'bill' holds double"):
        released(sv.count("bills", by="bill", keys="discover"))


def test_several_queries_share_the_budget_and_delta():
    found = released(searches(), sv.distinct("terms", by="term", keys="discover"))
    (stated,) = found.card["promise"]["classes"]
    assert stated["look"] == pytest.approx(2 * 0.2 * 8)
    assert found.card["promise"]["delta"] == 1e-6
    assert keys_of(found) == keys_of(found, "terms") == {"tea", "Tea", "milk", "unlisted"}
    most = max(found.ledger["spent_in_window"].to_pylist())
    assert 2 * 0.2 * 8 < most <= 8


def test_the_card_says_delta(pytestconfig):
    found = released(searches())
    path = pytestconfig.rootpath / "pipelines" / "cards" / "card.schema.json"
    jsonschema.Draft202012Validator(json.loads(path.read_text())).validate(found.card)
    loss = found.card["deployment"]["privacy_loss"]["privacy_parameters"]
    assert loss == {"epsilon": 8.0, "delta": 1e-6}
    assert found.card["deployment"]["dp_variant"]["variant_name"] == "Approximate DP"


def test_the_log_says_how_many_users_a_key_needs(caplog):
    with caplog.at_level(logging.INFO, "streamveil"):
        released(searches())
    assert "in slots of 1w: a key that is counted for 33 users in one of them is" in caplog.text
    assert "listed: 3 keys" in caplog.text


# ---- the command -------------------------------------------------------------------------------

QUERIES = """
slot: 1d
queries:
  - {name: searches, by: term, keys: {discover: {fold_case: true}}}
  - {name: bill, statistic: mean, of: bill, bounds: [0, 30], by: term, keys: discover, every: 1w}
"""
ONE_QUERY = "".join(QUERIES.splitlines(keepends=True)[:4])


@pytest.fixture
def files(tmp_path):
    (tmp_path / "queries.yaml").write_text(QUERIES)
    (tmp_path / "key").write_text(KEY.hex())
    (tmp_path / "key").chmod(0o600)
    pq.write_table(EVENTS, tmp_path / "events.parquet")
    return tmp_path


@pytest.fixture
def run(toolbox, files):
    def run(*flags):
        return toolbox.run(
            "release",
            f"--queries={files / 'queries.yaml'}",
            f"--input={files / 'events.parquet'}",
            f"--output={files / 'answers'}",
            f"--noise_key=file:{files / 'key'}",
            *FLAGS,
            *flags,
        )

    return run


def test_the_command_releases_the_same_as_python(run, files, toolbox):
    flags = f"--ledger={files / 'answers' / 'ledger.csv'}", f"--page={files / 'page.html'}"
    outcome = run(*BUDGET, *flags)
    assert outcome.code == 0, outcome.err
    assert "δ = 1e-06</b>over any 7 days" in (files / "page.html").read_text()
    assert "listed: 2 keys" in outcome.out
    options = {**OPTIONS, "slot": None, "noise_key": f"file:{files / 'key'}"}
    found = sv.release(EVENTS, str(files / "queries.yaml"), **options)
    for name in ("searches", "bill"):
        written = pq.read_table(files / "answers" / f"{name}.parquet")
        assert written["value"].to_pylist() == found[name].to_arrow()["value"].to_pylist()
    card = files / "answers" / "card.json"
    checked = toolbox.run("card", "--check", str(card))
    assert checked.code == 0, checked.out
    assert "with delta 1e-06, at most" in toolbox.run("card", str(card)).out


def test_a_runner_gives_the_same_files_and_card_and_page(run, files):
    """The card and the page name the keys, which the launcher reads from the results."""
    flags = f"--ledger={files / 'answers' / 'ledger.csv'}", f"--page={files / 'page.html'}"
    made = []
    for more in ((), ("--runner=FnApiRunner",)):
        outcome = run(*BUDGET, *flags, *more)
        assert outcome.code == 0, outcome.err
        assert "listed: 2 keys" in outcome.out
        written = {path.name: path for path in (files / "answers").iterdir()}
        card = json.loads(written.pop("card.json").read_text())
        page = re.sub(r"written [^<]*", "", (files / "page.html").read_text())
        made.append(({name: path.read_bytes() for name, path in written.items()}, card, page))
        for path in (*(files / "answers").iterdir(), files / "page.html"):
            path.unlink()
    (here, card, page), (there, other, shown) = made
    assert set(here) == {"searches.parquet", "bill.parquet", "ledger.csv"}
    assert there == here
    assert other["data"] == card["data"]
    assert {**card, "files": 0, "runs": 0} == {**other, "files": 0, "runs": 0}
    assert shown == page


OWN_DELTAS = {"user": ["u1", "u2"], "window": [7, 7], "epsilon": [8.0, 8.0], "delta": [0.0, 1e-7]}
GROUPED = "levels: [{drinks: [tea], rest: [milk, own *, unlisted]}, all]"


@pytest.mark.parametrize(
    ("more", "flags"),
    [
        (f"{GROUPED}, ", BUDGET),
        ("", ("--requirements=deltas.parquet", "--default_requirement=7,8,900", BUDGET[1])),
        ("", (*BUDGET, "--test_mode")),
    ],
    ids=["levels", "deltas", "test mode"],
)
def test_a_runner_gives_the_same_with_other_features(run, files, monkeypatch, more, flags):
    monkeypatch.chdir(files)
    pq.write_table(pa.table(OWN_DELTAS), "deltas.parquet")
    text = QUERIES.replace("name: searches, ", f"name: searches, {more}")
    (files / "queries.yaml").write_text(text)
    made = []
    for runner in ((), ("--runner=FnApiRunner",)):
        outcome = run(*flags, *runner)
        assert outcome.code == 0, outcome.err
        written = {path.name: path.read_bytes() for path in (files / "answers").glob("*.parquet")}
        made.append(written)
        for path in (files / "answers").iterdir():
            path.unlink()
    assert set(made[0]) == {"searches.parquet", "bill.parquet"}
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("why", "bounds", "flags"),
    [
        ("auto_bounds", "auto", BUDGET),
        ("limit", "[0, 30]", ("--budget=8/28d", BUDGET[1], "--max_slots=1")),
        ("limit", "[0, 30]", ("--guarantee=user", "--epsilon=8", BUDGET[1], "--max_slots=3")),
    ],
)
def test_what_a_runner_cannot_combine_is_refused(run, files, why, bounds, flags):
    text = QUERIES.replace("bounds: [0, 30]", f"bounds: {bounds}")
    (files / "queries.yaml").write_text(text)
    outcome = run(*flags, "--runner=FnApiRunner")
    assert outcome.code == 2
    assert OF_DISCOVERED_ON_BEAM[why] in outcome.err
    assert not list((files / "answers").glob("*"))


def test_a_runner_says_that_there_are_too_many_pairs(run, monkeypatch):
    monkeypatch.setattr("streamveil.engine.run.discover.MOST_PAIRS", 9)
    outcome = run(*BUDGET, "--runner=FnApiRunner")
    assert outcome.code == 2
    assert "more than 9 pairs of a key and a user" in outcome.err


@pytest.mark.parametrize("more", [(), ("--runner=FnApiRunner",)], ids=["here", "runner"])
def test_a_dry_run_says_how_many_users_a_key_needs_and_discovers_nothing(run, files, more):
    rules = "keys: {discover: {fold_case: true, allow: [coffee]}}"
    text = QUERIES.replace("keys: {discover: {fold_case: true}}", rules)
    (files / "queries.yaml").write_text(text)
    outcome = run(*BUDGET, "--dry_run", *more)
    assert outcome.code == 0, outcome.err
    output = outcome.out + outcome.err
    assert "keys of searches are discovered in slots of 1w: a key that " in output
    assert "counts all keys that are not on the list allow as unlisted" in output
    assert "query: searches: count of 1d in 2 bins by adaptive" in output
    assert "query: bill: mean of 1w in 1 bin by adaptive" in output
    assert re.search(r"^bound: +query searches: [\d,]+ of [\d,]+ events would be", output, re.M)
    assert "error: searches: for one key with all events: count about" in output
    assert not list((files / "answers").glob("*"))


def test_a_card_without_its_delta_is_at_fault(run, files, toolbox):
    assert run(*BUDGET).code == 0
    path = files / "answers" / "card.json"
    card = json.loads(path.read_text())
    card["promise"]["delta"] = 0
    path.write_text(json.dumps(card))
    checked = toolbox.run("card", "--check", str(path))
    assert checked.code == 1
    assert "delta" in checked.out + checked.err


def test_plans_dry_runs_and_evaluations_have_levels(run, toolbox, files):
    path = files / "queries.yaml"
    groups = "levels: [{drinks: [tea], rest: [milk, own *, unlisted]}, all]"
    path.write_text(ONE_QUERY.replace("name: searches, ", f"name: searches, {groups}, "))
    planned = toolbox.run(
        "plan", f"--queries={path}", "--default_requirement=7,8,900", "--delta=1e-6"
    )
    assert planned.code == 0, planned.err
    assert run(*BUDGET, "--dry_run").code == 0
    options = {"user": "user", "time": "day", "budget": "8/7d", "delta": 1e-6, "seeds": 1}
    rows = sv.evaluate(EVENTS, queries=str(path), **options).to_arrow().to_pylist()
    (keys,) = (one for one in rows if (one["query"], one["figure"]) == ("searches", "keys"))
    assert (keys["found"], keys["recall"], keys["precision"]) == (2, 1, 1)


def test_the_plan_says_how_many_users_a_key_needs(toolbox, files):
    flags = (f"--queries={files / 'queries.yaml'}", "--default_requirement=7,8,900")
    (files / "queries.yaml").write_text(ONE_QUERY)
    outcome = toolbox.run(plan.__name__.rpartition(".")[2], *flags, "--delta=1e-6")
    assert outcome.code == 0, outcome.err
    assert "a key that is counted for 33 users in one of them is found" in outcome.out
    refused = toolbox.run("plan", *flags)
    assert refused.code == 2
    assert OF_DISCOVERED["delta"] in refused.err


def test_the_plan_has_the_noise_of_a_key_among_other_bins(toolbox, files):
    """A single bin of slots longer than a base slot would get half of the noise."""
    flags = (f"--queries={files / 'queries.yaml'}", "--rate=100", "--delta=1e-9")

    def planned(keys, epsilon):
        text = f"slot: 1d\nqueries: [{{name: sales, by: term, every: 1w, keys: {keys}}}]\n"
        (files / "queries.yaml").write_text(text)
        outcome = toolbox.run("plan", *flags, f"--budget={epsilon}/7d")
        assert outcome.code == 0, outcome.err
        (row,) = re.findall(r"^\| sales .* \| ([\d.]+)% \| ([\d.]+) \|$", outcome.out, re.M)
        return tuple(map(float, row))

    share, error = planned("discover", 1)
    assert share == 80
    _, listed = planned("[a], other: unlisted", 0.8)
    assert 0.8 < error / listed < 1.25


# ---- deltas of requirements --------------------------------------------------------------------

TERMS = {"tea": range(300), "milk": range(300, 600), "soup": range(600, 900)}
"""Each term is used by other users."""


def by_group(deltas, users=900):
    """A table of requirements in which the users of each term have a delta."""
    groups = [deltas[user * len(deltas) // users] for user in range(users)]
    columns = {"user": [f"u{user}" for user in range(users)], "window": [7] * users}
    return pa.table({**columns, "epsilon": [8.0] * users, "delta": pa.array(groups, pa.float64())})


def own_terms():
    """Events in which the users of each group have a term that only they have."""
    users = EVENTS["user"].to_pylist()
    return terms(
        lambda row: next(term for term, some in TERMS.items() if int(users[row][1:]) in some)
    )


def test_users_with_delta_0_are_not_counted_in_the_discovery_but_in_listed_keys():
    asked = {"requirements": by_group([1e-6, None, 0.0]), "budget": None}
    found = released(searches(), data=own_terms(), **asked)
    assert keys_of(found) == {"tea", "milk", "unlisted"}
    assert found.summary["kept"] == EVENTS.num_rows
    listed = released(searches({"discover": {"allow": ["soup"]}}), data=own_terms(), **asked)
    assert keys_of(listed) == {"tea", "milk", "soup", "unlisted"}
    totals = listed.to_arrow().to_pandas().groupby("key")["value"].sum()
    true = own_terms()["term"].to_pylist().count("soup")
    assert totals["soup"] == pytest.approx(true, rel=0.1)


def test_the_card_says_the_delta_of_each_class(pytestconfig, files, run, toolbox):
    pq.write_table(by_group([1e-4, None, 0.0]), files / "users.parquet")
    flags = (f"--requirements={files / 'users.parquet'}", "--delta=1e-6")
    outcome = run(*flags, f"--ledger={files / 'ledger.csv'}", f"--page={files / 'page.html'}")
    assert outcome.code == 0, outcome.err
    path = files / "answers" / "card.json"
    card = json.loads(path.read_text())
    schema = pytestconfig.rootpath / "pipelines" / "cards" / "card.schema.json"
    jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(card)
    assert card["promise"]["delta"] == 1e-4
    assert [one["delta"] for one in card["promise"]["classes"]] == [1e-6, 0.0, 1e-4]
    assert "δ = 0.0001</b>over any 7 days" in (files / "page.html").read_text()
    printed = toolbox.run("card", str(path)).out
    assert "with the delta of each class, at most" in printed
    assert "epsilon 8 over any 7 slots, delta 1e-06: 300 users" in printed
    checking = ("--check", str(path), f"--ledger={files / 'ledger.csv'}")
    checked = toolbox.run("card", *checking)
    assert checked.code == 0, checked.out + checked.err
    card["promise"]["classes"][2]["delta"] = 1e-9
    path.write_text(json.dumps(card))
    checked = toolbox.run("card", *checking)
    assert checked.code == 1
    assert "the largest delta of its classes is 1e-06" in checked.out + checked.err


def test_each_class_keeps_its_own_delta():
    from streamveil.mechanisms.discovery.deltas import delta_units
    from streamveil.mechanisms.discovery.discovery_filter import DiscoveryFilter

    spent, charge = [], DiscoveryFilter.charge

    def charged(books, slot, epsilon, delta):
        spent.append((slot, epsilon, delta))
        charge(books, slot, epsilon, delta)

    table = by_group([1e-6, 1e-9, 1e-9, 0.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiscoveryFilter, "charge", charged)
        released(searches(), requirements=table, budget=None, data=own_terms())
    assert len(spent) >= 2
    for both in itertools.pairwise(spent):  # a window of 7 days meets 2 of these slots
        for k, granted in enumerate((0, delta_units(1e-9), delta_units(1e-6))):
            used = sum(int(delta[k]) for _, _, delta in both)
            assert used <= granted
            assert (used > 0) == (granted > 0)
            assert (sum(int(epsilon[k]) for _, epsilon, _ in both) > 0) == (granted > 0)


def test_a_delta_that_is_the_same_for_all_is_as_the_delta_of_the_run():
    asked = {"requirements": by_group([1e-6]), "budget": None, "delta": 1e-9}
    plain = {**asked, "requirements": asked["requirements"].drop_columns("delta"), "delta": 1e-6}
    assert keys_of(released(searches(), **asked)) == keys_of(released(searches(), **plain))


def test_deltas_are_ignored_with_a_notice_where_no_keys_are_discovered(caplog):
    table = by_group([1e-4, None, 0.0])
    options = {"budget": None, "delta": None, "run": sv.RunOptions(max_rejected=1)}
    for queries in ((searches(["tea"]),), (searches(["tea"]), sv.count("all"))):
        with caplog.at_level(logging.INFO, "streamveil"):
            caplog.clear()
            found = released(*queries, requirements=table, **options)
        assert caplog.text.count("the requirements give a delta, which is ignored: no keys") == 1
        plain = released(*queries, requirements=table.drop_columns("delta"), **options)
        assert found.card["promise"] == plain.card["promise"]
        assert [one["users"] for one in found.card["promise"]["classes"]] == [900]
        name = "searches"
        assert found[name].to_arrow().equals(plain[name].to_arrow())


def test_the_command_says_that_deltas_are_ignored(toolbox, files):
    pq.write_table(by_group([1e-4, None, 0.0]), files / "users.parquet")
    flags = ("--value_column=kind", "--domain=buy,look", "--slot=1d", *FLAGS)
    outcome = toolbox.run(
        *("release", f"--input={files / 'events.parquet'}", f"--output={files / 'out.csv'}"),
        *(f"--requirements={files / 'users.parquet'}", *flags),
    )
    assert outcome.code == 0, outcome.err
    assert "the requirements give a delta, which is ignored" in outcome.log


def test_deltas_where_requirements_change_are_refused():
    asked = {"requirements": by_group([1e-6, None, 0.0]), "budget": None}
    with pytest.raises(ConfigurationError) as error:
        released(searches(), requirement_changes=CHANGES, **asked)
    assert OF_DISCOVERED["changing"] in str(error.value)


def test_a_run_needs_a_default_delta_for_users_without_one():
    with pytest.raises(ConfigurationError) as error:
        released(searches(), requirements=by_group([1e-6]), budget=None, delta=None)
    assert OF_DISCOVERED["delta"] in str(error.value)


def test_a_delta_cannot_change_while_a_stream_runs(in_passes, files):
    flags = (f"--requirements={files / 'users.parquet'}", "--delta=1e-6")
    pq.write_table(by_group([1e-4, None, 0.0]), files / "users.parquet")
    assert in_passes(5, flags=flags).code == 0
    assert in_passes(9, flags=flags, begun=True).code == 0
    pq.write_table(by_group([1e-4, None, 1e-6]), files / "users.parquet")
    refused = in_passes(12, flags=flags, begun=True)
    assert refused.code == 2
    assert "the table of users changed" in refused.err


def test_the_plan_takes_the_delta_of_each_class(toolbox, files):
    pq.write_table(by_group([1e-4, 1e-4, 0.0]), files / "users.parquet")
    (files / "queries.yaml").write_text("\n".join(QUERIES.splitlines()[:4]) + "\n")
    flags = (f"--queries={files / 'queries.yaml'}", f"--requirements={files / 'users.parquet'}")
    outcome = toolbox.run("plan", *flags, "--delta=1e-6")
    assert outcome.code == 0, outcome.err
    assert "300 users of 900 are not counted in the discovery, because" in outcome.out
    needed = re.search("a key that is counted for ([0-9]+) users", outcome.out)
    # 2/3 of the users count, under a delta that is 100 times larger
    assert 25 < int(needed[1]) <= 33


# ---- participation limits ----------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, "auto", "auto:0.01"])
def test_limits_change_nothing_about_the_keys_that_are_found(limit):
    asked = {"budget": "8/14d", "delta": 1e-6}
    every = released(searches(), **asked)
    found = released(searches(), max_slots=limit, **asked)
    assert keys_of(found) == keys_of(every)
    stated, plain = (one.card["promise"]["classes"][0] for one in (found, every))
    assert stated["look"] == plain["look"]  # the full price, which no limit lowers
    assert stated["look"] + stated["limits"][0]["epsilon"] <= 8


def test_limits_of_the_table_apply_to_the_results_alone():
    users = [f"u{user}" for user in range(900)]
    limits = [1 if user < 450 else None for user in range(900)]
    table = pa.table(
        {"user": users, "window": [14] * 900, "epsilon": [8.0] * 900, "max_slots": limits}
    )
    deltas = pa.array([1e-6, None, 1e-9] * 300, pa.float64())
    table = table.append_column("delta", deltas)
    found = released(searches(), requirements=table, budget=None)
    assert keys_of(found) == {"tea", "Tea", "milk", "unlisted"}
    stated = [
        (one["limits"][0]["max_slots"], one["delta"]) for one in found.card["promise"]["classes"]
    ]
    assert stated == [(limit, delta) for limit in (None, 1) for delta in (1e-6, 1e-9, 1e-6)]
    figures = found.summary["queries"]["searches"] if "queries" in found.summary else found.summary
    assert figures["beyond_limit"] > 1000


def test_a_window_of_a_limited_user_costs_no_more_than_its_budget(run, files, toolbox):
    from streamveil.mechanisms.core.budgets import to_units
    from streamveil.mechanisms.discovery.discovery import Discovery

    spent, find = {}, Discovery.find

    def finding(discovery, slot, pairs):
        prices = spent.setdefault(id(discovery), {})
        (draw,) = discovery.terms.draws
        prices[slot] = int(discovery.terms.epsilon[0]) * int(draw.changed.max())
        return find(discovery, slot, pairs)

    ledger = files / "ledger.csv"
    (files / "queries.yaml").write_text(QUERIES.replace(", every: 1w", ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Discovery, "find", finding)
        flags = ("--budget=8/14d", "--delta=1e-6", "--max_slots=1", f"--ledger={ledger}")
        outcome = run(*flags)
    assert outcome.code == 0, outcome.err
    # A window meets two discovery slots of its own length, and with one key of a user in each,
    # changed in part. In two blocks of a window with one slot each, four slots can differ.
    assert len(spent) == 2
    discovered = sum(sum(sorted(prices.values())[-2:]) for prices in spent.values())
    booked = list(csv.DictReader(ledger.read_text().splitlines()))
    on_results = 0
    for query in ("searches", "bill"):
        own = [float(row["spent"]) for row in booked if row["query"] == query]
        assert len(own) == 14
        # A twentieth of the query's budget is for the share of the events that count.
        on_results += sum(int(to_units(one)) for one in sorted(own)[-4:]) + to_units(0.3 * 8 / 20)
    assert to_units(0.9 * 2 * 0.2 * 8) < discovered <= 2 * to_units(0.2 * 8)
    assert to_units(0.99 * 8) < discovered + on_results <= to_units(8.0)
    card = files / "answers" / "card.json"
    checking = ("--check", str(card), f"--ledger={ledger}")
    assert toolbox.run("card", *checking).code == 0
    cheap = f'"searches",{booked[1]["slot"]}'
    dearer = [
        line.replace(booked[1]["spent"], "0.65") if line.startswith(cheap) else line
        for line in ledger.read_text().splitlines()
    ]
    ledger.write_text("\n".join(dearer) + "\n")
    assert toolbox.run("card", *checking).code == 1


def test_limits_are_refused_in_passes(in_passes, files):
    (files / "queries.yaml").write_text(QUERIES.replace(", every: 1w", ""))
    refused = in_passes(5, flags=("--budget=8/14d", "--delta=1e-6", "--max_slots=1"))
    assert refused.code == 2
    assert OF_GROWING["limit"] in refused.err


# ---- lifetime budgets --------------------------------------------------------------------------

LIFETIME = {"guarantee": "user", "epsilon": 8.0, "max_slots": 3, "budget": None}


def test_with_a_lifetime_budget_all_of_the_input_is_one_discovery_slot(caplog):
    # A key that one other user has on each day: in no slot of a few days are there many.
    rare = {f"u{7 * day}": day for day in range(2, 16)}
    days, users = EVENTS["day"].to_pylist(), EVENTS["user"].to_pylist()
    first = {(user, f"2024-05-{day:02}") for user, day in rare.items()}
    data = terms(lambda row: "rare" if (users[row], days[row]) in first else f"own {users[row]}")
    number = len({row for row in zip(users, days, strict=True) if row in first})
    assert number >= 5
    with caplog.at_level(logging.INFO, "streamveil"):
        query = searches({"discover": {"max_keys": 2}})
        found = released(query, data=data, **{**LIFETIME, "epsilon": 80.0})
    pattern = "in the whole input: a key that is counted for ([0-9]+) users in it is found"
    assert int(re.search(pattern, caplog.text)[1]) < number
    assert keys_of(found) == {"rare", "unlisted"}
    (stated,) = found.card["promise"]["classes"]
    assert (stated["window"], stated["epsilon"]) == (None, 80.0)
    assert stated["look"] == pytest.approx(0.2 * 80)
    assert stated["look"] + stated["limits"][0]["epsilon"] <= 80


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_a_lifetime_costs_no_more_than_its_budget(run, files, toolbox, adjacency):
    from streamveil.mechanisms.core.budgets import to_units
    from streamveil.mechanisms.discovery.deltas import delta_units
    from streamveil.mechanisms.discovery.discovery import Discovery

    spent, find = [], Discovery.find

    def finding(discovery, slot, pairs):
        # All events of a user go: a key of the user in each query, or it is replaced by another.
        keys = 2 if adjacency == "replace" else 1
        spent.append((slot, keys * int(discovery.terms.epsilon[0]), int(discovery.terms.delta[0])))
        return find(discovery, slot, pairs)

    ledger = files / "ledger.csv"
    (files / "queries.yaml").write_text(QUERIES.replace(", every: 1w", ""))
    flags = ("--guarantee=user", "--epsilon=8", "--max_slots=3", "--delta=1e-6")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Discovery, "find", finding)
        outcome = run(*flags, f"--adjacency={adjacency}", f"--ledger={ledger}")
    assert outcome.code == 0, outcome.err
    assert [slot for slot, _, _ in spent] == [0, 0]  # of two queries
    discovered = sum(epsilon for _, epsilon, _ in spent)
    assert to_units(0.9 * 2 * 0.2 * 8) < discovered <= 2 * to_units(0.2 * 8)
    assert 0 < sum(delta for _, _, delta in spent) <= delta_units(1e-6)
    booked = list(csv.DictReader(ledger.read_text().splitlines()))
    on_results = 0
    for query in ("searches", "bill"):
        own = [float(row["spent"]) for row in booked if row["query"] == query]
        # Three slots of a life, and a twentieth for the share of the events that count.
        on_results += sum(int(to_units(one)) for one in sorted(own)[-3:]) + to_units(0.3 * 8 / 20)
    assert to_units(0.99 * 8) < discovered + on_results <= to_units(8.0)
    checked = toolbox.run(
        "card", "--check", str(files / "answers" / "card.json"), f"--ledger={ledger}"
    )
    assert checked.code == 0, checked.out + checked.err


def test_longer_discovery_slots_are_refused_with_a_lifetime_budget():
    with pytest.raises(ConfigurationError, match="windows is 2, and with a lifetime budget all of"):
        released(searches({"discover": {"windows": 2}}), **LIFETIME)


def test_a_lifetime_budget_for_all_slots_together_is_refused():
    asked = {**LIFETIME, "guarantee": "infinite", "max_slots": None}
    with pytest.raises(ConfigurationError, match="works only for a single count by key"):
        released(searches(), **asked)


def test_a_lifetime_budget_is_refused_in_passes(in_passes):
    flags = ("--guarantee=user", "--epsilon=8", "--max_slots=3", "--delta=1e-6")
    refused = in_passes(5, flags=flags)
    assert refused.code == 2
    assert OF_GROWING["lifetime"] in refused.err


# ---- what is refused ---------------------------------------------------------------------------

CHANGES = pa.table(
    {
        "user": ["u1"],
        "slot": [19_850],
        "window_backward": [7],
        "epsilon_backward": [8.0],
        "window_forward": [7],
        "epsilon_forward": [8.0],
    }
)


@pytest.mark.parametrize(
    ("why", "asked"),
    [
        ("delta", {"delta": None}),
        ("changing", {"requirement_changes": CHANGES}),
    ],
)
def test_what_cannot_be_combined_is_refused_with_its_reason(why, asked):
    with pytest.raises(ConfigurationError) as error:
        released(searches(), **asked)
    assert f"query 'searches': {OF_DISCOVERED[why]}" in str(error.value)


def test_test_mode_lists_all_keys_and_counts_exactly():
    few = EVENTS.slice(0, 60)
    asked = searches({"discover": {"max_keys": 9, "deny": ["milk"]}}, levels="all")
    bill = sv.mean("bill", bounds="auto", **{**BILL, "keys": {"discover": {"max_keys": 9}}})
    found = released(asked, bill, data=few, run=sv.RunOptions(test_mode=True))
    table = found["searches"].to_arrow().to_pandas()
    terms = [one.strip() for one in few["term"].to_pylist()]
    wanted = {key: terms.count(key) for key in {*terms} - {"milk"}}
    assert any(key.startswith("own ") for key in wanted)
    totals = table.groupby("key")["value"].sum().to_dict()
    assert totals == {**wanted, "unlisted": terms.count("milk"), "all": len(terms)}
    assert set(table["status"]) == {"test"}
    assert (found.ledger.to_pandas()["spent"] == 0).all()
    assert keys_of(found, "bill") == {*wanted, "milk", "unlisted"}


BILL = {"of": "bill", "by": "term", "keys": "discover"}


def test_bounds_are_chosen_for_all_keys_together():
    bill = sv.mean("bill", bounds="auto", levels="all", **BILL)
    spread = sv.quantiles("spread", bounds="auto", quantiles=[0.5], **BILL)
    found = released(bill, spread, searches())
    assert (
        found.summary["queries"]["bill"]["bounds"] == found.summary["queries"]["spread"]["bounds"]
    )
    lower, upper = found.summary["queries"]["bill"]["bounds"]
    assert 0 <= lower <= 5
    assert 14 < upper < 25
    table = found["bill"].to_arrow().to_pandas().groupby("key")["value"].mean()
    assert set(table.index) == {"tea", "Tea", "milk", "unlisted", "all"}
    assert table.to_numpy() == pytest.approx(10, abs=1)
    (promised,) = found.card["promise"]["classes"]
    # A fifth of the budget for each discovery, and a twentieth for the bounds.
    assert promised["look"] == pytest.approx(8 * (3 * 0.2 + 0.05), rel=1e-6)
    spent = found.ledger.to_pandas().groupby("slot")["spent_in_window"].max()
    assert promised["look"] < spent.max() <= 8 + 1e-9


def test_bounds_and_keys_must_leave_some_budget():
    query = sv.mean("bill", bounds="auto", **{**BILL, "keys": {"discover": {"share": 0.95}}})
    with pytest.raises(ConfigurationError, match="leave less than 1 % of the budget"):
        released(query)


def test_without_bounds_the_message_tells_that_the_discovery_has_spent_its_share():
    query = sv.mean("bill", bounds="auto", **BILL)
    with pytest.raises(NothingChosen, match="the discovery of keys has spent its share"):
        released(query, data=events(20), budget="1/7d")


def test_audits_are_refused(toolbox, files):
    flags = (f"--queries={files / 'queries.yaml'}", "--default_requirement=7,8,100")
    outcome = toolbox.run("audit", *flags)
    assert outcome.code == 2
    assert OF_DISCOVERED["audit"] in outcome.err


# ---- evaluate ----------------------------------------------------------------------------------

EVALUATED = """
slot: 1d
queries:
  - {name: searches, by: term, keys: {discover: {fold_case: true, allow: [coffee]}}}
  - {name: bill, statistic: mean, of: bill, bounds: [0, 30]}
"""


def test_evaluate_says_which_keys_are_found_and_their_errors_by_rank(files):
    (files / "queries.yaml").write_text(EVALUATED)
    options = {"user": "user", "time": "day", "start": "2024-05-02", "end": "2024-05-16"}
    found = sv.evaluate(
        EVENTS,
        **{"queries": str(files / "queries.yaml"), "budget": "8/7d", "delta": 1e-6, "seeds": 2},
        **options,
    )
    rows = {(row["query"], row["figure"]): row for row in found.to_arrow().to_pylist()}
    assert list(rows) == [
        ("searches", "count"),
        ("searches", "keys"),
        *(("searches", f"count of ranks {ranks}") for ranks in ("1-10", "11-100", "101-1000")),
        ("bill", "mean"),
        ("all queries", "together"),
    ]
    keys, first, rest = (
        rows["searches", case] for case in ("keys", "count of ranks 1-10", "count of ranks 11-100")
    )
    # Tea and milk, and none of the keys of a user.
    assert (keys["found"], keys["recall"], keys["precision"]) == (2, 1, 1)
    assert (first["found"], first["recall"]) == (2, 0.2)
    assert (rest["found"], rest["recall"], rest["error"], rest["precision"]) == (0, 0, None, None)
    assert 0 < first["error"] < 20
    assert first["coverage"] > 0.7
    assert rows["searches", "count"]["recall"] is None
    assert rows["all queries", "together"]["window_use"] <= 1
    found.write_page(str(files / "page.html"))
    page = (files / "page.html").read_text()
    assert "Which keys are found, and how accurate are the queries?" in page
    assert "fraction of the true keys of these ranks that are found" in page


def test_evaluate_needs_delta_for_keys_that_are_discovered_and_for_no_others(files):
    (files / "queries.yaml").write_text(EVALUATED)
    options = {"user": "user", "time": "day", "seeds": 1}
    with pytest.raises(ConfigurationError) as error:
        sv.evaluate(EVENTS, queries=str(files / "queries.yaml"), budget="8/7d", **options)
    assert OF_DISCOVERED["delta"] in str(error.value)
    with pytest.raises(ConfigurationError, match="is for keys that are discovered"):
        sv.evaluate(EVENTS, value="kind", domain="buy,look", slot="1d", delta=1e-6, **options)


def test_the_error_of_a_single_count_says_how_to_discover_keys():
    with pytest.raises(ConfigurationError, match="write keys: discover in a file of queries"):
        sv.release(EVENTS, value="term", domain="discover", **ASKED, budget="8/7d")


def test_delta_is_for_keys_that_are_discovered():
    with pytest.raises(ConfigurationError, match="no keys are discovered"):
        released(searches(["tea"]), sv.count("all"))
    with pytest.raises(ConfigurationError, match="delta=1e-06 is for keys that are discovered"):
        released(searches(["tea"]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_keys": 0}, "max_keys is 0"),
        ({"max_keys": 2000}, "max_keys is 2000: give at most 1000"),
        ({"windows": 0}, "windows is 0"),
        ({"windows": 1001}, "windows is 1001: give at most 1000"),
        ({"share": 1}, "share is 1: give a number above 0 and at most 0.95"),
        ({"sample": 0}, "sample is 0"),
        ({"share": "1e-3"}, "share is '1e-3': write a number without quotes"),
        ({"key": 2}, "discover: the key 'key' is unknown"),
        ({"allow": []}, "allow is \\[\\]: write a list of keys"),
        ({"deny": "tea"}, "deny is 'tea': write a list of keys"),
        ({"longest": 0}, "longest is 0"),
        ({"fold_case": "yes"}, "fold_case is 'yes'"),
        ({"stay": "yes"}, "stay is 'yes'"),
        ({"deny": ["a"], "allow": ["a"]}, "'a' is on the lists allow and deny"),
        ({"allow": [" unlisted"]}, "allow has 'unlisted', which is the name of a group or a bin"),
        (3, "write a mapping"),
    ],
)
def test_options_out_of_range_are_refused_at_declaration(options, words):
    with pytest.raises(ConfigurationError, match=words):
        searches({"discover": options})


def test_shares_of_discoveries_must_leave_some_budget():
    queries = [
        sv.count(name, by="term", keys={"discover": {"share": 0.5}}) for name in ("first", "second")
    ]
    with pytest.raises(ConfigurationError, match="add up to all of it"):
        released(*queries)


@pytest.mark.parametrize("keys", ["Discover", "discovered", "auto"])
def test_other_words_than_discover_are_refused(keys):
    with pytest.raises(ConfigurationError, match=f"keys is '{keys}': write keys: discover"):
        searches(keys)


def test_lists_of_keys_may_be_columns():
    keys = pa.array(["tea"]), pa.table({"value": ["milk"]})
    query = searches({"discover": dict(zip(("allow", "deny"), keys, strict=True))})
    assert query == searches({"discover": {"allow": ["tea"], "deny": ["milk"]}})


@pytest.mark.parametrize(
    ("delta", "words"),
    [
        (0.0, "delta is 0 for all users, so the discovery of keys would count no user"),
        (1e-20, "delta 1e-20 is not a number from 1e-15 to 0.1"),
        (0.5, "delta 0.5 is not a number from 1e-15 to 0.1"),
        (-1.0, "delta -1.0 is not a number from 1e-15 to 0.1"),
    ],
)
def test_deltas_out_of_range_are_refused(delta, words):
    with pytest.raises(ConfigurationError, match=words):
        released(searches(), delta=delta)


def test_a_budget_that_is_too_small_is_refused_before_anything_is_read():
    with pytest.raises(ConfigurationError, match="too small to discover keys"):
        released(searches({"discover": {"share": 1e-13}}))


def test_beam_needs_a_delta():
    from streamveil.transforms import PrivateQueries

    with pytest.raises(ConfigurationError) as error:
        PrivateQueries(searches(), user="user", time="day", slot="1d", budget="8/7d")
    assert OF_DISCOVERED["delta"] in str(error.value)


def test_a_rare_key_changes_nothing_else_that_is_published(files, run):
    def counted(own):
        data = terms(lambda row: own if row == 7 else ("tea", "milk")[row % 2])
        found = released(searches(), data=data)
        summary = {name: one for name, one in found.summary.items() if "time" not in name}
        rows = found.to_arrow().drop_columns(["value", "stderr", "low", "high"])
        return rows.to_pylist(), found.ledger.to_pylist(), summary, found.text

    assert counted("rare") == counted("odd") == counted("tea")


# ---- passes ------------------------------------------------------------------------------------


@pytest.fixture
def in_passes(run, files):
    """Passes up to some days, with a clock that stands at the end of each."""

    def in_passes(*days, flags=BUDGET, begun=False):
        for number, day in enumerate(days):
            (files / "clock").write_text(f"2024-05-{day:02}T00:00:00Z")
            outcome = run(
                *(one for one in (*flags, f"--state={files / 'state'}") if one),
                f"--clock_file={files / 'clock'}",
                f"--ledger={files / 'ledger.jsonl'}",
                *(["--resume"] if begun or number else []),
            )
        return outcome

    return in_passes


def passes_of(files, name):
    paths = sorted((files / "answers").glob(f"{name}-????????.parquet"))
    return pa.concat_tables([pq.read_table(path) for path in paths])


def once(in_passes, files):
    """What one pass releases, whose files are then taken away."""
    outcome = in_passes(16)
    assert outcome.code == 0, outcome.err
    found = {name: passes_of(files, name) for name in ("searches", "bill")}
    for name in ("answers", "state"):
        shutil.rmtree(files / name)
    for path in [*files.glob("ledger*"), *files.glob("*.released")]:
        path.unlink()
    return found


def test_passes_add_up_to_one_and_the_card_is_fine(in_passes, files, toolbox):
    whole = once(in_passes, files)
    last = in_passes(4, 7, 12, 16)
    assert last.code == 0, last.err
    assert "listed: 2 keys" in last.out
    for name, table in whole.items():
        assert passes_of(files, name).equals(table), name
    days = passes_of(files, "searches").to_pandas().groupby("start")["key"].agg(set).tolist()
    assert days[0] == {"unlisted"}
    assert days[-1] == {"tea", "milk", "unlisted"}
    card = files / "answers" / "card.json"
    flags = ("--check", str(card), f"--ledger={files / 'ledger.jsonl'}")
    checked = toolbox.run("card", *flags)
    assert checked.code == 0, checked.out + checked.err
    stated = json.loads(card.read_text())["data"]["queries"][0]["domain"]
    assert stated["values"] == ["tea", "milk"] or stated["values"] == ["milk", "tea"]
    assert len(stated["discovered"]["since"]) == 2
    stated["discovered"]["since"] = [one + 1 for one in stated["discovered"]["since"]]
    whole_card = json.loads(card.read_text())
    whole_card["data"]["queries"][0]["domain"] = stated
    card.write_text(json.dumps(whole_card))
    assert "has a result in slot" in toolbox.run("card", *flags).err


def test_a_pass_that_is_killed_before_its_commit_is_run_again(in_passes, files, monkeypatch):
    whole = once(in_passes, files)
    assert in_passes(5).code == 0
    commit = StateFolder.commit

    def killed(folder, snapshot, key, before=None):
        if snapshot.passes > 1:
            raise MachineFault("the disk is gone")
        return commit(folder, snapshot, key, before)

    with monkeypatch.context() as patch:
        patch.setattr(StateFolder, "commit", killed)
        assert in_passes(12, begun=True).code != 0
    assert in_passes(12, 16, begun=True).code == 0
    for name, table in whole.items():
        assert passes_of(files, name).equals(table), name


def test_bounds_are_chosen_in_the_first_pass(in_passes, files, toolbox):
    path = files / "queries.yaml"
    path.write_text(path.read_text().replace("bounds: [0, 30]", "bounds: auto"))
    page = f"--page={files / 'page.html'}"
    outcome = in_passes(9, 12, 16, flags=(*BUDGET, page))
    assert outcome.code == 0, outcome.err
    text = (files / "page.html").read_text()
    assert "the discovery of keys and the private estimate of bounds" in text
    weeks = passes_of(files, "bill").to_pandas()
    assert set(weeks["key"]) == {"unlisted", "tea", "Tea", "milk"}
    assert weeks["value"].dropna().to_numpy() == pytest.approx(10, abs=2)
    flags = (str(files / "answers" / "card.json"), f"--ledger={files / 'ledger.jsonl'}")
    checked = toolbox.run("card", "--check", *flags)
    assert checked.code == 0, checked.out + checked.err


def test_test_mode_in_passes_is_refused(in_passes):
    outcome = in_passes(5, flags=(*BUDGET, "--test_mode"))
    assert outcome.code == 2


def test_levels_in_passes_have_a_page_and_a_card(in_passes, files, toolbox):
    path = files / "queries.yaml"
    text = path.read_text()
    groups = "levels: [{drinks: [tea], rest: [milk, own *, unlisted]}, all]"
    path.write_text(text.replace("name: searches, ", f"name: searches, {groups}, "))
    assert groups in path.read_text()
    outcome = in_passes(5, 16, flags=(*BUDGET, f"--page={files / 'page.html'}"))
    assert outcome.code == 0, outcome.err
    assert "cannot be written" not in outcome.out + outcome.err
    assert "drinks" in (files / "page.html").read_text()
    days = passes_of(files, "searches").to_pandas().groupby("start")["key"].agg(list).tolist()
    groups = ["unlisted: drinks", "unlisted: rest", "unlisted", "drinks", "rest", "all"]
    assert days[0] == groups
    assert set(days[-1][:2]) == {"tea", "milk"}
    assert days[-1][2:] == groups
    flags = (str(files / "answers" / "card.json"), f"--ledger={files / 'ledger.jsonl'}")
    checked = toolbox.run("card", "--check", *flags)
    assert checked.code == 0, checked.out + checked.err


def test_a_page_shows_keys_that_came_later(in_passes, files):
    page = f"--page={files / 'page.html'}"
    outcome = in_passes(5, 16, flags=(*BUDGET, page))
    assert outcome.code == 0, outcome.err
    assert "cannot be written" not in outcome.out + outcome.err
    text = (files / "page.html").read_text()
    assert "milk" in text
    assert "nan" not in text.lower()


def test_a_key_that_leaves_and_returns_is_on_card_and_page(run, files, toolbox, pytestconfig):
    """It has no searches from 9 to 15 May."""
    rows = [
        (f"u{user}", term, day)
        for day in range(2, 31)
        for user in range(120)
        for term in ["tea", "milk"][: 1 if 9 <= day < 16 else 2]
    ]
    users, found, days = zip(*rows, strict=True)
    days = [f"2024-05-{day:02}" for day in days]
    pq.write_table(pa.table({"user": users, "term": found, "day": days}), files / "events.parquet")
    (files / "queries.yaml").write_text(
        "{slot: 1d, queries: [{name: searches, by: term, keys: discover, max_contributions: 2}]}"
    )
    page, check = files / "page.html", ("--check", str(files / "answers" / "card.json"))
    ledger = f"--ledger={files / 'ledger.jsonl'}"
    flags = f"--state={files / 'state'}", f"--clock_file={files / 'clock'}", f"--page={page}"
    for number, day in enumerate((20, 25, 31)):
        (files / "clock").write_text(f"2024-05-{day}T00:00:00Z")
        more = ["--resume"] if number else []
        outcome = run("--budget=40/7d", "--delta=1e-6", *flags, "--end=2024-05-31", ledger, *more)
        assert outcome.code == 0, outcome.err
        assert "cannot be written" not in outcome.out + outcome.err
    by_day = passes_of(files, "searches").to_pandas().groupby("start")["key"].agg(set).tolist()
    there = ["milk" in keys for keys in by_day]
    assert there == [9 <= day < 16 or day >= 23 for day in range(2, 31)]
    checked = toolbox.run("card", *check, ledger)
    assert checked.code == 0, checked.out + checked.err
    stated = json.loads((files / "answers" / "card.json").read_text())
    discovered = stated["data"]["queries"][0]["domain"]["discovered"]
    ((key, first, until),) = discovered["ended"]
    assert (key, until - first) == ("milk", 7)
    path = pytestconfig.rootpath / "pipelines" / "cards" / "card.schema.json"
    jsonschema.Draft202012Validator(json.loads(path.read_text())).validate(stated)
    discovered["ended"] = [["milk", first, until + 1]]
    (files / "answers" / "card.json").write_text(json.dumps(stated))
    assert "has no result in slot" in toolbox.run("card", *check, ledger).err
    assert "milk" in page.read_text()


def test_a_served_page_is_refused(in_passes):
    outcome = in_passes(5, flags=(*BUDGET, "--follow=1s", "--serve=127.0.0.1:0"))
    assert outcome.code == 2
    assert OF_GROWING["serve"] in outcome.err
