"""Files of queries: what is no YAML is refused with its line, all else with query and key."""

import json

import pytest

from streamveil.io import queries_of, read_queries
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.queries.statistics import Mean, Quantiles

CONTRACT = """\
slot: 1h
queries:
  - {name: places, by: dest, keys: [ORD, ATL], every: 1h, weight: 2}
  - {name: delay, by: carrier, keys: [AA, UA], every: 1d, statistic: mean, of: dep_delay,
     bounds: [-30, 180]}
  - {name: late, every: 1w, statistic: quantiles, of: dep_delay,
     edges: [-30, 0, 15, 60, 180], quantiles: [0.5, 0.95]}
"""


@pytest.fixture
def read(tmp_path):
    """Read a file of this text."""

    def read(text):
        path = tmp_path / "queries.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_queries(str(path))

    return read


def test_a_file_is_read(read):
    query_set = read(CONTRACT)
    assert [(one.name, one.slots, one.weight) for one in query_set] == [
        ("places", 1, 2),
        ("delay", 24, 1),
        ("late", 168, 1),
    ]
    assert query_set.queries[1].statistic == Mean("dep_delay", -30, 180)
    assert query_set.queries[2].statistic == Quantiles(
        "dep_delay", (-30, 0, 15, 60, 180), (0.5, 0.95)
    )


def test_json_is_yaml(read):
    text = '{"slot": "1h", "queries": [{"name": "all"}]}'
    assert [one.name for one in read(text)] == ["all"]


def test_a_character_may_be_written_as_json_does(read):
    asked = {"name": "all", "by": "a", "keys": ["🚲", "é"]}
    text = json.dumps({"slot": "1h", "queries": [asked]})
    assert "ud83d" in text
    assert read(text).queries[0].domain.labels == ("🚲", "é")


def test_a_domain_may_be_in_a_file(read, tmp_path):
    (tmp_path / "places.txt").write_text("ORD\nATL\n")
    found = read(f"slot: 1h\nqueries: [{{name: q, by: p, keys: {tmp_path}/places.txt}}]")
    assert found.queries[0].domain.labels == ("ORD", "ATL")


BAD = {
    "key twice": (CONTRACT.replace("weight: 2", "every: 1d"), "line 3, column 59: the key 'every'"),
    "top key twice": (CONTRACT + "slot: 1d\n", "line 8, column 1: the key 'slot'"),
    "unclosed": ("slot: 1h\nqueries: [", "line 2, column 11"),
    "tab": ("slot: 1h\n\tqueries: []", "line 2, column 1"),
    "tag": ("slot: !!python/name:os.system 1h", "line 1, column 7"),
    "bytes": (b"slot: \xff\xfe", "save it as text in UTF-8"),
    "another encoding": ("slot: 1h".encode("utf-16-le"), "save it as text in UTF-8"),
    "no date": ("slot: 2001-02-30", "is not YAML: day is out of range"),
    "list": ("- 1", "the file of queries is"),
    "empty": ("", "it is empty: write slot and queries"),
    "unknown key": (CONTRACT.replace("weight", "wieght"), "query 'places': the key 'wieght'"),
    "name twice": (CONTRACT.replace("delay,", "places,", 1), "two queries are called 'places'"),
    "bounds": (CONTRACT.replace("[-30, 180]", "[300, 180]"), "query 'delay': bounds are [300"),
    "no multiple": (CONTRACT.replace("every: 1d", "every: 90m"), "not a multiple of slot 1h"),
    "octal": (CONTRACT.replace("ORD", "010"), "010 is 8 in YAML: write it in quotes"),
    "clock time": (CONTRACT.replace("ORD", "12:30"), "12:30 is 750 in YAML: write it in quotes"),
    "no": (CONTRACT.replace("ORD", "no"), "no is a boolean in YAML: write it in quotes"),
    "half a character": (CONTRACT.replace("ORD", r'"\ud83d"'), "has half of a character"),
    "anchor": ("slot: &a [*a]\nqueries: [{name: a}]", "slot is [[...]]"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_reported_in_one_line(read, tmp_path, text, words):
    with pytest.raises(ConfigurationError) as refused:
        read(text)
    message = str(refused.value)
    assert words in message
    assert message.startswith(str(tmp_path / "queries.yaml"))
    assert "\n" not in message


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.yaml does not exist"):
        read_queries(str(tmp_path / "none.yaml"))


def test_a_mapping_is_read_as_a_file_is():
    with pytest.raises(ConfigurationError, match="the queries: slot is missing"):
        queries_of({"queries": []})
