"""Runs as they might have been."""

from streamveil.pipelines.evaluation.comparison import Comparison
from streamveil.pipelines.evaluation.comparison_table import Run
from streamveil.pipelines.evaluation.w_event import WEvent


def run(mechanism, seed, amre, stream="sin", epsilon=0.6, window=12, **figures):
    """A run of 9,000 users over 500 slots."""
    facts = {"stream": stream, "epsilon": epsilon, "window": window, "mechanism": mechanism}
    found = dict.fromkeys((measure.name for measure in WEvent.measures), 0.0)
    found |= {"amre": amre, "noise": amre, "amse": amre / 1e4, "relative_error": 0.1}
    found |= {"ajsd": 0.01 * seed, "published": 0.5, "window_use": 0.98, "coverage": 0.9}
    found |= {"seconds": 0.25, **figures}
    return Run({**facts, "users": 9000, "slots": 500, "bins": 2}, seed, found)


def compared(runs, **others):
    """Their comparison."""
    return Comparison(WEvent(), runs, {}, **others)
