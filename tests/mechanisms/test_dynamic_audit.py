"""An empirical privacy audit under requirements that change, by the auditor of `test_audit.py`.

The target asks for a budget over a window ahead, and in the middle of it for much more: what was
promised first must hold to its end. Mechanisms that forget it are convicted.
"""

import numpy as np
import pytest

from streamveil.mechanisms import DYNAMIC_MECHANISMS, DynamicStream, NoiseSource, dynamic_mechanism
from streamveil.mechanisms.accounting.changing_filter import ChangingFilter
from streamveil.mechanisms.accounting.open_windows import NO_LIMIT, OpenWindows
from streamveil.mechanisms.core.budgets import asked_units
from streamveil.mechanisms.core.cohorts import Moves
from streamveil.mechanisms.driver.dynamic_stream import CohortCounts
from streamveil.mechanisms.protocol import Setting
from tests.mechanisms.test_audit import ADJACENCY, audit, outcome_of, thresholds_once

KEY = bytes(range(32))
RUNS = 800
SLOTS = 3
LEAPS = (3, 20, 3)  # so that slots publish
CLAIM = 3.0
TARGET, OTHERS, LATER = asked_units(
    [[1, 40.0, SLOTS, CLAIM], [1, 90.0, SLOTS, 90.0], [1, 40.0, 1, 30.0]]
)
_ = thresholds_once  # for the whole module


def world(name, target_bin):
    """What each slot shows in every run: its status and each bin's side of the others' number.

    The target is in `target_bin` in every slot of the window (None: nowhere), `LEAPS` of 50 others
    are in each of two bins. In the second slot the target begins to ask for much more.
    """
    setting = Setting(2, SLOTS)
    machine = dynamic_mechanism(name, setting)
    outcomes = np.zeros((RUNS, SLOTS), dtype=np.int64)
    change = Moves(np.array([0]), np.array([2]), np.array([1]), LATER[None])
    for run in range(RUNS):
        stream = DynamicStream(
            machine,
            np.stack([TARGET, OTHERS]),
            np.array([1, 50]),
            NoiseSource(KEY, f"{name} {target_bin} {run}"),
        )
        state = stream.start()
        for slot in range(SLOTS):
            others = LEAPS[slot]
            cells = [(1, 0, others), (1, 1, others)]
            if target_bin is not None:
                cells.append((2 if slot else 0, target_bin, 1))
            counts = CohortCounts(*np.array(cells).T)
            moves = change if slot == 1 else Moves.none()
            state, release = stream.release(state, slot, counts, moves)
            outcomes[run, slot] = outcome_of(release, others)
    return outcomes


def proven(name):
    return audit(*[world(name, target_bin) for target_bin in ADJACENCY["add_remove"][1]])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(DYNAMIC_MECHANISMS))
def test_what_was_promised_holds_after_a_change(name):
    found = proven(name)
    print(f"audit of {name}: at least {found:.2f} of {CLAIM}")
    assert found <= CLAIM


# As if the windows opened before had ended with the change, and no filter watched.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["adaptive", "dpbd"])
def test_a_mechanism_that_forgets_its_promise_is_convicted(monkeypatch, name):
    opens = OpenWindows.open

    def forget(self, windows, lengths, caps, rates):
        windows.ends[:] = -1
        windows.caps[:] = windows.rates[:] = NO_LIMIT
        opens(self, windows, lengths, caps, rates)

    monkeypatch.setattr(OpenWindows, "open", forget)
    monkeypatch.setattr(ChangingFilter, "_check", lambda *_: None)
    found = proven(name)
    print(f"audit of a forgetful {name}: at least {found:.2f} of {CLAIM}")
    assert found > CLAIM
