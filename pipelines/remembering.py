"""What Beam finds out of a DoFn, found out once for each class.

Beam asks up to eight times for every step of a pipeline which states and timers its DoFn has, and
reads the signatures of some thirty methods each time. That was half the work of a pass over few
events.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from weakref import WeakKeyDictionary

import apache_beam as beam
from apache_beam.transforms import userstate

Specs = tuple[set[userstate.StateSpec], set[userstate.TimerSpec]]

_find = userstate.get_dofn_specs
_known: WeakKeyDictionary[type[beam.DoFn], Specs] = WeakKeyDictionary()


@contextmanager
def remembered_specs() -> Iterator[None]:
    """Let Beam find the states and timers of a class of DoFns once, while the block runs."""
    before = userstate.get_dofn_specs
    userstate.get_dofn_specs = _specs
    try:
        yield
    finally:
        userstate.get_dofn_specs = before


def _specs(dofn: beam.DoFn) -> Specs:
    if any(isinstance(own, MethodType) for own in vars(dofn).values()):
        return _find(dofn)  # such as of a method that was given to beam.Map
    kind = type(dofn)
    if kind not in _known:
        _known[kind] = _find(dofn)
    states, timers = _known[kind]
    return set(states), set(timers)
