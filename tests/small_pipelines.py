"""Beam does once what it does again for every pipeline, step or bundle.

Most pipelines of the tests have ten events, and all of this is the larger part of what they take.
What a pipeline computes does not change.
"""

import bz2
from functools import lru_cache
from types import MethodType, SimpleNamespace
from weakref import WeakKeyDictionary

ENOUGH = 1 << 12


def make_small_pipelines_fast():
    """Change Beam in this process."""
    import apache_beam.runners.portability.fn_api_runner.worker_handlers as worker_handlers
    from apache_beam.internal import cloudpickle_pickler
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.transforms import core, userstate

    # Its local runner would measure the deep size of every state write for its cache: 0.6 ms each.
    worker_handlers.STATE_CACHE_SIZE_MB = 0
    core.get_function_args_defaults = _of_functions(core.get_function_args_defaults)
    userstate.get_dofn_specs = _of_classes(userstate.get_dofn_specs)
    PipelineOptions.view_as = _of_options(PipelineOptions.view_as)
    # The same few functions are in every pipeline.
    cloudpickle_pickler.bz2 = SimpleNamespace(
        compress=lru_cache(ENOUGH)(bz2.compress), decompress=lru_cache(ENOUGH)(bz2.decompress)
    )


def _of_functions(inspect):
    """Cache the arguments and defaults of a function, which Beam inspects a dozen times."""

    @lru_cache(ENOUGH)
    def inspect_method(function):
        return inspect(MethodType(function, object()))

    def inspect_once(function):
        if not isinstance(function, MethodType):
            return inspect(function)
        return tuple(map(list, inspect_method(function.__func__)))

    return inspect_once


def _of_classes(look_through):
    """State and timers of a DoFn, for which all its methods are looked through."""
    from apache_beam.transforms.core import CallableWrapperDoFn

    specs = WeakKeyDictionary()

    def look_through_once(dofn):
        cls, own = type(dofn), vars(dofn).get("process")
        if own and (cls is not CallableWrapperDoFn or isinstance(own, MethodType)):
            return look_through(dofn)  # it does not process as its class does
        if cls not in specs:
            specs[cls] = look_through(dofn)
        states, timers = specs[cls]
        return set(states), set(timers)

    return look_through_once


def _of_options(view_as):
    """Options, of which every look at one makes a parser."""
    views = WeakKeyDictionary()

    def view_once(self, cls):
        seen = views.setdefault(self, {})
        if cls not in seen:
            seen[cls] = view_as(self, cls)
        return seen[cls]

    return view_once
