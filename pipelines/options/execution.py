"""How a command runs: here, in this process, or on a runner of Beam, with its flags."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from streamveil.pipelines.options.flags import is_of_filesystem

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions


@dataclass(frozen=True)
class Execution:
    """Flags of Beam that a command was given, and what follows from them."""

    flags: Sequence[str] = ()
    """With their values, each of which Beam knows."""
    arguments: Sequence[str] = ()
    """All that the command was given that a service shows with the job."""
    line: str = ""
    """What to run to do the same again."""
    began: float = field(default_factory=time.monotonic)
    """When the command began, by `time.monotonic`."""

    @classmethod
    def of(cls, flags: Sequence[str], arguments: Sequence[str] = (), **more: Any) -> Execution:
        """Take the flags of a command that are not its own, and let filesystems take theirs.

        Args:
            flags: those.
            arguments: all that a service shows; without them the flags alone.
            more: other fields.
        """
        if flags:  # else Beam, which takes a second to import, may not be needed
            from streamveil.io.remote_filesystems import take_options

            take_options(flags)
        return cls(tuple(flags), tuple(arguments), **more)

    @property
    def of_runner(self) -> list[str]:
        """The flags that do not just say how files are reached: they ask for a runner."""
        return [
            flag
            for before, flag in pairwise(["", *self.flags])
            if not (is_of_filesystem(flag) or (is_of_filesystem(before) and flag[:1] != "-"))
        ]

    @property
    def here(self) -> bool:
        """Whether the command runs in this process, without a runner."""
        return not self.of_runner

    @cached_property
    def options(self) -> PipelineOptions:
        """The flags as Beam reads them."""
        from apache_beam.options.pipeline_options import PipelineOptions

        import streamveil.pipelines.options.beam_flags  # noqa: F401 - declares what is shown

        return PipelineOptions(list(self.arguments or self.flags))
