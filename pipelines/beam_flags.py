"""Flags of Beam, whether there are any, and what of them its filesystems take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

_Options = TypeVar("_Options", bound=PipelineOptions)


class BeamFlags(PipelineOptions):
    """Beam's flags, parsed once for each kind of options that is asked for.

    Beam asks anew with every step of a pipeline, which made a quarter of the work of a short one.

    Args:
        flags: those of a command and of Beam.
        of_beam: whether any of them is Beam's.
        processes: of this machine, which share the work where there is no runner.
    """

    def __init__(self, flags: Sequence[str], *, of_beam: bool = False, processes: int = 1) -> None:
        super().__init__(flags)
        # Other names are flags.
        self.__dict__.update(_views={}, of_beam=of_beam, processes=processes)

    def view_as(self, cls: type[_Options]) -> _Options:
        """These flags as that kind of options; all views share their values."""
        views: dict[type[PipelineOptions], Any] = self.__dict__["_views"]
        if cls not in views:
            views[cls] = super().view_as(cls)
        view: _Options = views[cls]
        return view


def open_filesystems(flags: Sequence[str]) -> None:
    """Let the filesystems of Beam take their options, such as --s3_endpoint_url, from these flags.

    A pipeline does the same when it is made, which is too late for what is looked at before; and
    some commands make none.
    """
    FileSystems.set_options(PipelineOptions(flags))
