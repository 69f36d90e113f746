"""The mechanisms of all families by name. Adding one is one entry in `REGISTRY`.

A mechanism is imported when it is first made, so that names alone cost nothing.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from streamveil.mechanisms.accounting.schedule import DynamicScheduleRun, ScheduleRun
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.parameter_checks import whole
from streamveil.mechanisms.core.records import (
    ConfigurationError,
    DynamicRequirement,
    Lifetime,
    Requirement,
    as_dynamic_requirement,
    as_requirement,
    check_shares,
)
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.protocol import (
    DynamicMechanism,
    Mechanism,
    Population,
    Setting,
    population_of,
)

if TYPE_CHECKING:
    from streamveil.mechanisms.local.protocol import LocalMechanism, Users
    from streamveil.mechanisms.per_record.protocol import Bounds, Statistic

# Families, and what their mechanisms are for.
WINDOWS = "w-event"
CHANGING = "changing"
INFINITE = "infinite"
LOCAL = "local"
PER_RECORD = "per-record"
_PURPOSES = {
    WINDOWS: "requirements over windows that never change (streamveil release)",
    CHANGING: "requirements that change (streamveil release --requirement_changes)",
    INFINITE: "lifetime budgets (streamveil release --guarantee=infinite)",
    LOCAL: "devices that report (streamveil collect)",
    PER_RECORD: "budgets of single records (streamveil per-record)",
}

LONGEST_LAG = 1000
"""Slots until a slot is revised, at most."""

_FRAMES = {WINDOWS: "wevent.pwsm:PWSM", CHANGING: "wevent.dpwsm:DPWSM"}


def _load(place: str) -> Callable[..., Any]:
    """Import what is in one of the rooms, by MODULE:NAME."""
    found: Callable[..., Any] = pkgutil.resolve_name(f"streamveil.mechanisms.{place}")
    return found


@dataclass(frozen=True)
class Spec:
    """What a mechanism is called, where it is and what it is for."""

    name: str
    family: str
    place: str
    """MODULE:NAME of its factory, or of its budget schedule, which runs in the frame of the family,
    below `streamveil.mechanisms`.

    A factory takes the name with options and the public facts: a Population (w-event, infinite), a
    Setting (changing), Users (local) or Bounds (per-record, further facts with a default of None).
    Options are keywords with defaults of type bool, float, int or str."""
    statistic: str = ""
    """What it computes, of a per-record mechanism."""
    schedule: bool = False
    """Whether `place` is a budget schedule, made of requirements (w-event) or a horizon."""
    strictest: bool = False
    """Whether a schedule takes the strictest requirement in everybody's name."""
    default: bool = False
    """Taken for its family, and statistic, unless another one is named."""
    compared: bool = False
    """There to compare with, never advised."""
    finite: bool = False
    """Releases nothing new after a horizon: not for infinite streams."""
    follows: bool = False
    """Asks devices, and follows what users ask for when that changes."""
    revises: bool = False
    """Can revise slots when more is known: see `mechanisms/adaptive/revisions.py`."""
    grows: bool = False
    """Can continue with more bins: see `Growing` in `mechanisms/protocol.py`."""
    draws: bool = False
    """Draws by lot for every single unit of a count, which there should not be too many of."""

    @property
    def factory(self) -> Callable[..., Any]:
        """What makes the mechanism of its name with options and the public facts."""
        if self.schedule:
            return partial(_load(_FRAMES[self.family]), self.budgets)
        return _load(self.place)

    @cached_property
    def options(self) -> Mapping[str, bool | float | int | str]:
        """Its options and their defaults."""
        return {
            parameter.name: parameter.default
            for parameter in inspect.signature(self.factory).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        }

    def budgets(self, asked: Any) -> Any:
        """The budget schedule over requirements, or over a horizon where they change."""
        if self.strictest:
            asked = Requirements.of(asked).strictest
        return _load(self.place)(asked)


Specs = Mapping[str, Spec]

