"""What every test shares: the runners, and what needs one that a user may not have."""

import gc
import importlib
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.small_pipelines import make_small_pipelines_fast

# A slow machine is no fault, and a fault shows again. CI draws all examples: `thorough`.
settings.register_profile(
    "streamveil",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.register_profile("thorough", settings.get_profile("streamveil"))
settings.load_profile("streamveil")
# Seconds after which what does not come never will: only what hangs waits so long.
PATIENCE = 600.0
# Of the examples of a property one in so many is drawn, and at least so many.
ONE_IN, AT_LEAST = 8, 3

# What tests need that a user may not have: the option that says where it is, by marker.
CLUSTERS = {
    "prism": ("--prism_location", "the prism binary"),
    "flink": ("--flink_home", "the folder that `tests/clusters/flink.sh install` filled"),
    "spark": ("--spark_home", "the folder that `tests/clusters/spark.sh install` filled"),
    "kafka": ("--kafka_home", "the folder that `tests/clusters/kafka.sh install` filled"),
    "registry": ("--registry_home", "the folder that `tests/clusters/registry.sh install` filled"),
    "pubsub": ("--pubsub_server", "the binary that `tests/clusters/pubsub.sh install` built"),
    "prometheus": ("--prometheus_home", "the folder of `tests/clusters/prometheus.sh install`"),
    "s3": ("--s3_home", "the folder that `tests/clusters/s3.sh install` filled"),
    "gcs": ("--gcs_home", "the folder that `tests/clusters/gcs.sh install` filled"),
    "azure": ("--azure_home", "the folder that `tests/clusters/azure.sh install` filled"),
    "hdfs": ("--hdfs_home", "the folder that `tests/clusters/hdfs.sh install` filled"),
    "postgres": ("--postgres_home", "the folder that `tests/clusters/postgres.sh install` filled"),
}
# Where the tests of the mathematics are, which know no Beam, and those of the readers.
WITHOUT_BEAM = {"mechanisms"}
QUICK_ROOMS = {"mechanisms", "io"}
# Of these rooms, tests of long streams and of every file operation.
LONG = {
    "test_adaptive_streams",
    "test_broken_sums",
    "test_cycle",
    "test_dynamic_stream",
    "test_expected",
    "test_life_stream",
    "test_metamorphic",
    "test_present_stream",
    "test_replanning",
    "test_revisions",
    "test_snapshot",
    "test_usual",
}
RUNNERS = {"runner", "usual_runner"}
# Whole audits: minutes of work, of which tests/audits has a quick sample.
AUDITS = Path("pipelines", "audit")
gc.disable()  # nearly all that is made until all tests are collected stays
HERE = Path(__file__).parent
NO_RUNNER, FN_API, BUNDLE_BASED, PRISM = "no_runner", "fn_api", "bundle_based", "prism"


def pytest_addoption(parser):
    for option, what in CLUSTERS.values():
        parser.addoption(option, help=what)


def pytest_generate_tests(metafunc):
    """Run on Prism as well, where it is given, what runs on any runner or on the usual one."""
    given = metafunc.config.getoption("--prism_location")
    prism = [pytest.param(PRISM, marks=pytest.mark.prism)] if given else []
    if "runner" in metafunc.fixturenames:
        metafunc.parametrize("runner", [FN_API, BUNDLE_BASED, *prism], indirect=True)
    elif "usual_runner" in metafunc.fixturenames:
        metafunc.parametrize("usual_runner", [FN_API, *prism], indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """The tests of one file run in one process: another takes longer to start than they do."""
    asked = any(str(given).startswith("-n") for given in config.invocation_params.args)
    if not asked and len(config.args) == 1 and ".py" in config.args[0]:
        config.option.numprocesses = 0


def room_of(path):
    """Folder of tests that a file is in."""
    return path.relative_to(HERE).parts[0]


def pytest_ignore_collect(collection_path, config):
    """Import no module of which no test would run: that takes longer than many a test."""
    if config.option.markexpr == "quick" and HERE in collection_path.parents:
        return room_of(collection_path) not in {*QUICK_ROOMS, "conftest.py"} or None
    if config.option.markexpr == "not slow" and collection_path == HERE / AUDITS:
        return True
    if config.option.markexpr == "not slow" and collection_path == HERE / "clusters":
        asked = any("clusters" in argument for argument in config.args)
        servers = any(config.getoption(option) for option, _ in CLUSTERS.values())
        return not (asked or servers) or None
    return None


def is_quick(item):
    """Whether a test runs no pipeline, draws no examples and takes no samples for an audit."""
    room = room_of(item.path)
    takes_long = item.get_closest_marker("slow") or RUNNERS.intersection(item.fixturenames)
    samples = draws(item) or "audit" in item.nodeid
    return room in QUICK_ROOMS and item.path.stem not in LONG and not takes_long and not samples


def draws(item):
    """Whether a test draws examples of a property."""
    return getattr(item.obj, "is_hypothesis_test", False)


def draw_fewer(test):
    """Let a test draw some of its examples, the first ones."""
    given = test._hypothesis_internal_use_settings
    some = min(given.max_examples, max(given.max_examples // ONE_IN, AT_LEAST))
    test._hypothesis_internal_use_settings = settings(given, max_examples=some)


def some_on_prism(items):
    """Tests that Prism need not run: of the cases of a slow one it takes the first and the last.

    They differ by mechanism or cut, and run on the local runners, all of them.
    """

    def is_on_prism(item):
        runner = getattr(item, "callspec", None) and RUNNERS & item.callspec.params.keys()
        return runner and item.callspec.params[runner.pop()] == PRISM

    cases = cases_by_test(filter(is_on_prism, items))
    slow = (some for some in cases if some[0].get_closest_marker("slow"))
    return {item for some in slow for item in some[1:-1]}


def mark_cases_in_between(items):
    """Mark as slow all cases of a test that is marked `many` but the first and the last one."""

    def is_one_of_many(item):
        return item.get_closest_marker("many") and not item.get_closest_marker("slow")

    for some in cases_by_test(filter(is_one_of_many, items)):
        for item in some[1:-1]:
            item.add_marker(pytest.mark.slow)


def cases_by_test(items):
    """The cases of each test, in their order."""
    cases = defaultdict(list)
    for item in items:
        cases[item.path, item.cls, item.originalname].append(item)
    return cases.values()


def pytest_collection_modifyitems(config, items):
    """Mark what is quick; skip what needs something that was not given, and say how to get it."""
    left_out = some_on_prism(items)
    items[:] = [item for item in items if item not in left_out]
    if not config.option.keyword:  # who names a case wants that one
        mark_cases_in_between(items)
    for item in items:
        if item.path.parent == HERE / AUDITS:
            item.add_marker(pytest.mark.slow)
        if is_quick(item):
            item.add_marker(pytest.mark.quick)
        if draws(item):
            item.add_marker(pytest.mark.property)
    if not config.getoption("--hypothesis-profile"):
        for test in {item.obj for item in items if draws(item)}:
            draw_fewer(test)
    missing = {
        marker: f"needs {option}=PLACE, {what}: run tests/clusters/{marker}.sh install PLACE, "
        "which needs Java, Go, Node or Debian"
        for marker, (option, what) in CLUSTERS.items()
        if not config.getoption(option)
    }
    for item in items:
        for marker in missing.keys() & {mark.name for mark in item.iter_markers()}:
            item.add_marker(pytest.mark.skip(reason=missing[marker]))


def pytest_collection_finish(session):
    """What is there by now stays until the end: nobody need look whether it is garbage."""
    if any(room_of(item.path) not in WITHOUT_BEAM for item in session.items):
        make_small_pipelines_fast()
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def runner(request):
    """Name of a runner: a test that takes this runs on each of them."""
    return request.param


@pytest.fixture(scope="session")
def usual_runner(request):
    """Name of the runner of a test to which one is as good as another."""
    return getattr(request, "param", FN_API)


@pytest.fixture(scope="session")
def flags_of(request):
    """The flags that choose a runner, by its name."""
    location = request.config.getoption("--prism_location")
    flags = {
        NO_RUNNER: [],
        FN_API: ["--runner=FnApiRunner"],
        BUNDLE_BASED: ["--runner=BundleBasedDirectRunner"],
        PRISM: ["--runner=PrismRunner", f"--prism_location={location}"],
    }
    return flags.__getitem__


@pytest.fixture(scope="session")
def pipeline_on(flags_of):
    """An empty pipeline on a runner, by its name, with flags of Beam."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    def pipeline_on(runner, *flags):
        return beam.Pipeline(options=PipelineOptions([*flags_of(runner), *flags]))

    return pipeline_on


@pytest.fixture(scope="session")
def new_pipeline(pipeline_on, usual_runner):
    """An empty pipeline on the usual runner, with flags of Beam."""
    return partial(pipeline_on, usual_runner)


@pytest.fixture(scope="session")
def until():
    """Wait for something that another thread or process does, however busy the machine is."""

    def until(done):
        end = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.02)

    return until


@pytest.fixture(scope="session")
def script():
    """A script of benchmarks/ as a module, by its name."""
    sys.path.insert(0, str(HERE.parent / "benchmarks"))  # as if it were run
    return importlib.import_module


@pytest.fixture(scope="session")
def flink_drill(script):
    return script("flink_drill")


@pytest.fixture(scope="session")
def live_drill(script):
    return script("live_drill")


@pytest.fixture(scope="session")
def flink_soak(script):
    return script("flink_soak")
