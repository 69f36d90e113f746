"""The audit of participation limits convicts what tells too much, and nothing else."""

import json

import numpy as np
import pytest

from streamveil.mechanisms import Requirement
from streamveil.mechanisms.core.records import ADD_REMOVE, REPLACE, Lifetime
from streamveil.mechanisms.presence import Counters, Limit, kept_share, life_share
from streamveil.mechanisms.presence.limits import EVERY_SLOT, EVERYBODY
from streamveil.mechanisms.wevent import sampling
from streamveil.pipelines.audit.churning_users import Rule, comers, spacing
from streamveil.pipelines.audit.findings import CHARGE, LIFE, WINDOW
from streamveil.pipelines.audit.presence import LEFT_OUT, audited_presence
from streamveil.pipelines.audit.rounds import Extent
from tests.audits.mutants import MUTANTS, scaled
from tests.audits.scenes import BRIEF, no_filters

KEY = bytes(range(32))


def of_life(most=2, epsilon=3.0, **options):
    asked = [Lifetime(epsilon)], [Limit(None, in_life=most)]
    return audited_presence(*asked, **{"sizes": [EVERYBODY], **SIMPLE, **options})


def of_windows(window=11, most=1, blocks=1, epsilon=3.0, **options):
    asked = [Requirement(window, epsilon)], [Limit(most, blocks)]
    return audited_presence(*asked, **{"sizes": [1000], **SIMPLE, **options})


SIMPLE = {"mechanism": "uniform", "extent": BRIEF, "bins": 8}


def check_of(found, part, claim):
    return next(one for one in found.checks if (one.part, one.claim) == (part, claim))


@pytest.mark.parametrize(
    ("audited", "part", "claim"), [(of_life, "lives", LIFE), (of_windows, "windows", WINDOW)]
)
def test_an_honest_stream_is_not_convicted_and_much_of_its_budget_is_proven(audited, part, claim):
    found = audited()
    assert not found.violated
    assert found.overspent == pytest.approx(1.0)
    assert {(one.part, one.claim) for one in found.checks} == {
        *((name, CHARGE) for name in ("publications", "looks", "bins", part, LEFT_OUT)),
        (part, claim),
    }
    assert check_of(found, "bins", CHARGE).times > 0.7
    assert 0.3 < check_of(found, part, claim).times < 1.0


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE])
@pytest.mark.parametrize(
    "audited", [of_life, of_windows, lambda **more: of_windows(24, 2, 2, **more)]
)
def test_users_of_several_events_are_audited(audited, adjacency):
    sensitivity = 4 if adjacency == REPLACE else 2
    found = audited(mechanism="adaptive", adjacency=adjacency, sensitivity=sensitivity)
    assert not found.violated
    assert 0.5 < found.overspent <= 1.0


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("audited", [of_life, of_windows])
def test_one_bin_has_no_other_to_move_to(audited):
    found = audited(bins=1, adjacency=REPLACE, sensitivity=2)
    assert not found.violated
    # An event that moves to its own bin shows in nothing: what is learnt of it is luck.
    assert {one.part for one in found.checks if one.guesses} <= {LEFT_OUT, "publications"}
    assert all(one.times < 0.5 for one in found.checks if one.part == "publications")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "mutant", ["one_slot_more_counts", "blocks_from_the_first_visit", "a_price_for_fewer_slots"]
)
def test_limits_that_let_too_much_differ_are_convicted_exactly(mutant):
    with MUTANTS[mutant].patched(), no_filters():
        found = of_windows()
    assert found.overspent > 1.3
    assert "times the budget of a window" in found.sentence


@pytest.mark.parametrize("audited", [of_life, of_windows])
def test_too_little_noise_of_counts_is_convicted(audited, monkeypatch):
    scaled(sampling, monkeypatch, 20)
    found = audited()
    assert found.worst.times > 1.5
    assert "times what its slots were charged" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("audited", [of_life, of_windows])
