"""Every name that `import streamveil as sv` offers has an example, and the examples work."""

import doctest
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil import io, mechanisms, transforms

sys.path.insert(0, str(Path(__file__).parent.parent / ".ci"))
try:
    from public_names import PACKAGES, docstring_of, offered
finally:
    sys.path.pop(0)

PUBLIC = {name: docstring_of(home, name)[0] for name, home in offered(PACKAGES[0])}
EXAMPLES = {
    (package, name): docstring_of(home, name)[0]
    for package in PACKAGES
    for name, home in offered(package)
    if ">>> " in docstring_of(home, name)[0]
}
RUNNER = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)


@pytest.mark.parametrize("name", PUBLIC)
def test_each_name_has_an_example(name):
    assert ">>> " in PUBLIC[name]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_name_of_a_package_is_documented(package):
    assert [name for name, home in offered(package) if not docstring_of(home, name)[0]] == []


@pytest.mark.parametrize(("package", "name"), EXAMPLES)
def test_the_examples_work(package, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = {".": sv, "mechanisms": mechanisms, "transforms": transforms, "io": io}[package]
    value = getattr(module, name)
    known = dict(vars(sys.modules[getattr(value, "__module__", module.__name__)]))
    test = doctest.DocTestParser().get_doctest(
        EXAMPLES[package, name], {**known, "sv": sv, "pa": pa, name: value}, name, None, None
    )
    assert RUNNER.run(test, clear_globs=True).failed == 0
