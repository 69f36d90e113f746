"""The audit of devices: what all that they report tells an operator of each of them.

In memory::

    findings = audited_devices([Requirement(20, 1.0)], mechanism="rotation", extent=Extent(runs=8))

Nobody adds noise for a device, so each of them is a canary by itself, against an operator who sees
all of its reports. Three things are looked at. Single slots: what the reports of a slot tell must
be covered by what they were charged. Whole windows, with other values in every slot: what a window
tells must be covered by its budget. And clients' devices that are asked again and again, of which
one answer is all that anybody may have. Charges are added up exactly, of every device and window.

Devices that tell one event of a window (`accounting/one_event.py`) are charged for an event, not
for a report: so a canary of theirs that stands beside charges is in as many slots as hold one
report, and is not followed by another one in the same block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from streamveil.mechanisms.core.arrays import Integers
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.records import Requirement
from streamveil.mechanisms.local.protocol import Users
from streamveil.mechanisms.protocol import Population
from streamveil.mechanisms.randomness.noise import derived_key, digest
from streamveil.mechanisms.registry import LOCAL_DEFAULT, local_mechanism
from streamveil.pipelines.audit.audits import Audit, Part, left_out, watched
from streamveil.pipelines.audit.clock import check_clock
from streamveil.pipelines.audit.devices.canaries import Spans
from streamveil.pipelines.audit.devices.clients import Clients
from streamveil.pipelines.audit.devices.odds import odds
from streamveil.pipelines.audit.devices.runs import Answers, DeviceRun
from streamveil.pipelines.audit.devices.values import Values
from streamveil.pipelines.audit.findings import REPORT, WINDOW, About, Findings
from streamveil.pipelines.audit.guesses import ANY_LOSS
from streamveil.pipelines.audit.rounds import USUAL, Extent, found_by
from streamveil.pipelines.options.audit_options import DEFAULT_BINS_OF_DEVICES

# A run is of so many slots, or of so many of the longest windows, and of about so many values.
LENGTH, WINDOWS, CELLS = 48, 4, 600_000
# Users of a class, at least; clients of a class; reports that these are asked for in a run; and
# canaries of a kind that are kept of a run.
LEAST_USERS, CLIENTS, CLIENT_REPORTS, KEPT = 400, 100, 600, 40_000

SLOTS, SPANS, AGAIN = "reports", "windows", "asked again"
"""What canaries meet: the reports of a slot, those of a window, or those of clients' devices."""

ABOUT = About(
    "An operator who sees all reports of all devices, and asks some of them again and again, "
    "guessed which of two sequences of values each of them had",
    "Requirement",
    "slot",
    "window",
    (
        (
            "reports",
            "A device has one of two values in a slot, by its own fair coin, and reports it. "
            "Devices that report one event of a window have it in all slots of a report.",
        ),
        (
            "asked again",
            "The same for devices of clients, one by one. Each gets the same request three times, "
            "and then a request for another report.",
        ),
        (
            "windows",
            "A device has one of two sequences of values in a window, which differ in every slot. "
            "The attacker uses all reports of the window together.",
        ),
        (
            "report, window",
            "The claim is the cost of the reports, or the budget of a window. Each ε is the median "
            "over all guesses.",
        ),
    ),
)


def audited_devices(
    requirements: Sequence[Requirement],
    *,
    mechanism: str = LOCAL_DEFAULT,
    sizes: Integers | None = None,
    bins: int = DEFAULT_BINS_OF_DEVICES,
    counts: Integers | None = None,
    extent: Extent = USUAL,
) -> Findings:
    """Audit the devices that a local mechanism asks.

    Args:
        requirements: of each class, K of them, all distinct.
        mechanism: a key of `LOCAL_MECHANISMS`, with options.
        sizes: users of each class, shape (K,): there are as many times more or fewer of all as an
            audit needs; as many of each as are enough for any mechanism, where it is not said.
        bins: of what devices report, where there are no counts; that there is no event is one more
            symbol.
        counts: of a real stream, int64, shape (T, K, d): values are drawn as these are spread, in
            a stretch of it, and neighbours have others. Worst cases without.
        extent: how long the audit goes on, in rounds of one run.

    Raises ConfigurationError for a mechanism or requirements that cannot be.
    """
    asked = Requirements.of(requirements)
    enough = np.full(len(asked), 2 * asked.longest)
    people = enough if sizes is None else np.asarray(sizes, np.int64)
    symbols = (bins if counts is None else counts.shape[2]) + 1
    # Whether users are too few for a mechanism is checked with the real numbers that matter.
    local_mechanism(mechanism, _users(asked, np.minimum(people, enough), symbols))
    length = max(LENGTH, WINDOWS * asked.longest)
    users = _users(asked, _scaled(people, asked.longest, length), symbols)
    audit = DevicesAudit(mechanism, users, people, length, counts, extent.seed)
    audit.notes = list(left_out(Population(asked, people, symbols), audit.classes))
    return found_by(audit, extent)


