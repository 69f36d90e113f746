"""What was promised before a requirement changed holds to its last slot, and no longer."""

import numpy as np
import pytest

from streamveil.mechanisms import BudgetExceeded
from streamveil.mechanisms.local.accounting.promises import Promises
from streamveil.mechanisms.local.accounting.report_history import History


def longs(*values):
    return np.array(values, np.int64)


def test_a_promise_holds_to_the_last_slot_of_its_last_window():
    """Promised were 10 over 4 slots, last in slot 2: so slot 5 is the last that is bound by it."""
    given = Promises.none().add(longs(7), longs(4), longs(10), longs(0), longs(5), longs(8))
    bound = given.advance(History(), 4, 5)
    bound.check(longs(7), longs(2), "slot 5:")
    with pytest.raises(BudgetExceeded, match="slot 5: user 7, who was promised"):
        bound.check(longs(7), longs(3), "slot 5:")
    given.advance(History(), 4, 6).check(longs(7), longs(3), "slot 6:")
