"""What all benchmarks share: fresh processes, medians of CPU seconds, tables and JSON.

CPU seconds are user plus system time of the child process with all its threads: unlike wall time
they do not depend on what else the machine does, as long as it does not thrash its caches.
The parent imports nothing heavy: a child's peak memory is never below its parent's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGES = ("streamveil", "apache-beam", "numpy", "pyarrow", "cryptography", "opendp")


@dataclass(frozen=True)
class Measured:
    """Medians over some runs of one command, each in a process of its own."""

    cpu: float
    """User and system seconds."""
    wall: float
    """Seconds by the clock."""
    peak: float
    """Peak resident memory in MB."""
    answers: list[dict[str, Any]]
    """The JSON that each run printed last, if any."""

    def median(self, name: str) -> float:
        """Median of one number of the answers."""
        return statistics.median(answer[name] for answer in self.answers)


def measure(command: Sequence[str], repeats: int, outputs: Sequence[Path] = ()) -> Measured:
    """Run a command some times; raises RuntimeError with its output when it fails.

    `outputs` are files that it writes; they are deleted after each run.
    """
    runs = []
    for _ in range(repeats):
        runs.append(_run_once(command))
        for path in outputs:
            path.unlink()
    cpu, wall, peak = (statistics.median(run[i] for run in runs) for i in range(3))
    return Measured(cpu, wall, peak, [run[3] for run in runs])


def measure_case(
    script: str, case: dict[str, Any], repeats: int, python: str = sys.executable
) -> Measured:
    """Run `script --case=JSON`, which prints its answer as JSON in its last line."""
    path = script if os.path.isabs(script) else str(HERE / script)
    return measure([python, path, f"--case={json.dumps(case)}"], repeats)


def _run_once(command: Sequence[str]) -> tuple[float, float, float, dict[str, Any]]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = _clock()
        child = subprocess.Popen(command, stdout=out, stderr=err, env=_environment())
        _, status, usage = os.wait4(child.pid, 0)
        wall = _clock() - before
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        printed = out.read().decode(errors="replace").strip()
        if child.returncode:
            err.seek(0)
            errors = err.read().decode(errors="replace")[-4000:]
            raise RuntimeError(f"{shlex.join(command)} failed:\n{printed[-2000:]}\n{errors}")
    unit = 1e6 if sys.platform == "darwin" else 1e3
    last = printed.splitlines()[-1] if printed else ""
    answer = json.loads(last) if last.startswith("{") else {}
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / unit, answer


def _environment() -> dict[str, str]:
    """Where modules are compiled once, as where they are installed, not by every process anew."""
    return {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}


def _clock() -> float:
    return os.times().elapsed


def cpu_seconds(process: int) -> float:
    """User and system seconds of a process so far, from /proc; raises FileNotFoundError."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def begin(main: Callable[[], None], run: Callable[..., dict[str, Any]]) -> None:
    """Run the benchmark; or its one case, in a process that `measure_case` started."""
    case = asked_case()
    if case is None:
        main()
    else:
        print(json.dumps(run(**case)))


def asked_case() -> dict[str, Any] | None:
    """The case that the parent asked this process for, if it did."""
    for argument in sys.argv[1:]:
        if argument.startswith("--case="):
            case: dict[str, Any] = json.loads(argument.removeprefix("--case="))
            return case
    return None


def parser(description: str, repeats: int = 3) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    options = argparse.ArgumentParser(
        description=description.strip().splitlines()[0], allow_abbrev=False
    )
    options.add_argument(
        "--repeats", type=int, default=repeats, help="runs of each case (default %(default)s)"
    )
    options.add_argument(
        "--folder", help="where files of data go, kept afterwards (default: a temporary folder)"
    )
    options.add_argument(
        "--results",
        default=str(HERE / "results"),
        help="folder of the JSON results (default: beside this script)",
    )
    return options


def add_pipeline_dp(options: argparse.ArgumentParser) -> None:
    """Add where PipelineDP is: in this environment, or in one of its own."""
    options.add_argument(
        "--pipeline_dp_python",
        default=sys.executable,
        metavar="PATH",
        help="the Python of an environment with pipeline-dp (default: this one)",
    )


@contextlib.contextmanager
def data_folder(given: str | None) -> Iterator[Path]:
    """The folder that the user gave, or one that goes away."""
    if given:
        Path(given).mkdir(parents=True, exist_ok=True)
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="streamveil-benchmark-") as folder:
        yield Path(folder)


@dataclass
class Table:
    """One table of results: numbers as measured, with what to know about them."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""

    def add(self, *cells: Any) -> None:
        """Add a row and show it."""
        self.rows.append(list(cells))
        print("  " + "  ".join(shown(cell) for cell in cells), flush=True)

    def start(self) -> Table:
        """Show what is measured now."""
        print(f"\n{self.title}\n  " + "  ".join(self.columns), flush=True)
        return self


def table(title: str, columns: Sequence[str], note: str = "") -> Table:
    """Begin a table."""
    return Table(title, list(columns), [], note).start()


def shown(cell: Any) -> str:
    """A cell as people read it: three digits that count, thousands apart."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        if cell == 0 or abs(cell) >= 100:
            return f"{cell:,.0f}"
        digits = 2 if abs(cell) >= 1 else 3
        return f"{cell:,.{digits}f}" if abs(cell) < 10 else f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def machine() -> dict[str, Any]:
    """What the numbers depend on; nothing that names the machine or its folders."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def save(folder: str, name: str, options: dict[str, Any], tables: Sequence[Table]) -> None:
    """Append this run to the results of a benchmark; the last run is the one reported."""
    path = Path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = json.loads(path.read_text()) if path.exists() else []
    runs.append(
        {
            "machine": machine(),
            "options": options,
            "tables": [vars(one) for one in tables],
        }
    )
    path.write_text(json.dumps(runs, indent=1) + "\n")
    print(f"\nappended to {path.name}")
