"""In how many slots a user should count: participation limits side by side, on events of one's own.

Each limit is released under the mechanism that errs least without one, with the same seeds, by the
engine as of any run; so who is where is read again for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamveil.engine.run.release import release_plan
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.core.user_table import Registry
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.presence import Limit
from streamveil.mechanisms.presence.choice import Auto, Look
from streamveil.mechanisms.presence.limits import limits_of
from streamveil.pipelines.evaluation.choose import choices, errors_by_case
from streamveil.pipelines.evaluation.comparison_table import ComparisonTable, noise_key, number
from streamveil.pipelines.evaluation.drivers import is_local
from streamveil.pipelines.evaluation.sources import Counted, Source, scaled

AUTO = "auto"
# A limit that errs this little less is not worth what it leaves out.
_WORTH_IT = 0.9


@dataclass(frozen=True)
class Candidates:
    """The limits to compare: some, or all that may pay."""

    given: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str | None) -> Candidates | None:
        """As on a command line. Raises ConfigurationError."""
        if text is None or text == AUTO:
            return None if text is None else cls()
        try:
            limits = tuple(Limit(int(part)).max_slots or 0 for part in text.split(","))
        except (ValueError, ConfigurationError):
            raise ConfigurationError(
                f"{opt.max_slots}={text} are no limits to compare: write numbers of slots, such as "
                f"2,4,8, or {AUTO} for all limits that may help"
            ) from None
        return cls(tuple(sorted(set(limits))))

    def among(self, asked: Iterable[Any], adjacency: str) -> list[int]:
        """Those that some of the requirements leave room for, ascending."""
        if self.given:
            return list(self.given)
        looks = [Look(one, adjacency=adjacency) for one in asked]
        return sorted({int(most) for look in looks for most in look.limits})


class Limited:
    """Events of a source, released under limits with one setting of its requirements."""

    def __init__(self, source: Counted, epsilon: float, window: int) -> None:
        assert source.original is not None
        self.asked = source.population(epsilon, window).requirements
        self.adjacency = source.adjacency
        self._read = source.original.read
        self._plan = replace(
            source.original.plan,
            registry=_scaled(source.original.plan.registry, epsilon, window),
            max_rejected=1.0,
            keeps=False,
        )
        self._events = np.stack([one.events for one in source.slots()])

    def pays(self, most: int) -> bool:
        """Whether a limit pays for some of the classes."""
        try:
            limits_of(Limit(most), (), self.asked, self.adjacency)
        except ConfigurationError:
            return False
        return True

    def error(self, name: str, limit: Limit | Auto | None, seed: int) -> float:
        """Mean squared error of a mechanism under a limit, against every event."""
        plan = replace(self._plan, mechanism=name, limit=limit, noise_key=noise_key(seed))
        released = [one.value for one in release_plan(plan, self._read()) if one.tag is None]
        counts = np.array([release.counts for release in released])
        return float(np.square((counts - self._events).astype(np.float64)).mean())


def _scaled(registry: Registry, epsilon: float, window: int) -> Registry:
    """The same users with requirements scaled as those of a comparison are."""
    asked = scaled(registry.classes, epsilon, window)
    default, most = registry.default_class, None
    if default is not None:
        outside = int(registry.sizes[default]) - int((registry.class_of == default).sum())
        most = asked[default], None if registry.unsaid else outside
    return Registry.build(
        registry.users,
        np.array([one.window for one in asked])[registry.class_of],
        np.array([one.epsilon for one in asked])[registry.class_of],
        default=most,
    )


def limit_advice(
    candidates: Candidates, sources: Iterable[Source], comparison: ComparisonTable
) -> list[str]:
    """What limits err on each stream and which one to choose, or none: lines of text."""
    known = {one.name: one for one in sources if isinstance(one, Counted) and one.original}
    lines = []
    errors = errors_by_case(comparison.family, comparison.runs)
    for case, choice in choices(comparison.family, comparison.runs).items():
        best = choice.leading
        if case[0] in known and best is not None and not is_local(best):
            limited = Limited(known[case[0]], *case[1:])
            label = comparison.family.label(case)
            compared = _compared(limited, candidates, best, errors[case][best])
            lines.append(f"{label}, {best}: {compared}")
    return lines


def _compared(
    limited: Limited, candidates: Candidates, name: str, without: npt.NDArray[np.float64]
) -> str:
    def error(limit: Limit | Auto) -> float:
        return float(np.mean([limited.error(name, limit, seed) for seed in range(len(without))]))

    asked = candidates.among(limited.asked, limited.adjacency)
    found = {str(most): error(Limit(most)) for most in asked if limited.pays(most)}
    beside = [str(most) for most in asked if not limited.pays(most)]
    if not found:
        most = max(Candidates().among(limited.asked, limited.adjacency), default=0)
        if not most:
            return f"no participation limit ({opt.max_slots}) pays over these windows"
        return (
            f"over these windows a participation limit pays up to {opt.max_slots}={most}, so "
            f"none of {', '.join(beside)} does: compare smaller ones, or {opt.max_slots}={AUTO}"
        )
    found[AUTO] = error(Auto())
    return _advice_text(found, float(without.mean()), beside)


def _advice_text(found: Mapping[str, float], without: float, beside: Sequence[str] = ()) -> str:
    listed = ", ".join(f"{most}: {number(error)}" for most, error in found.items())
    if beside:
        listed += f" (over these windows not worth it: {', '.join(beside)})"
    best = min(found, key=lambda most: found[most])
    split = f"AMRE {number(without)} without a participation limit, by {opt.max_slots}: {listed}"
    if found[best] > _WORTH_IT * without:
        return f"{split}; none is worth it, so leave {opt.max_slots} out"
    if best == AUTO:
        return f"{split}; release with {opt.max_slots}={AUTO}"
    return f"{split}; release with {opt.max_slots}={best}, or {AUTO} if who is there is secret"
