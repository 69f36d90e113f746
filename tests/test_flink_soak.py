"""The soak of benchmarks/flink_soak.py would find what it looks for; no cluster is needed."""

import pytest

SLOTS = 90


@pytest.fixture
def seen(tmp_path):
    """A release of every slot and what it cost: each window spent all that it may."""
    for slot in range(SLOTS):
        (tmp_path / f"{slot:012}-a.json").write_text("{}")
        (tmp_path / f"{slot:012}-a.cost").write_text(repr(1 / 60))
    return tmp_path


def looks(flink_soak, memory=900.0, state=800.0, lag=8.0):
    """Looks of nine minutes; what is given is reached slowly, from half of it on."""
    return [
        flink_soak.Look(
            minute=minute,
            memory={
                "taskmanager": memory * share,
                "jobmanager": 250.0,
                "jobserver": 250.0,
                "workers": 400.0,
            },
            state=state * share,
            lag=lag * share,
            cpu=30.0 * minute,
        )
        for minute, share in [(m, min(1.0, 0.5 + m / 4)) for m in range(1, 10)]
    ]


@pytest.mark.slow
def test_what_is_flat_after_a_third_of_the_time(flink_soak, seen, tmp_path):
    figures, faults = flink_soak.check(looks(flink_soak), seen)
    assert faults == []
    assert figures["slots"] == SLOTS
    assert figures["MB"] == "1800.0 then 1800.0"
    assert figures["lost"] == figures["given again otherwise"] == figures["overspent"] == 0
    flink_soak.draw(looks(flink_soak), str(tmp_path / "soak.png"))
    assert (tmp_path / "soak.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda look: look.memory.update(workers=400 + 70 * look.minute), "MB grew"),
        (lambda look: vars(look).update(state=800 + 30 * look.minute), "kB of state grew"),
        (lambda look: vars(look).update(lag=5 + look.minute), "s of lag grew"),
    ],
)
def test_what_grows_is_found(flink_soak, seen, change, fault):
    growing = looks(flink_soak)
    for look in growing:
        change(look)
    _, (found,) = flink_soak.check(growing, seen)
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("000000000004-b.json", "[]", "given again otherwise: 1"),
        ("000000000004-a.cost", "0.02", "overspent: 5"),
        ("000000000004-b.cost", "0.01", "overspent: 5"),
    ],
)
def test_releases_that_break_a_promise_are_found(flink_soak, seen, name, content, fault):
    (seen / name).write_text(content)
    assert flink_soak.check(looks(flink_soak), seen)[1] == [fault]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("000000000004-a.json", "lost: 1"),
        ("000000000004-a.cost", "without an entry of the ledger: 1"),
    ],
)
def test_what_is_lost_is_found(flink_soak, seen, name, fault):
    (seen / name).unlink()
    assert flink_soak.check(looks(flink_soak), seen)[1] == [fault]