def test_too_little_noise_of_what_is_left_out_is_convicted(audited, monkeypatch):
    for module in (kept_share, life_share):
        scaled(module, monkeypatch, 40)
    found = audited(bins=2, extent=Extent(runs=12))
    assert found.worst.part == LEFT_OUT
    assert found.worst.times > 1.0  # of what is published; replay sees the noise itself
    assert "claimed" in found.replayed.violation


@pytest.mark.usefixtures("short")
def test_classes_without_a_limit_are_audited_beside_those_that_have_one():
    asked = [Requirement(2, 3.0), Requirement(24, 3.0)]
    found = audited_presence(asked, [EVERY_SLOT, Limit(1, 2)], sizes=[500, 500], **SIMPLE)
    assert not found.violated
    parts = {(one.requirement.window, one.part) for one in found.checks}
    assert (24, LEFT_OUT) in parts
    assert (2, LEFT_OUT) not in parts


@pytest.mark.usefixtures("short")
def test_the_same_seed_gives_the_same_audit():
    once, again, other = (of_life(bins=2, extent=Extent(runs=4, seed=seed)) for seed in (1, 1, 2))
    assert once.checks == again.checks
    assert once.checks != other.checks


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        (Lifetime(1.0), Limit(None, in_life=2)),
        (Requirement(11, 1.0), Limit(1, 1)),
        (Requirement(24, 1.0), Limit(2, 2)),
        (Requirement(3, 1.0), EVERY_SLOT),
    ],
)
def test_stories_are_what_the_counters_say_of_them(asked, limit, moves):
    """Counts of the groups that are there, added up one by one."""
    adjacency = REPLACE if moves else ADD_REMOVE
    rule = Rule.of([limit], [asked], adjacency, 0)
    pairs = rule.pairs()
    every = spacing(rule, pairs, alone=False)
    starts = np.arange(3) * every
    plan = comers(rule, pairs, starts, np.tile([0, 2], (3, 1)), 1, KEY)
    canaries = plan.of_users(np.array([1, 2, 3, 4, 5, 6])).flipped(np.random.default_rng(1))
    counts = canaries.add_to(np.zeros((3 * every, 1, 4), np.int64))
    expected = np.zeros_like(counts)
    events = 0
    for group in range(6):
        number, place = divmod(group, 2)
        pair = pairs[number % len(pairs)]
        story = pair.there if canaries.there[group] else pair.instead
        user = rule.user(KEY, starts[number], pair.offset % rule.block, number << 32)
        who, when = np.full(len(story), user), starts[number] + story[:, 0]
        layers = Counters(rule.rules, KEY, who[:0]).layers(who, when, 0 * who, 3 * every)
        bins = 2 * place + story[:, 1]
        np.add.at(expected, (when[layers == 0], 0, bins[layers == 0]), canaries.users[group])
        events += canaries.users[group] * int(((layers > 0) & (layers <= 3)).sum())
    assert np.array_equal(counts, expected)
    assert sum(int(one.events.sum()) for one in canaries.beyond(3 * every)) == events
    differ = limit.slots(asked, adjacency)
    assert np.bincount(canaries.met[0]).max() == differ


# As of `test_auditing.py`.
@pytest.mark.slow
def test_honest_streams_are_acquitted_with_every_seed():
    convicted = [
        audited(bins=12, extent=Extent(runs=4, seed=seed)).violated
        for seed in range(2)
        for audited in (of_life, of_windows)
    ]
    assert not any(convicted)


LIFE_OF_TWO = ("--guarantee=user", "--epsilon=6", "--max_slots=2", "--mechanism=uniform")
QUICK = ("--bins=8", "--runs=4")


@pytest.fixture
def events(tmp_path):
    path = tmp_path / "events.csv"
    rows = [f"u{i % 7},{'ab'[i % 2]},2024-05-{1 + i % 30:02}T08:00:00Z" for i in range(80)]
    path.write_text("\n".join(["user,place,time", *rows, ""]))
    return (
        *(f"--input={path}", "--user_column=user", "--value_column=place"),
        *("--time_column=time", "--slot=1d", "--domain=a,b", "--runs=4"),
    )


