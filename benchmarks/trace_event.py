"""Functions and modules of streamveil that one event runs through, from its file to its release.

python benchmarks/trace_event.py
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path

from _measure import begin, measure_case, parser, save, table

GOAL, GOAL_OF_MECHANISM = (110, 20), (116, 17)
"""Functions and modules, at most: of the way of the event, and of the mechanism."""
KEY = "0123456789" * 4
# What takes events to releases, here and in the threads that it starts.
STEPS = {
    ("streamveil.pipelines.runners.local_run", "run_plan"),
    ("streamveil.engine.side_by_side", "_counted"),
}
# The way of an event ends with its release: what writes that and what logs is behind it.
BEHIND = ("streamveil.io.result_files", "streamveil.io.tables", "streamveil.io.releases", "logging")


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--mechanism", help="of the release (default: that of the command)")
    add("--names", action="store_true", help="list the functions of each module as well")
    given = options.parse_args()
    answer = measure_case("trace_event.py", {"mechanism": given.mechanism}, 1).answers[0]
    command, way, mechanism = (answer[kind] for kind in ("command", "way", "mechanism"))
    made = table(
        "One event through streamveil release",
        ["module", "functions", "on the way of the event", "of the mechanism"],
        "Python functions of streamveil that run in any thread, each counted once: by module, when "
        "a file of one event is released without a runner, with a given key. Not counted are what "
        "modules do as they are imported, methods that dataclasses make, and lambdas and "
        "comprehensions, which are parts of what they stand in. The way of the event is what runs "
        "from the reading of the file to the release, but for the mechanism's own package: what "
        "that does with a slot, however many events there are, and as it is made and saved, is a "
        "column of its own. "
        "Goals: at most {} functions in {} modules, and of the mechanism {} in {}. ".format(
            *GOAL, *GOAL_OF_MECHANISM
        )
        + "On FnApiRunner it was 240 in 45.",
    )
    sums = [f"{sum(map(len, some.values()))} in {len(some)}" for some in (command, way, mechanism)]
    made.add("all", *sums)
    for name, found in sorted(command.items()):
        made.add(name, len(found), len(way.get(name, ())), len(mechanism.get(name, ())))
    save(given.results, "trace_event", {"mechanism": given.mechanism}, [made])
    if given.names:
        for name, found in sorted(command.items()):
            print(f"{name}: {', '.join(found)}")


class Trace:
    """Notes each function of streamveil once it runs, by module; of what is in `STEPS` apart."""

    def __init__(self) -> None:
        self.command: dict[str, set[str]] = defaultdict(set)
        self.steps: dict[str, set[str]] = defaultdict(set)
        self._thread = threading.local()

    def __call__(self, frame, event, _) -> None:
        """As `sys.setprofile` calls it."""
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if (module, code.co_name) in STEPS and event in ("call", "return"):
            self._thread.steps = event == "call"
        if event != "call" or not module.startswith("streamveil."):
            return
        if code.co_name[0] == "<" or code.co_filename[0] == "<":
            return
        name = getattr(code, "co_qualname", f"{code.co_name} {code.co_firstlineno}")  # from 3.11 on
        stepping = getattr(self._thread, "steps", False)
        known = self.steps if stepping else self.command
        if name in known[module]:
            return
        above = {one.f_globals["__name__"] for one in _stack(frame)}
        if any(one.f_code.co_name == "<module>" for one in _stack(frame.f_back)):
            return  # it is imported
        self.command[module].add(name)
        if stepping and not above.intersection(BEHIND):
            self.steps[module].add(name)

    def names(self, package: str) -> dict[str, dict[str, list[str]]]:
        """Names by module; those of the mechanism's package apart."""
        own = {name for name in self.steps if name.startswith(f"{package}.")}
        return {
            kind: {module: sorted(found[module]) for module in modules if found[module]}
            for kind, found, modules in (
                ("command", self.command, self.command.keys()),
                ("way", self.steps, self.steps.keys() - own),
                ("mechanism", self.steps, own),
            )
        }


def _stack(frame):
    """A frame and those above it, but for this script's own."""
    while frame is not None and frame.f_globals["__name__"] != "__main__":
        yield frame
        frame = frame.f_back


def run(mechanism: str | None) -> dict[str, dict[str, list[str]]]:
    """Release one event, and tell what ran."""
    from streamveil.mechanisms.registry import DEFAULT, MECHANISMS
    from streamveil.pipelines.main import main as streamveil

    room, _, _ = MECHANISMS[(mechanism or DEFAULT).partition(":")[0]].place.partition(".")

    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "events.csv").write_text("user,place,time\nann,cafe,2024-05-01T10:00:00Z\n")
        (at / "requirements.csv").write_text("user,window,epsilon\nann,3,1.0\nbob,2,0.5\n")
        (at / "key").touch(0o600)
        (at / "key").write_text(KEY)
        arguments = [
            *("release", f"--input={at}/events.csv", f"--output={at}/releases.csv"),
            *(f"--requirements={at}/requirements.csv", f"--noise_key=file:{at}/key"),
            *("--user_column=user", "--value_column=place", "--time_column=time", "--slot=1d"),
            *("--domain=cafe,park", "--start=2024-05-01", "--end=2024-05-02"),
        ]
        arguments += [f"--mechanism={mechanism}"] if mechanism else []
        trace = Trace()
        threading.setprofile(trace)
        sys.setprofile(trace)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                status = streamveil(arguments)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    if status:
        raise SystemExit(f"streamveil release ended with {status}")
    return trace.names(f"streamveil.mechanisms.{room}")


if __name__ == "__main__":
    begin(main, run)