def _users(asked: Requirements, sizes: Integers, symbols: int) -> Users:
    class_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return Users(asked, class_of, symbols)


def _scaled(sizes: Integers, longest: int, length: int) -> Integers:
    """As many times more users or fewer as one run needs and can have, shape (K,)."""
    needed = max(CELLS // length, LEAST_USERS * len(sizes), 4 * longest)
    many = -(-sizes * needed // max(int(sizes.sum()), 1))
    return np.maximum(many, LEAST_USERS)


class DevicesAudit(Audit):
    """Of all kinds of canaries in one run: see :class:`Audit`."""

    about = ABOUT
    limits = ANY_LOSS

    def __init__(
        self,
        mechanism: str,
        users: Users,
        people: Integers,
        length: int,
        counts: Integers | None,
        seed: int,
    ) -> None:
        self._mechanism, self._asked, self._length = mechanism, users, length
        self._counts, self._people = counts, people
        self.users = local_mechanism(mechanism, users).users
        """With what reports may cost."""
        self.classes = watched(Population(users.classes, users.sizes, users.symbols))
        # Devices that tell an event are charged for it, and not for a report.
        charge = REPORT if self.users.asked is None else ""
        parts = (Part(SLOTS, REPORT), Part(AGAIN, REPORT), Part(SPANS, charge, WINDOW))
        worlds = {(k, part.name): (part,) for k in self.classes for part in parts}
        super().__init__(mechanism, seed, worlds)
        self.own = counts is not None

    def requirement(self, k: int) -> Requirement:
        """See :class:`Audit`."""
        return self._asked.classes[k]

    def round(self, number: int, done: Callable[[int], object]) -> None:
        """One run, of all classes and of all kinds of canaries."""
        random = np.random.default_rng([self.seed, number])
        key = digest(b"audit of devices", b"%d %d" % (self.seed, number))
        made_up = random.spawn(1)[0] if number % 2 and self._counts is None else None
        run = DeviceRun(self._mechanism, self._asked, key, made_up)
        values = Values(self.users, self._counts, self._people, self._length, random)
        spans = {kind: self._spans(kind, random) for kind in (SLOTS, SPANS)}
        clients = {k: self._clients(k, random, derived_key(key, f"{k}")) for k in self.classes}
        everybody = [*spans[SLOTS].values(), *spans[SPANS].values()]
        for slot in range(self._length):
            check_clock()
            values.begin(slot)
            for one in (*everybody, *(each.spans for each in clients.values())):
                one.open(slot, values.pairs(one.users))
            now = values.others()
            for one in everybody:
                inside = one.values >= 0
                now[one.users[inside]] = one.values[inside]
            for answers in run.slot(slot, now):
                if answers.class_index in clients:
                    clients[answers.class_index].ask(answers)
                    for kind in (SLOTS, SPANS):
                        self._look(spans[kind][answers.class_index], answers)
            for one in (*everybody, *(each.spans for each in clients.values())):
                one.close()
        self.ran(self._length, run.fullest)
        for k in self.classes:
            found = {SLOTS: spans[SLOTS][k], SPANS: spans[SPANS][k], AGAIN: clients[k].spans}
            for kind, one in found.items():
                guesses = one.guesses(KEPT).promised(self.requirement(k).epsilon)
                self.guesses[k, kind].append((guesses,))

    def _look(self, spans: Spans, answers: Answers) -> None:
        """Note what answers tell of canaries."""
        rows, here = spans.asked(answers.users)
        if here.size:
            reports = answers.reports[rows]
            pairs = spans.pairs(here)
            found = odds(answers.kind, answers.price, self.users.symbols, reports, *pairs)
            spans.note(here, found, answers.price)

    def _spans(self, kind: str, random: np.random.Generator) -> dict[int, Spans]:
        """Of each class: one half of its devices is for slots, one for windows."""
        found = {}
        for k in self.classes:
            half = np.flatnonzero(self.users.class_of == k)[int(kind == SPANS) :: 2]
            found[k] = Spans(half.astype(np.int32), *self._length_and_pause(k, kind), random)
        return found

    def _length_and_pause(self, k: int, kind: str) -> tuple[int, int]:
        window = self.users.promised[k].window
        length = window if kind == SPANS else 1
        if self.users.asked is None:
            return length, length
        turn = self.users.classes[k].window
        return (window, 2 * window) if kind == SPANS else (turn, window + turn)

    def _clients(self, k: int, random: np.random.Generator, key: bytes) -> Clients:
        users = np.flatnonzero(self.users.class_of == k)
        some = np.sort(random.choice(users, min(CLIENTS, users.size), replace=False))
        spans = Spans(some.astype(np.int32), *self._length_and_pause(k, SLOTS), random)
        return Clients(self.users, self.users.promised[k], spans, key, CLIENT_REPORTS)
