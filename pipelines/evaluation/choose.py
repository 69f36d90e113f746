"""Which mechanism to choose, as far as the runs can tell.

All mechanisms saw the same streams, so they are compared seed by seed, by the logarithm of the
ratio of their errors: errors of one mechanism spread in proportion to their size. One has less
error than another when that mean logarithm is more than its standard error times Student's t at
97.5 %: otherwise the difference may be noise, and they are tied. One seed tells nothing about it.

The error alone would advise releases whose intervals miss the truth, so coverage is looked at as
well: a mechanism with less than `LEAST_COVERAGE` is not advised, and where it is less than
`FAIR_COVERAGE`, the advice says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from streamveil.mechanisms.core.arrays import Floats
from streamveil.mechanisms.core.wording import opt
from streamveil.mechanisms.registry import is_comparator
from streamveil.pipelines.evaluation.comparison_table import Case, Family, Run

# Student's t at 97.5 % for 1 to 30 degrees of freedom; beyond, the last one is on the safe side.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
# Releases without any error have no logarithm; far below what any noise leaves.
_LEAST_ERROR = 1e-9
NOMINAL_COVERAGE = 0.9
"""Share of the true counts that released intervals claim to hold."""
FAIR_COVERAGE = 0.8
"""With less, advice says what the coverage is."""
LEAST_COVERAGE = 0.5
"""With less, a mechanism is not advised."""


class Coverage(NamedTuple):
    """A coverage of a mechanism."""

    title: str
    """Of the measure."""
    share: float
    """Mean over seeds."""
    of_part: bool = False
    """Of a part of the true counts, such as those above 0. It is reported and refuses nothing:
    where most counts are 0, intervals may hold 0.9 of all and still few of the others."""


Coverages = Mapping[str, Sequence[Coverage]]
"""By mechanism, as far as they are known."""


@dataclass(frozen=True)
class Choice:
    """What the runs of one case say."""

    best: str | None
    """Mechanism of the least mean error among those that may be advised; None without any."""
    tied: tuple[str, ...]
    """Others that may be advised whose error may as well be less, in order of their means."""
    better_comparators: tuple[str, ...]
    """Comparators whose error is less than that of `best` by more than noise."""
    ratios: Mapping[str, float]
    """Mean error of each mechanism over that of `best`: NaN where both are 0."""
    refused: Mapping[str, Coverage]
    """Mechanisms that are not advised although they have less error than `best`, or although there
    is no other: their coverage is less than `LEAST_COVERAGE`. In order of their means."""
    low: Mapping[str, Coverage]
    """Those advised with a coverage of less than `FAIR_COVERAGE`."""

    @property
    def advised(self) -> tuple[str, ...]:
        """The best and what is tied with it."""
        return () if self.best is None else (self.best, *self.tied)

    @property
    def leading(self) -> str | None:
        """The best, or the first that was refused where there is none."""
        return self.best or next(iter(self.refused), None)


def choose(errors: Mapping[str, Floats], coverages: Coverages | None = None) -> Choice:
    """Choose by the error of each mechanism and seed.

    Args:
        errors: by mechanism, one value for each seed, in the same order of seeds: shape (seeds,).
        coverages: of mechanisms; one without is not refused.
    """
    means = {name: float(values.mean()) for name, values in errors.items()}
    found = _choose(means, _logarithms(errors), coverages or {})
    if found.best is None:
        return found
    ratios = {name: _ratio(mean, means[found.best]) for name, mean in means.items()}
    return replace(found, ratios=ratios)


def choose_overall(
    cases: Sequence[Mapping[str, Floats]], coverages: Sequence[Coverages] = ()
) -> Choice:
    """Choose by the mean over cases of the logarithm of the error, that is, by their ratios.

    Args:
        cases: errors of the same mechanisms and seeds, as :func:`choose` takes them.
        coverages: of each case; the worst decides.
    """
    logs = [_logarithms(case) for case in cases]
    together: dict[str, Floats] = {n: np.mean([one[n] for one in logs], axis=0) for n in logs[0]}
    means = {name: float(values.mean()) for name, values in together.items()}
    joined: dict[str, list[Coverage]] = {}
    for case in coverages:
        for name, some in case.items():
            joined.setdefault(name, []).extend(some)
    found = _choose(means, together, joined)
    if found.best is None:
        return found
    ratios = {name: math.exp(mean - means[found.best]) for name, mean in means.items()}
    return replace(found, ratios=ratios)


def _choose(means: Mapping[str, float], logs: Mapping[str, Floats], coverages: Coverages) -> Choice:
    """Choose the least of the means, with what is tied by the logarithms; ratios are left out."""
    order = sorted(means, key=lambda name: means[name])
    known = [name for name in order if not is_comparator(name)]
    of_all = {n: [one for one in some if not one.of_part] for n, some in coverages.items()}
    refused, low = _below(LEAST_COVERAGE, of_all, known), _below(FAIR_COVERAGE, coverages, known)
    candidates = [name for name in known if name not in refused]
    if not candidates:
        return Choice(None, (), (), {}, refused, {})
    best = candidates[0]
    tied = [name for name in candidates[1:] if not _is_less(logs[best], logs[name])]
    better = [name for name in order if is_comparator(name) and _is_less(logs[name], logs[best])]
    return Choice(
        *(best, tuple(tied), tuple(better), {}),
        {name: one for name, one in refused.items() if means[name] < means[best]},
        {name: low[name] for name in (best, *tied) if name in low},
    )


def _below(least: float, coverages: Coverages, names: Sequence[str]) -> dict[str, Coverage]:
    """A coverage below `least` of each mechanism that has one: of all counts, or else of a part."""
    found = {
        name: sorted(
            (one for one in coverages.get(name, ()) if one.share < least),
            key=lambda one: (one.of_part, one.share),
        )
        for name in names
    }
    return {name: some[0] for name, some in found.items() if some}


def _logarithms(errors: Mapping[str, Floats]) -> dict[str, Floats]:
    return {name: np.log(np.maximum(values, _LEAST_ERROR)) for name, values in errors.items()}


def errors_by_case(family: Family, runs: Sequence[Run]) -> dict[Case, dict[str, Floats]]:
    """The first measure of each mechanism and seed, by case in order of the runs."""
    found: dict[Case, dict[str, list[tuple[int, float]]]] = {}
    for run in runs:
        case = found.setdefault(family.case_of(run), {})
        case.setdefault(run.mechanism, []).append((run.seed, run.figures[family.measures[0].name]))
    return {
        key: {
            name: np.array([error for _, error in sorted(values)]) for name, values in case.items()
        }
        for key, case in found.items()
    }


def coverages_by_case(family: Family, runs: Sequence[Run]) -> dict[Case, Coverages]:
    """The coverages of each mechanism, by case in order of the runs."""
    grouped: dict[Case, dict[str, list[Run]]] = {}
    for run in runs:
        grouped.setdefault(family.case_of(run), {}).setdefault(run.mechanism, []).append(run)
    return {
        case: {name: _coverages(family, group) for name, group in by_mechanism.items()}
        for case, by_mechanism in grouped.items()
    }


def _coverages(family: Family, runs: Sequence[Run]) -> list[Coverage]:
    """Those of one mechanism in one case."""
    found = []
    for measure in family.measures:
        if measure.name in (*family.coverages, *family.coverages_of_parts):
            shares = [run.figures[measure.name] for run in runs]
            known = [share for share in shares if not math.isnan(share)]
            if known:
                of_part = measure.name in family.coverages_of_parts
                found.append(Coverage(measure.title, float(np.mean(known)), of_part))
    return found


def choices(family: Family, runs: Sequence[Run]) -> dict[Case, Choice]:
    """What to choose in each case, in order of the runs."""
    coverages = coverages_by_case(family, runs)
    return {
        case: choose(errors, coverages[case])
        for case, errors in errors_by_case(family, runs).items()
    }


def overall_choice(family: Family, runs: Sequence[Run]) -> Choice:
    """What to choose in all cases together."""
    return choose_overall(
        list(errors_by_case(family, runs).values()), list(coverages_by_case(family, runs).values())
    )


def next_best(choice: Choice) -> tuple[str, float] | None:
    """The best mechanism that is not advised, and how many times the error it has."""
    rest = {
        name: ratio
        for name, ratio in choice.ratios.items()
        if name not in (*choice.advised, *choice.refused) and not is_comparator(name)
    }
    return min(rest.items(), key=lambda item: item[1]) if rest else None


def sentence(choice: Choice) -> str:
    """What a choice says, in words."""
    if choice.best is None and choice.refused:
        return f"no advice: coverage is far below {NOMINAL_COVERAGE:g}: {_listed(choice.refused)}"
    if choice.best is None:
        return "no advice: only comparators were run"
    text, rival = choice.best, next_best(choice)
    if choice.tied:
        text += f", tied with {' and '.join(choice.tied)}"
    elif rival:
        text += f": {rival[0]} has {rival[1]:.3g} times its error"
    if choice.low:
        text += f"; coverage is below {NOMINAL_COVERAGE:g}: {_listed(choice.low)}"
    if choice.refused:
        text += "; not advised in spite of less error, since coverage is far below "
        text += f"{NOMINAL_COVERAGE:g}: {_listed(choice.refused)}"
    if choice.better_comparators:
        text += f"; less error, but only to compare with: {', '.join(choice.better_comparators)}"
    return text


def _listed(coverages: Mapping[str, Coverage]) -> str:
    return ", ".join(f"{name} {coverage_text(one)}" for name, one in coverages.items())


def coverage_text(coverage: Coverage) -> str:
    """A coverage as text, with the title of its column where that says more."""
    aside = coverage.title.removeprefix("coverage").strip()
    return f"{coverage.share:.2g}" + (f" ({aside})" if aside else "")


def advice(family: Family, runs: Sequence[Run]) -> list[str]:
    """Which mechanism to choose in each case and overall, in lines of text."""
    found = choices(family, runs)
    lines = [f"{family.label(case)}: {sentence(choice)}" for case, choice in found.items()]
    if len(found) > 1:
        lines.append(f"overall: {sentence(overall_choice(family, runs))}")
    return [f"Choose, by {family.measures[0].title}:", *lines, *caveats(runs)]


def caveats(runs: Sequence[Run]) -> list[str]:
    """What keeps the runs from telling more."""
    seeds = len({run.seed for run in runs})
    if seeds > 1 or len({run.mechanism for run in runs}) < 2:
        return []
    return [
        f"One seed cannot tell a difference from noise, so all are tied: give {opt.seeds}=5 or more"
    ]


def _is_less(one: Floats, other: Floats) -> bool:
    """Whether the mean of `one` is below that of `other` by more than noise; shapes (seeds,)."""
    differences = other - one
    seeds = len(differences)
    if seeds < 2:
        return False
    noise = float(differences.std(ddof=1)) / math.sqrt(seeds)
    return float(differences.mean()) > _STUDENT[min(seeds - 1, len(_STUDENT)) - 1] * noise


def _ratio(error: float, least: float) -> float:
    if least > 0:
        return error / least
    return math.inf if error > 0 else math.nan
