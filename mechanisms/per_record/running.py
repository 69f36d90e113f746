"""Running totals of an infinite stream: the statistic of all records so far, at every tick.

Ticks are numbered from 1. Epoch m has a binary tree of 4 m levels below its root. Its ticks are the
leaves with m zeros and 3 m ones on the way from the root, from left to right; there are no others.
A left child gets its noise at the last of its ticks, if there are more in its sibling, and so does
the root: one node at every tick. A running total adds up the roots of earlier epochs and, in the
current tree, the left siblings of the way to the next leaf.

Guarantee: E-PrDP of all releases together, however many: a record is at most in the m left children
on its way and in the root, and each has noise of 1 / (m + 1) of every budget, rounded down. No
horizon is assumed. Adjacency: one record more or less. Sensitivity: see :mod:`.nodes`.

Sources: Chan, Shi, Song, "Private and continual release of statistics" (2011), whose hybrid
mechanism has epochs; Andersson, Pagh, "A smooth binary mechanism for efficient private continual
observation" (2023), which takes the leaves with as many zeros as ones. Changed: each epoch's root
is the total of the epoch, so that all of the budget goes to trees; and there are three ones for
each zero, because zeros divide the budget, while ones only add terms to a total. Over a million
ticks the error is half of that of trees that use all leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamveil.mechanisms.core import state_codec
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.per_record.protocol import Additive, Noisy, Part, PerRecordRelease
from streamveil.mechanisms.randomness.noise import NoiseSource, digest

# On the way to a leaf of epoch m: 3 m ones among 4 m bits.
_ONES = 3
_BITS = 4

_DOUBLES = {"type": "array", "items": "double"}
_NOISY = state_codec.record_schema("Noisy", totals=_DOUBLES, variances=_DOUBLES)


@dataclass(frozen=True)
class Complete:
    """A node of the current tree that no larger one contains yet."""

    part: Part
    """Of its records; private."""
    noisy: Noisy


@dataclass(frozen=True)
class RunningState:
    """What a running total remembers: of t ticks O(log(t)) nodes."""

    ticks: int
    """How many there were."""
    epoch: int
    """Of the next tick."""
    leaf: int
    """Of the next tick: the way to it from the root, from the highest of 4 * `epoch` bits."""
    history: bytes
    """Digest of the configuration and of every part so far; private."""
    roots: Noisy | None
    """The sum of all complete epochs; None before the first is."""
    nodes: tuple[Complete, ...]
    """Of the current epoch, largest first: the left siblings of the way to the next leaf."""


class RunningTotal:
    """Releases the running total of a statistic, tick by tick, without bound."""

    SCHEMAS = {
        1: state_codec.record_schema(
            "RunningTotal",
            configuration="bytes",
            ticks="long",
            epoch="long",
            leaf="long",
            history="bytes",
            roots=["null", _NOISY],
            parts={"type": "array", "items": "bytes"},
            noisy={"type": "array", "items": "Noisy"},
        )
    }

    def __init__(self, statistic: Additive, *, context: bytes = b"") -> None:
        """Add up a statistic.

        Args:
            statistic: of which the running total is released.
            context: everything else that shapes what is released, such as a key.
        """
        self.statistic = statistic
        self._configuration = digest(statistic.identity(), context)

    def start(self) -> RunningState:
        """State before the first tick."""
        return RunningState(0, 0, 0, self._configuration, None, ())

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
        tick, epoch = state.ticks + 1, state.epoch
        leaf = _following(state.leaf)
        ends = leaf >> _BITS * epoch > 0
        # The way to the next leaf turns right where that to this one turned left.
        turn = (leaf & ~state.leaf).bit_length()
        kept = 0 if ends else (leaf >> turn).bit_count()
        contained = [node.part for node in state.nodes[kept:]]
        total = self.statistic.add([*contained, part])
        history = digest(state.history, part.tobytes())
        noisy = self.statistic.noisy(total, noise.slot(tick, history), epoch + 1)
        nodes = (*state.nodes[:kept], Complete(total, noisy))
        summed = _sum([*([state.roots] if state.roots else []), *(node.noisy for node in nodes)])
        if ends:
            first = (1 << _ONES * (epoch + 1)) - 1
            state = RunningState(tick, epoch + 1, first, history, summed, ())
        else:
            state = RunningState(tick, epoch, leaf, history, state.roots, nodes)
        return state, self.statistic.estimate(summed)

    def encode(self, state: RunningState) -> bytes:
        """Bytes of the state, readable by this and later versions."""
        return state_codec.pack(
            self.SCHEMAS,
            {
                "configuration": self._configuration,
                "ticks": state.ticks,
                "epoch": state.epoch,
                "leaf": state.leaf,
                "history": state.history,
                "roots": None if state.roots is None else _record(state.roots),
                "parts": [state_codec.table_to_bytes(node.part) for node in state.nodes],
                "noisy": [_record(node.noisy) for node in state.nodes],
            },
        )

    def decode(self, data: bytes) -> RunningState:
        """State of bytes. Raises ConfigurationError when another configuration wrote them."""
        _, record = state_codec.unpack(self.SCHEMAS, data)
        if record["configuration"] != self._configuration:
            raise ConfigurationError(
                "this state belongs to another configuration: the statistic or what it is of "
                "changed since it was written; use the options that it was written with, or "
                "start a new stream, which spends the records' budgets again"
            )
        nodes = [
            Complete(state_codec.table_from_bytes(part, (-1,)), _noisy(noisy))
            for part, noisy in zip(record["parts"], record["noisy"], strict=True)
        ]
        roots = None if record["roots"] is None else _noisy(record["roots"])
        return RunningState(
            record["ticks"], record["epoch"], record["leaf"], record["history"], roots, tuple(nodes)
        )


def _following(leaf: int) -> int:
    """The next larger integer with as many ones; 1 after 0."""
    if leaf == 0:
        return 1
    lowest = leaf & -leaf
    carried = leaf + lowest
    return (carried ^ leaf) // lowest >> 2 | carried


def _sum(several: Sequence[Noisy]) -> Noisy:
    totals, variances = (sum(arrays[1:], arrays[0]) for arrays in zip(*several, strict=True))
    return Noisy(totals, variances)


def _record(noisy: Noisy) -> dict[str, list[float]]:
    return {"totals": noisy.totals.tolist(), "variances": noisy.variances.tolist()}


def _noisy(record: dict[str, list[float]]) -> Noisy:
    return Noisy(np.array(record["totals"]), np.array(record["variances"]))