def test_a_page_and_json_are_written(toolbox, tmp_path):
    page, figures = tmp_path / "audit.html", tmp_path / "audit.json"
    outcome = toolbox.run("audit", *LIFE_OF_TWO, *QUICK, f"--page={page}", f"--json={figures}")
    assert outcome.code == 0, outcome.err
    assert "| epsilon = 6 forever | lives | life |" in outcome.out
    assert "| epsilon = 6 forever | left out | charge |" in outcome.out
    found = json.loads(figures.read_text())
    assert {one["part"] for one in found["checks"]} >= {"bins", "lives", "left out"}
    assert "<dt>left out</dt>" in page.read_text()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (LIFE_OF_TWO, "epsilon = 6 forever | lives | life"),
        (("--default_requirement=11,3,50", "--max_slots=1,1"), "w = 11, epsilon = 3 | left out"),
    ],
)
def test_canaries_stand_beside_events_of_a_file(toolbox, events, flags, part):
    outcome = toolbox.run("audit", *events, *flags)
    assert outcome.code == 0, outcome.err
    assert f"| {part} |" in outcome.out


def one_visit(slots):
    """Of one user in the first of so many slots."""
    return np.array([[0], [0], [0], [1]]), np.array([0]), slots


@pytest.mark.parametrize(
    ("audited", "name", "least"),
    [
        (of_life, "lives of epsilon = 3 forever", 7),
        (of_windows, "windows of w = 11, epsilon = 3", 34),
    ],
)
def test_stories_longer_than_a_stream_of_ones_own_are_named_with_a_remedy(audited, name, least):
    """Just as many slots as are named hold a story, and what it costs is added up."""
    short, enough = (audited(bins=2, visits=one_visit(slots)) for slots in (least - 1, least))
    wanted = f"no guesses about {name}: these need {least} slots, and the input has fewer: "
    assert any(note.startswith(wanted) for note in short.notes)
    assert not any(name in note for note in enough.notes)
    assert short.overspent == 0 < enough.overspent


def test_what_an_input_is_too_short_for_is_reported(toolbox, events):
    outcome = toolbox.run("audit", *events, "--default_requirement=24,3,50", "--max_slots=1,1")
    assert outcome.code == 0, outcome.err
    assert "no guesses about windows of w = 24, epsilon = 3: these need 73 slots" in outcome.out
    assert "(--end may be later than the last event), or leave --input out" in outcome.out


@pytest.mark.usefixtures("short")
def test_a_table_may_limit_slots(toolbox, tmp_path):
    table = tmp_path / "requirements.csv"
    table.write_text("user,window,epsilon,max_slots\nann,24,3.0,1\nbob,3,3.0,\n")
    outcome = toolbox.run("audit", f"--requirements={table}", "--mechanism=uniform", *QUICK)
    assert outcome.code == 0, outcome.err
    assert "| w = 24, epsilon = 3 | left out | charge |" in outcome.out
    assert "| w = 3, epsilon = 3 | windows | window |" in outcome.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--guarantee=user", "--epsilon=1"], "--max_slots is missing"),
        (["--guarantee=user", "--epsilon=1", "--max_slots=2,2"], "--max_slots=2,2 is not M"),
        (["--guarantee=infinite", "--epsilon=1", "--max_slots=2"], "applies to windows"),
        (["--default_requirement=3,1,9", "--max_slots=3"], "saves nothing over 3 slots"),
        (["--default_requirement=30,1,9", "--max_slots=auto"], "audit that limit"),
        (["--default_requirement=30,1,9", "--max_slots=x"], "--max_slots=x is not M"),
        (
            ["--default_requirement=30,1,9", "--max_slots=1", "--mechanism=dpbd"],
            "'dpbd' is for requirements that change",
        ),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(toolbox, flags, message):
    outcome = toolbox.run("audit", *flags)
    assert outcome.code == 2
    assert message in outcome.message
    assert outcome.message.count("\n") == 0