REGISTRY = (
    Spec("adaptive", WINDOWS, "adaptive.fixed:Adaptive", default=True, revises=True, grows=True),
    Spec("pba", WINDOWS, "wevent.pba:PBA", schedule=True, grows=True, draws=True),
    Spec("pbd", WINDOWS, "wevent.pbd:PBD", schedule=True, grows=True, draws=True),
    Spec("ba", WINDOWS, "wevent.pba:PBA", schedule=True, grows=True, strictest=True, compared=True),
    Spec("bd", WINDOWS, "wevent.pbd:PBD", schedule=True, grows=True, strictest=True, compared=True),
    Spec("uniform", WINDOWS, "comparators.baselines:Uniform", compared=True, draws=True),
    Spec("sample", WINDOWS, "comparators.baselines:Sample", compared=True, draws=True),
    Spec("spas", WINDOWS, "comparators.spas:SPAS", compared=True),
    Spec("lbu", WINDOWS, "comparators.baselines:LBU", compared=True, draws=True),
    Spec("plbu", WINDOWS, "comparators.baselines:PLBU", compared=True, draws=True),
    Spec("ablation", WINDOWS, "comparators.ablation:Ablation", compared=True, draws=True),
    Spec("adaptive", CHANGING, "adaptive.changing:DynamicAdaptive", default=True, revises=True),
    Spec("dpbd", CHANGING, "wevent.dpbd:DPBD", schedule=True),
    Spec("dpba", CHANGING, "wevent.dpba:DPBA", schedule=True),
    Spec("gated", INFINITE, "infinite.gated:Gated", default=True),
    Spec("dpi", INFINITE, "infinite.dpi:DPI", compared=True),
    Spec("constant", INFINITE, "infinite.calendar_baselines:Constant", compared=True),
    Spec("doubling", INFINITE, "infinite.calendar_baselines:Doubling", compared=True),
    Spec("horizon", INFINITE, "infinite.calendar_baselines:Horizon", compared=True, finite=True),
    Spec(
        "rotation",
        LOCAL,
        "local.algorithms.rotation:Rotation",
        default=True,
        follows=True,
        revises=True,
    ),
    Spec("plpa+", LOCAL, "local.algorithms.plpa:PLPAPlus"),
    Spec("plpd+", LOCAL, "local.algorithms.plpd:PLPDPlus"),
    Spec("plpa", LOCAL, "local.algorithms.plpa:PLPA"),
    Spec("plpd", LOCAL, "local.algorithms.plpd:PLPD"),
    Spec("lpa", LOCAL, "local.algorithms.plpa:LPA", compared=True),
    Spec("lpd", LOCAL, "local.algorithms.plpd:LPD", compared=True),
    Spec("lba", LOCAL, "local.algorithms.budget_division:LBA", compared=True),
    Spec("lbd", LOCAL, "local.algorithms.budget_division:LBD", compared=True),
    Spec("plbu", LOCAL, "local.algorithms.plbu:PLBU", compared=True),
    Spec("lbu", LOCAL, "local.algorithms.plbu:LBU", compared=True),
    Spec("hat", PER_RECORD, "per_record.hat:HatCount", "count", default=True),
    Spec("prdp", PER_RECORD, "per_record.prdp:PrdpCount", "count"),
    Spec("hat", PER_RECORD, "per_record.hat:HatSum", "sum", default=True),
    Spec("prdp", PER_RECORD, "per_record.prdp:PrdpSum", "sum"),
    Spec("framework", PER_RECORD, "per_record.base_sum:framework_sum", "sum"),
    Spec("framework", PER_RECORD, "per_record.base_max:framework_max", "max", default=True),
    Spec(
        "framework",
        PER_RECORD,
        "per_record.base_distinct:framework_distinct",
        "distinct",
        default=True,
    ),
)


def of_family(family: str, statistic: str = "") -> Specs:
    """The mechanisms of a family, of one statistic if it is per-record, by name."""
    found = (spec for spec in REGISTRY if (spec.family, spec.statistic) == (family, statistic))
    return {spec.name: spec for spec in found}


