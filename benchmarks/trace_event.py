"""Functions and modules of streamveil that one event runs through, from its file to its release.

python benchmarks/trace_event.py
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path

from _measure import asked_case, measure_case, parser, save, table

GOAL_FUNCTIONS, GOAL_MODULES = 250, 40
KEY = "0123456789" * 4
# Whatever a step of a pipeline does, FnApiRunner has done by this function.
STEPS = ("apache_beam.runners.worker.sdk_worker", "do_instruction")


def main() -> None:
    options = parser(__doc__, repeats=1)
    add = options.add_argument
    add("--names", action="store_true", help="list the functions of each module as well")
    given = options.parse_args()
    answer = measure_case("trace_event.py", {}, 1).answers[0]
    made = table(
        "One event through streamveil release",
        ["module", "functions", "in the steps of the pipeline"],
        "Python functions of streamveil that run in any thread, each counted once: by module, when "
        "a file of one event is released with a given key. Not counted are what modules do as they "
        "are imported, methods that dataclasses make, and lambdas and comprehensions, which are "
        "parts of what they stand in. The way of the event is what runs in the steps of the "
        "pipeline, from the reading of the file to the writing of the release. Its "
        f"goal is fewer than {GOAL_FUNCTIONS} functions in fewer than {GOAL_MODULES} modules.",
    )
    command, steps = answer["command"], answer["steps"]
    for name, found in (("all", None), *sorted(command.items())):
        if found is None:
            sums = [
                f"{sum(map(len, some.values()))} in {len(some)} modules"
                for some in (command, steps)
            ]
            made.add(name, *sums)
        else:
            made.add(name, len(found), len(steps.get(name, ())))
    save(given.results, "trace_event", {}, [made])
    if given.names:
        for name, found in sorted(command.items()):
            print(f"{name}: {', '.join(found)}")


class Trace:
    """Notes each function of streamveil once it runs, by module; of steps of a pipeline apart."""

    def __init__(self) -> None:
        self.command: dict[str, set[str]] = defaultdict(set)
        self.steps: dict[str, set[str]] = defaultdict(set)
        self._thread = threading.local()

    def __call__(self, frame, event, _) -> None:
        """As `sys.setprofile` calls it."""
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if (module, code.co_name) == STEPS and event in ("call", "return"):
            self._thread.steps = event == "call"
        if event != "call" or not module.startswith("streamveil."):
            return
        if code.co_name[0] == "<" or code.co_filename[0] == "<":
            return
        name = getattr(code, "co_qualname", f"{code.co_name} {code.co_firstlineno}")  # from 3.11 on
        stepping = getattr(self._thread, "steps", False)
        known = self.steps if stepping else self.command
        if name not in known[module] and not _importing(frame):
            self.command[module].add(name)
            if stepping:
                self.steps[module].add(name)

    def told(self) -> dict[str, dict[str, list[str]]]:
        """Names by module."""
        return {
            kind: {module: sorted(names) for module, names in found.items() if names}
            for kind, found in (("command", self.command), ("steps", self.steps))
        }


def _importing(frame) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False


def run() -> dict[str, dict[str, list[str]]]:
    """Release one event, and tell what ran."""
    from streamveil.pipelines.main import main as streamveil

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
    return trace.told()


if __name__ == "__main__":
    if asked_case() is None:
        main()
    else:
        print(json.dumps(run()))
