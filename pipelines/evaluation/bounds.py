"""How many events of a user should count in a slot: fewer lose events, more take more noise.

What a bound loses is computed from the events. What noise it needs is taken to grow with it in
proportion, from what the mechanism erred under the bound that was run. So the advice is an
estimate: run the comparison again with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamveil.mechanisms.core.wording import opt
from streamveil.pipelines.evaluation.choose import choices
from streamveil.pipelines.evaluation.comparison_table import ComparisonTable, number
from streamveil.pipelines.evaluation.drivers import is_local
from streamveil.pipelines.evaluation.sources import Bound, Counted, Source

# A bound that errs this little less is not worth another run.
_WORTH_IT = 0.9


def bound_advice(sources: Iterable[Source], comparison: ComparisonTable) -> list[str]:
    """What the users' bound leaves out of each stream, and which one to choose: lines of text."""
    bounds = {
        source.name: source.bound
        for source in sources
        if isinstance(source, Counted) and source.bound is not None and source.bound.beyond
    }
    lines = [_bounded_text(name, bound) for name, bound in bounds.items()]
    family, noise = (
        comparison.family,
        {(r.case, r.mechanism): r.means["noise"] for r in comparison.rows},
    )
    for case, choice in choices(family, comparison.runs).items():
        best = choice.leading
        if case[0] not in bounds or best is None or is_local(best):  # a device reports one event
            continue
        lines.append(
            f"{family.label(case)}, {best}: {_advised(bounds[case[0]], noise[case, best])}"
        )
    return lines


def _bounded_text(stream: str, bound: Bound) -> str:
    share = bound.beyond / bound.events
    return (
        f"{stream}: {bound.beyond:,} of {bound.events:,} events ({share:.0%}) "
        f"are beyond the users' bound and do not count ({opt.max_contributions}={bound.most})"
    )


def _advised(bound: Bound, noise: float) -> str:
    """What another bound may be expected to err, given the noise under this one."""
    expected = expected_errors(bound, noise)
    best = min(expected, key=lambda most: expected[most])
    here = expected[bound.most]
    split = f"AMRE about {number(here)}, {number(bound.errors[bound.most])} of bounding and "
    split += f"{number(noise)} of noise"
    if best == bound.most or expected[best] > _WORTH_IT * here:
        return f"{split}; no other bound is likely to err much less"
    better = f"{opt.max_contributions}={best}"
    return f"{split}; {better} is likely to err less, about {number(expected[best])}"


def expected_errors(bound: Bound, noise: float) -> dict[int, float]:
    """Expected AMRE by bound: of bounding, and of noise that grows with it.

    Args:
        bound: what each bound leaves out.
        noise: what noise alone makes of AMRE under `bound.most`.
    """
    nothing = 1 << (max(bound.errors).bit_length())  # the first power of two that loses nothing
    errors = {**bound.errors, nothing: 0.0}
    return {most: error + noise * (most / bound.most) ** 2 for most, error in errors.items()}
