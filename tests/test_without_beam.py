"""What runs without Beam, a device and the mathematics; and that the rest says what it lacks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import streamveil.io
import streamveil.mechanisms
import streamveil.mechanisms.per_record
import streamveil.transforms

PACKAGES = (
    streamveil.io,
    streamveil.mechanisms,
    streamveil.mechanisms.per_record,
    streamveil.transforms,
)

BLOCKED = """
import json, sys

BLOCKED = ["apache_beam", "grpc", "pyarrow", "tqdm"]

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
DEVICE = """
import numpy
numpys = set(sys.modules)
from streamveil.mechanisms.local.client.device import Device
loaded = [name for name in sys.modules if name not in numpys]

from streamveil.mechanisms import Requirement
from streamveil.mechanisms.local.messages import Assignment, decode_report, encode_assignment
device = Device(bytes(32), Requirement(3, 1.0), symbols=5, stream="rides")
asked = encode_assignment(Assignment("rides", 7, 1, bytes(16), 1 << 39, "grr", 5))
report = device.report(asked, slot=7, value=2)
again = Device.decode(device.encode(), bytes(32))
print(json.dumps([loaded, decode_report(report).slot, again.remaining(7) / (1 << 40)]))
"""
MATHEMATICS = """
import streamveil as sv
from streamveil import mechanisms

names = [name for name in mechanisms.__all__ if getattr(mechanisms, name) is None]
counts = [[[30, 40]]] * 12
run = sv.simulate("adaptive", counts, [sv.Requirement(3, 1.0)], [100], bytes(32))
print(json.dumps([names, run.released.shape, float(run.spent.max()) <= 1.0]))
"""
ENGINE = """
import importlib, pkgutil

BLOCKED.remove("pyarrow")
import streamveil.engine as engine

names = [found.name for found in pkgutil.walk_packages(engine.__path__, "streamveil.engine.")]
for name in names:
    importlib.import_module(name)
print(json.dumps(names))
"""
READERS = """
BLOCKED.remove("pyarrow")
from streamveil.io import inbox, outbox
from streamveil.io.events import lenient_outputs
from streamveil.io.message_batches import MessageParser

with open(sys.argv[1], "w") as file:
    file.write("user\\nu1\\nu2\\n")
parser = MessageParser("queue", ("user",), False)
outputs = [*lenient_outputs(sys.argv[1], ("user",)), *parser.parse([b'{"user":"u3"}'])]
print(json.dumps([row["user"] for output in outputs for row in output.value.to_pylist()]))
"""
LACKING = """
import importlib

def asked(package, name):
    try:
        return str(getattr(importlib.import_module(package), name))
    except ImportError as error:
        return str(error)

from streamveil.pipelines.main import program

def code_of(*arguments):
    sys.argv[1:] = arguments
    try:
        return program()
    except SystemExit as stop:
        return stop.code

print(json.dumps([
    asked("streamveil.transforms", "PrivateQueries"),
    asked("streamveil.io", "ReadEvents"),
    asked("streamveil", "WriteReleases"),
    asked("streamveil", "release"),
    code_of("release", "--help"),
    code_of("demo"),
    code_of("relaese"),
    [finder for finder in sys.meta_path if type(finder).__module__.startswith("streamveil")],
]))
"""


def without_beam(script, *arguments):
    """What a script printed last as JSON, in a process that cannot import Beam, and to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_a_device_loads_few_modules_and_nothing_that_it_does_not_need():
    (loaded, slot, remaining), said = without_beam(DEVICE)
    assert (slot, remaining, said) == (7, 0.5, "")
    ours = [name for name in loaded if name.partition(".")[0] == "streamveil"]
    others = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert len(ours) <= 30
    # What draws noise and saves state is imported when it is first needed.
    assert {name for name in others if not name.startswith("_")} <= {"streamveil", "numpy"}


def test_the_mathematics_runs():
    (missing, shape, kept), said = without_beam(MATHEMATICS)
    assert (missing, shape, kept, said) == ([], [12, 2], True, "")


def test_the_engine_is_imported():
    names, said = without_beam(ENGINE)
    assert "streamveil.engine.stream.drivers" in names
    assert said == ""


def test_files_and_messages_are_read(tmp_path):
    users, said = without_beam(READERS, str(tmp_path / "events.csv"))
    assert (users, said) == (["u1", "u2", "u3"], "")


def test_what_needs_beam_says_which_extra_to_install():
    (*errors, help_code, demo_code, other_code, finders), said = without_beam(LACKING)
    names = ("PrivateQueries", "ReadEvents", "WriteReleases", "release")
    for text, name in zip(errors, names, strict=True):
        assert text.startswith("streamveil.")
        assert f"{name} needs Apache Beam" in text
        assert "python -m pip install '.[beam]'" in text
    assert (help_code, demo_code, other_code, finders) == (0, 2, 2, [])
    demo, other = said.splitlines()
    assert demo.startswith("streamveil demo: this needs Apache Beam")
    assert other == "streamveil: unknown command 'relaese': did you mean release?"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_lazy_name_is_there_and_hides_no_module(package):
    assert dir(package) == sorted(package.__all__)
    assert [name for name in package.__all__ if getattr(package, name) is None] == []
    folder = Path(package.__file__).parent
    modules = {path.stem for path in folder.iterdir() if path.suffix in ("", ".py")}
    assert not modules & set(package.__all__)
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'no'"):
        _ = package.no
