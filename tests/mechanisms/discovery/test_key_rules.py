"""Which texts are keys."""

import unicodedata

import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.core.identity import encoded
from streamveil.mechanisms.discovery import key_rules
from streamveil.mechanisms.discovery.key_rules import KeyRules


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("  tea ", "tea"),
        ("Tea", "tea"),
        ("cafe\u0301", "caf\u00e9"),
        ("STRASSE", "strasse"),
        ("stra\u00dfe", "strasse"),
        ("", None),
        (" \t ", None),
        ("x" * 9, None),
        ("x" * 8, "x" * 8),
    ],
)
def test_texts_become_keys(text, key):
    rules = KeyRules(fold_case=True, longest=8)
    assert rules.key(text) == key
    assert key is None or rules.key(key) == key


def test_case_is_kept_unless_it_is_folded():
    assert KeyRules().key(" Tea") == "Tea"


def test_spellings_of_a_boolean_are_one_key_and_those_of_a_number_are_not():
    assert {KeyRules().key(one) for one in ("true", " TRUE", "True")} == {"true"}
    assert KeyRules(deny=["TRUE", "true"], allow=["False"]).deny == ("true",)
    assert [KeyRules().key(one) for one in ("1", "01", "1.0")] == ["1", "01", "1.0"]


def test_a_text_that_is_far_too_long_is_not_normalised(monkeypatch):
    monkeypatch.setattr(key_rules, "unicodedata", None)  # it takes the square of the length
    assert KeyRules().key("a" + "\u0316\u0301" * 2_000_000) is None


@pytest.mark.parametrize("fold_case", [False, True])
def test_no_text_is_too_long_whose_key_is_not(fold_case):
    rules = KeyRules(fold_case=fold_case, longest=1)
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    longer = [letter for letter in letters if len(unicodedata.normalize("NFD", letter)) > 1]
    assert len(longer) > 12_000
    for letter in longer:
        found = unicodedata.normalize("NFC", letter).strip()
        if len(found) == 1 and not (fold_case and len(found.casefold()) > 1):
            assert rules.key(unicodedata.normalize("NFD", letter)) is not None


def test_lists_are_normalised():
    rules = KeyRules(allow=(" Tea", "TEA"), deny=("Rum ",), fold_case=True)
    assert rules.allow == ("tea",)
    assert rules.deny == ("rum",)


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ({"allow": ("a",), "deny": (" a",)}, "'a' is on the lists allow and deny"),
        ({"allow": ("",)}, "allow has '', which is empty"),
        ({"deny": ("x" * 300,)}, "longer than 200 characters"),
        ({"deny": "rum"}, "deny is the text 'rum': give a list"),
    ],
)
def test_lists_that_do_not_fit_are_refused(lists, words):
    with pytest.raises(ConfigurationError, match=words):
        KeyRules(**lists)


def test_the_identity_is_that_of_the_rules():
    assert encoded(KeyRules(deny=("a ",))) == encoded(KeyRules(deny=("a",)))
    assert encoded(KeyRules(deny=("a",))) != encoded(KeyRules(allow=("a",)))