def default_of(known: Specs) -> str:
    """The one that is taken unless another one is named."""
    return next(name for name, spec in known.items() if spec.default)


MECHANISMS = of_family(WINDOWS)
"""Mechanisms for fixed requirements over a window, by name."""
DYNAMIC_MECHANISMS = of_family(CHANGING)
"""Mechanisms for requirements that change during a run, by name."""
INFINITE_MECHANISMS = of_family(INFINITE)
"""Mechanisms for a lifetime budget that all slots share, by name."""
LOCAL_MECHANISMS = of_family(LOCAL)
"""Mechanisms of the local model, by name."""
PER_RECORD_MECHANISMS: Mapping[str, Specs] = {
    spec.statistic: of_family(PER_RECORD, spec.statistic) for spec in REGISTRY if spec.statistic
}
"""Mechanisms of per-record privacy, by statistic and name."""
SCHEDULES = {name: spec for name, spec in MECHANISMS.items() if spec.schedule}
"""Mechanisms of `MECHANISMS` whose budget schedule :func:`schedule` can run alone, by name."""
DYNAMIC_SCHEDULES = {name: spec for name, spec in DYNAMIC_MECHANISMS.items() if spec.schedule}
"""Mechanisms of `DYNAMIC_MECHANISMS` whose budget schedule can run alone, by name."""

DEFAULT = default_of(MECHANISMS)
"""Name of the default in `MECHANISMS`."""
INFINITE_DEFAULT = default_of(INFINITE_MECHANISMS)
"""Name of the default in `INFINITE_MECHANISMS`."""
LOCAL_DEFAULT = default_of(LOCAL_MECHANISMS)
"""Name of the default in `LOCAL_MECHANISMS`."""
DEFAULTS = {kind: default_of(known) for kind, known in PER_RECORD_MECHANISMS.items()}


def mechanism(text: str, population: Population, *, revise: int = 0) -> Mechanism[Any]:
    """Make a mechanism for fixed requirements.

    Args:
        text: the mechanism, as a name in `MECHANISMS`. You may add options, written
            NAME:OPTION=VALUE:OPTION=VALUE. If users have a lifetime budget (:class:`Lifetime`),
            give a name in `INFINITE_MECHANISMS` instead.
        population: the public facts about users and bins.
        revise: number of slots after which the mechanism makes a smoothed estimate (revision) of
            each slot. With 0, the mechanism makes no revisions.

    Raises:
        ConfigurationError: if the mechanism or an option is unknown, the value of an option is not
            valid, or the mechanism does not support revisions.
    """
    known = INFINITE_MECHANISMS if population.requirements.forever else MECHANISMS
    made: Mechanism[Any] = _made(text, known, population, revise)
    return made


def infinite_mechanism(
    text: str, bins: int, epsilon: float, *, users: int = 0, sensitivity: int = 1
) -> Mechanism[Any]:
    """Make a mechanism for which all slots of the stream share one lifetime budget.

    Args:
        text: the mechanism, as a name in `INFINITE_MECHANISMS`. You may add options, written
            NAME:OPTION=VALUE:OPTION=VALUE.
        bins: number of bins d of the histogram.
        epsilon: the lifetime budget of each user.
        users: public number of users. The number appears in the ledger, and does not affect
            results.
        sensitivity: the most by which one user can change the histogram of a slot (L1 sensitivity).

    Raises:
        ConfigurationError: if :func:`mechanism` would raise this error.
    """
    return mechanism(text, population_of([Lifetime(epsilon)], [users], bins, sensitivity))


def dynamic_mechanism(text: str, setting: Setting, *, revise: int = 0) -> DynamicMechanism[Any]:
    """Make a mechanism for requirements that change during a run.

    Args:
        text: the mechanism, as a name in `DYNAMIC_MECHANISMS`. You may add options, written
            NAME:OPTION=VALUE:OPTION=VALUE.
        setting: the public facts about users and bins.
        revise: number of slots after which the mechanism makes a smoothed estimate (revision) of
            each slot. With 0, the mechanism makes no revisions.

    Raises:
        ConfigurationError: if :func:`mechanism` would raise this error.
    """
    made: DynamicMechanism[Any] = _made(text, DYNAMIC_MECHANISMS, setting, revise)
    return made


