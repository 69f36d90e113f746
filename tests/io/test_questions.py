"""Files of questions: what is no YAML is refused with its line, all else with question and key."""

import json

import pytest

from streamveil.io import questions_of, read_questions
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.portfolio.statistics import Mean, Quantiles

CONTRACT = """\
base_slot: 1h
questions:
  - {name: places, value: dest, domain: [ORD, ATL], slot: 1h, weight: 2}
  - {name: delay, value: carrier, domain: [AA, UA], slot: 1d, statistic: mean, column: dep_delay,
     lower: -30, upper: 180}
  - {name: late, slot: 1w, statistic: quantiles, column: dep_delay,
     edges: [-30, 0, 15, 60, 180], quantiles: [0.5, 0.95]}
"""


@pytest.fixture
def read(tmp_path):
    """Read a file of this text."""

    def read(text):
        path = tmp_path / "questions.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_questions(str(path))

    return read


def test_a_file_is_read(read):
    portfolio = read(CONTRACT)
    assert [(one.name, one.slots, one.weight) for one in portfolio] == [
        ("places", 1, 2),
        ("delay", 24, 1),
        ("late", 168, 1),
    ]
    assert portfolio.questions[1].statistic == Mean("dep_delay", -30, 180)
    assert portfolio.questions[2].statistic == Quantiles(
        "dep_delay", (-30, 0, 15, 60, 180), (0.5, 0.95)
    )


def test_json_is_yaml(read):
    text = '{"base_slot": "1h", "questions": [{"name": "all"}]}'
    assert [one.name for one in read(text)] == ["all"]


def test_a_character_may_be_written_as_json_does(read):
    asked = {"name": "all", "value": "a", "domain": ["🚲", "é"]}
    text = json.dumps({"base_slot": "1h", "questions": [asked]})
    assert "ud83d" in text
    assert read(text).questions[0].domain.labels == ("🚲", "é")


def test_a_domain_may_be_in_a_file(read, tmp_path):
    (tmp_path / "places.txt").write_text("ORD\nATL\n")
    found = read(
        f"base_slot: 1h\nquestions: [{{name: q, value: p, domain: {tmp_path}/places.txt}}]"
    )
    assert found.questions[0].domain.labels == ("ORD", "ATL")


BAD = {
    "key twice": (CONTRACT.replace("weight: 2", "slot: 1d"), "line 3, column 63: the key 'slot'"),
    "top key twice": (CONTRACT + "base_slot: 1d\n", "line 8, column 1: the key 'base_slot'"),
    "unclosed": ("base_slot: 1h\nquestions: [", "line 2, column 13"),
    "tab": ("base_slot: 1h\n\tquestions: []", "line 2, column 1"),
    "tag": ("base_slot: !!python/name:os.system 1h", "line 1, column 12"),
    "bytes": (b"base_slot: \xff\xfe", "save it as text in UTF-8"),
    "another encoding": ("base_slot: 1h".encode("utf-16-le"), "save it as text in UTF-8"),
    "no date": ("base_slot: 2001-02-30", "is not YAML: day is out of range"),
    "list": ("- 1", "the file of questions is"),
    "empty": ("", "it is empty: write base_slot and questions"),
    "unknown key": (CONTRACT.replace("weight", "wieght"), "question 'places': the key 'wieght'"),
    "name twice": (CONTRACT.replace("delay,", "places,", 1), "two questions are called 'places'"),
    "bounds": (CONTRACT.replace("-30, upper", "300, upper"), "question 'delay': lower is 300"),
    "no multiple": (CONTRACT.replace("slot: 1d", "slot: 90m"), "not a multiple of base_slot 1h"),
    "octal": (CONTRACT.replace("ORD", "010"), "010 is 8 in YAML: write it in quotes"),
    "clock time": (CONTRACT.replace("ORD", "12:30"), "12:30 is 750 in YAML: write it in quotes"),
    "no": (CONTRACT.replace("ORD", "no"), "no is a boolean in YAML: write it in quotes"),
    "half a character": (CONTRACT.replace("ORD", r'"\ud83d"'), "has half of a character"),
    "anchor": ("base_slot: &a [*a]", "base_slot"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_told_in_one_line(read, tmp_path, text, words):
    with pytest.raises(ConfigurationError) as refused:
        read(text)
    told = str(refused.value)
    assert words in told
    assert told.startswith(str(tmp_path / "questions.yaml"))
    assert "\n" not in told


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.yaml does not exist"):
        read_questions(str(tmp_path / "none.yaml"))


def test_a_mapping_is_read_as_a_file_is():
    with pytest.raises(ConfigurationError, match="the questions: base_slot is missing"):
        questions_of({"questions": []})
