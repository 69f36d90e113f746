"""Scripts of benchmarks/ in processes that are forked of one that has imported Beam.

A benchmark measures each case in a process of its own, and most of the time of a small one is
imports. Here processes come from `multiprocessing`'s fork server, and those of cases from them. All
else is as from a shell; but no process's peak memory is below that of what it was forked from.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["apache_beam", "pyarrow.parquet"])


def finished(script, *options):
    """Run a script to its end: exit code, what it printed, and its errors."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("out", "err")]
        process = SERVER.Process(target=_into_files, args=([str(script), *options], *paths))
        process.start()
        process.join()
        return process.exitcode, *(path.read_text() for path in paths)


def _into_files(command, *paths):
    _run(command, *(os.open(path, os.O_WRONLY | os.O_CREAT) for path in paths))


def _run(command, out, err):
    """Be the process of a script and its options, with files for what it prints. Never returns."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = (open(to, "w", closefd=False) for to in (1, 2))  # noqa: SIM115
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    code = 1
    try:
        import _measure

        _measure.subprocess = SimpleNamespace(Popen=_started)
        runpy.run_path(command[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        if not isinstance(code, int):
            print(code, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _started(command, stdout, stderr, env):
    """As `subprocess.Popen`: a case is forked, all else is started.

    A fork of a process with threads may stop forever, so theirs are started too.
    """
    python, *script = command
    case = python == sys.executable and any(each.startswith("--case=") for each in script)
    if not case or threading.active_count() > 1:
        return subprocess.Popen(command, stdout=stdout, stderr=stderr, env=env)
    if not (process := os.fork()):
        _run(script, stdout.fileno(), stderr.fileno())
    return SimpleNamespace(pid=process)