def check_revise(text: str, revise: int, *, local: bool = False) -> None:
    """Refuse a mechanism that cannot revise, and a lag out of range: raises ConfigurationError.

    Args:
        text: the mechanism, with its options.
        revise: how many slots later a slot is revised; 0 for never.
        local: whether it asks devices.
    """
    if not revise:
        return
    if whole("revise", revise) > LONGEST_LAG:
        raise ConfigurationError(
            f"revise is {revise}: slots are revised up to {LONGEST_LAG} slots later, give at most "
            "that"
        )
    if not can_revise(text):
        able = dict.fromkeys(
            spec.name for spec in REGISTRY if spec.revises and (spec.family == LOCAL) == local
        )
        raise ConfigurationError(
            f"mechanism {text!r} cannot revise ({opt.revise}={revise}): choose "
            f"{' or '.join(able)}, or leave {opt.revise} out"
        )


def can_revise(text: str) -> bool:
    """Whether a mechanism, given with its options, can revise."""
    return any(spec.revises for spec in REGISTRY if spec.name == text.partition(":")[0])


def local_mechanism(text: str, users: Users, *, revise: int = 0) -> LocalMechanism[Any]:
    """Make a mechanism of the local model.

    Args:
        text: the mechanism, as a name in `LOCAL_MECHANISMS`. You may add options, written
            NAME:OPTION=VALUE:OPTION=VALUE.
        users: the public facts about users and bins.
        revise: number of slots after which the mechanism makes a smoothed estimate (revision) of
            each slot. With 0, the mechanism makes no revisions.

    Raises:
        ConfigurationError: if the mechanism or an option is unknown, the value of an option is not
            valid, the mechanism does not support the users in `users`, or the mechanism does not
            support revisions.
    """
    parse(text, LOCAL_MECHANISMS)
    if not users.class_of.size:
        raise ConfigurationError("there are no users: no user could be asked")
    if users.symbols < 2:
        raise ConfigurationError(
            f"reports of {users.symbols} symbols tell nothing: give 2 bins or more"
        )
    check_shares(users.classes)
    made: LocalMechanism[Any] = _made(text, LOCAL_MECHANISMS, users, revise)
    return made


def statistic(kind: str, text: str | None, bounds: Bounds, **facts: Any) -> Statistic:
    """Make a mechanism that computes a statistic under per-record privacy.

    Args:
        kind: a key of `PER_RECORD_MECHANISMS`.
        text: name of a mechanism that `PER_RECORD_MECHANISMS` lists for this kind of statistic. You
            may add options, written NAME:OPTION=VALUE:OPTION=VALUE. If None, the default mechanism
            of the statistic is used.
        bounds: the public bounds of values and budgets.
        facts: other public settings by name, for example `budget`, the function that gives the
            budget of a record. A mechanism ignores settings that it does not use.

    Raises:
        ConfigurationError: if the statistic, the mechanism or an option is unknown, the value of an
            option is not valid, or the mechanism does not support the bounds.
    """
    if kind not in PER_RECORD_MECHANISMS:
        known = ", ".join(PER_RECORD_MECHANISMS)
        raise ConfigurationError(f"statistic {kind!r} is unknown: choose one of {known}")
    made: Statistic = _made(text or DEFAULTS[kind], PER_RECORD_MECHANISMS[kind], bounds, **facts)
    return made


def _made(text: str, known: Specs, public: Any, revise: int = 0, **facts: Any) -> Any:
    """Make one of the known mechanisms; errors are raised with its name."""
    name, options = parse(text, known)
    factory = known[name].factory
    used = inspect.signature(factory).parameters if facts else ()
    stated = {fact: value for fact, value in facts.items() if fact in used}
    try:
        made = factory(text, public, **stated, **options)
    except ConfigurationError as error:
        if repr(text) in str(error):
            raise
        raise ConfigurationError(f"mechanism {text!r}: {error}") from error
    if revise:
        check_revise(text, revise, local=known is LOCAL_MECHANISMS)
        made.revise = revise
    return made


