"""Running totals of an infinite stream: the statistic of all records so far, at every tick.

Ticks are numbered from 1. Epoch m is the 2**m ticks from 2**m on. It has a binary tree of m + 1
levels: the node at level l and position p is about the records of 2**l ticks in a row, and is
complete, and gets its noise, at the last of them. At every tick exactly one node gets its noise. A
running total adds up the roots of earlier epochs and one node for each bit that is set in the
number of ticks of the current one.

Guarantee: E-PrDP of all releases together, however many: a record is in m + 1 nodes of one tree,
and each has noise of 1 / (m + 1) of every budget, rounded down. No horizon is assumed. Adjacency:
one record more or less. Sensitivity: see :mod:`.nodes`.

Sources: Dwork, Naor, Pitassi, Rothblum, "Differential privacy under continual observation" (2010);
Chan, Shi, Song, "Private and continual release of statistics" (2011), whose hybrid mechanism has
epochs too. Changed: the root of an epoch is its total, so all of the budget goes to trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms import state as state_bytes
from streamveil.mechanisms.noise import NoiseSource, digest
from streamveil.mechanisms.per_record.protocol import Additive, Noisy, Part, PerRecordRelease
from streamveil.mechanisms.stream import check_configuration

_DOUBLES = {"type": "array", "items": "double"}
_NOISY = {
    "type": "record",
    "name": "Noisy",
    "fields": [{"name": "totals", "type": _DOUBLES}, {"name": "variances", "type": _DOUBLES}],
}


@dataclass(frozen=True)
class Complete:
    """A node of the current tree that no larger one contains yet."""

    part: Part
    """Of its records; private."""
    noisy: Noisy


@dataclass(frozen=True)
class RunningState:
    """What a running total remembers: of t ticks at most log2(t) + 1 nodes."""

    ticks: int
    """How many there were."""
    history: bytes
    """Digest of the configuration and of every part so far; private."""
    roots: Noisy | None
    """The sum of all complete epochs; None before the first is."""
    nodes: tuple[Complete, ...]
    """Of the current epoch, largest first: one for each bit set in its number of ticks."""


class RunningTotal:
    """Releases the running total of a statistic, tick by tick, without end."""

    SCHEMAS = {
        1: {
            "type": "record",
            "name": "RunningTotal",
            "fields": [
                {"name": "configuration", "type": "bytes"},
                {"name": "ticks", "type": "long"},
                {"name": "history", "type": "bytes"},
                {"name": "roots", "type": ["null", _NOISY]},
                {"name": "parts", "type": {"type": "array", "items": "bytes"}},
                {"name": "noisy", "type": {"type": "array", "items": "Noisy"}},
            ],
        }
    }

    def __init__(self, statistic: Additive, *, context: bytes = b"") -> None:
        """Add up a statistic.

        Args:
            statistic: of which the running total is released.
            context: everything else that shapes what is released, such as a key.
        """
        self.statistic = statistic
        facts = repr((statistic.name, statistic.bounds)).encode()
        self._configuration = digest(type(statistic).__qualname__.encode(), facts, context)

    def start(self) -> RunningState:
        """State before the first tick."""
        return RunningState(0, self._configuration, None, ())

    def tick(
        self, state: RunningState, part: Part, noise: NoiseSource
    ) -> tuple[RunningState, PerRecordRelease]:
        """Release the total with the records of one more tick.

        The noise of the tick, which is that of the tree node that it completes, is a function of
        its number and of everything before: a replay gives the same release.

        Args:
            state: after the tick before.
            part: of the records of this tick alone.
            noise: the same source at all ticks.
        """
        tick = state.ticks + 1
        epoch = tick.bit_length() - 1
        position = tick - (1 << epoch) + 1  # in the epoch, from 1
        level = (position & -position).bit_length() - 1
        kept = len(state.nodes) - level
        contained = [node.part for node in state.nodes[kept:]]
        total = self.statistic.add([*contained, part])
        history = digest(state.history, part.tobytes())
        noisy = self.statistic.noisy(total, noise.slot(tick, history), epoch + 1)
        nodes = (*state.nodes[:kept], Complete(total, noisy))
        summed = _sum([*([state.roots] if state.roots else []), *(node.noisy for node in nodes)])
        if position == 1 << epoch:
            state = RunningState(tick, history, summed, ())
        else:
            state = RunningState(tick, history, state.roots, nodes)
        return state, self.statistic.estimate(summed)

    def encode(self, state: RunningState) -> bytes:
        """Bytes of the state, readable by this and later versions."""
        return state_bytes.pack(
            self.SCHEMAS,
            {
                "configuration": self._configuration,
                "ticks": state.ticks,
                "history": state.history,
                "roots": None if state.roots is None else _record(state.roots),
                "parts": [state_bytes.table_to_bytes(node.part) for node in state.nodes],
                "noisy": [_record(node.noisy) for node in state.nodes],
            },
        )

    def decode(self, data: bytes) -> RunningState:
        """State of bytes. Raises ConfigurationError when another configuration wrote them."""
        _, record = state_bytes.unpack(self.SCHEMAS, data)
        check_configuration(record["configuration"], self._configuration)
        nodes = [
            Complete(state_bytes.table_from_bytes(part, (-1,)), _noisy(noisy))
            for part, noisy in zip(record["parts"], record["noisy"], strict=True)
        ]
        roots = None if record["roots"] is None else _noisy(record["roots"])
        return RunningState(record["ticks"], record["history"], roots, tuple(nodes))


def _sum(several: Sequence[Noisy]) -> Noisy:
    totals, variances = (sum(arrays[1:], arrays[0]) for arrays in zip(*several, strict=True))
    return Noisy(totals, variances)


def _record(noisy: Noisy) -> dict[str, list[float]]:
    return {"totals": noisy.totals.tolist(), "variances": noisy.variances.tolist()}


def _noisy(record: dict[str, list[float]]) -> Noisy:
    return Noisy(np.array(record["totals"]), np.array(record["variances"]))