def only_dynamic(text: str) -> bool:
    """Whether a mechanism is for requirements that change only: it runs constant ones as such."""
    name = text.partition(":")[0]
    return name in DYNAMIC_MECHANISMS and name not in MECHANISMS


def is_comparator(text: str) -> bool:
    """Whether a mechanism, given with its options, is there to compare with, and never advised."""
    name = text.partition(":")[0]
    return any(spec.compared for spec in REGISTRY if spec.name == name)


def parse(text: str, known: Specs = MECHANISMS) -> tuple[str, dict[str, Any]]:
    """Read the name of a mechanism and its options; raises as :func:`mechanism` does."""
    name, *given = text.split(":")
    allowed = _named(known, name).options
    options: dict[str, Any] = {}
    for one in given:
        option, _, value = one.partition("=")
        if option not in allowed:
            listed = ", ".join(allowed) if allowed else "none"
            raise ConfigurationError(
                f"mechanism {text!r}: {name} has no option {option!r}; its options: {listed}"
            )
        if option in options:
            raise ConfigurationError(
                f"mechanism {text!r}: option {option!r} is given twice: leave one out"
            )
        options[option] = _read(text, option, value, type(allowed[option]))
    return name, options


def with_options(name: str, options: Mapping[str, bool | float | int | str]) -> str:
    """The text of a mechanism with options, which :func:`parse` reads."""
    return ":".join([name, *(f"{option}={value}" for option, value in options.items())])


def schedule(
    name: str,
    requirements: int | Sequence[Requirement | DynamicRequirement | Sequence[float]] = (),
) -> ScheduleRun[Any] | DynamicScheduleRun:
    """Run only the part of a mechanism that divides the budget among slots, without any counts.

    You run the schedule slot by slot, and decide for each slot whether to publish a result.

    Args:
        name: a name in `SCHEDULES` or `DYNAMIC_SCHEDULES`.
        requirements: the requirement of each class or user. If `name` is in `SCHEDULES`, each
            requirement is a Requirement or a pair (window, epsilon). If `name` is in
            `DYNAMIC_SCHEDULES`, a requirement may also be a DynamicRequirement or its four numbers.
            A dynamic schedule uses the requirements in this argument for every slot for which you
            do not give other requirements. If you give requirements for every slot, you may leave
            this argument out, or give the number of users instead.

    Raises:
        ConfigurationError: if no schedule has this name, or if a requirement is out of range.
    """
    listed = () if isinstance(requirements, int) else requirements
    spec = _named({**SCHEDULES, **DYNAMIC_SCHEDULES}, name)
    if spec.family == CHANGING:
        usual = [astuple(as_dynamic_requirement(r)) for r in listed]
        return DynamicScheduleRun(spec.budgets, usual or None)
    if not listed:
        raise ConfigurationError("a schedule needs at least one requirement")
    return ScheduleRun(spec.budgets([as_requirement(r) for r in listed]))  # type: ignore[arg-type]


def _named(known: Specs, name: str) -> Spec:
    if name in known:
        return known[name]
    families = dict.fromkeys(spec.family for spec in REGISTRY if spec.name == name)
    why = f"for {' or '.join(_PURPOSES[one] for one in families)}: here" if families else "unknown:"
    raise ConfigurationError(f"mechanism {name!r} is {why} choose one of {', '.join(known)}")


def _read(text: str, option: str, value: str, kind: type) -> Any:
    """Read an option's value as the type of its default."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        return kind(value)
    except (KeyError, ValueError):
        expected = "true or false" if kind is bool else f"a value of type {kind.__name__}"
        raise ConfigurationError(
            f"mechanism {text!r}: option {option} is {value!r}, give {expected}"
        ) from None
