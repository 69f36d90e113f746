"""Groups of discovered keys: a key's group follows from its text alone."""

import pytest

from streamveil.mechanisms import ConfigurationError
from streamveil.mechanisms.discovery.discovered_keys import DiscoveredKeys
from streamveil.mechanisms.discovery.key_groups import KeyGroups
from streamveil.mechanisms.discovery.key_rules import KeyRules

GROUPS = {"a": ["/docs/*", "tea"], "b": ["/docs/old/*", "/docs/new"], "c": ["caf\u00e9*"]}


@pytest.mark.parametrize(
    ("key", "group"),
    [
        ("tea", 0),
        ("Tea", 3),
        ("tea ", 3),
        ("/docs/", 0),
        ("/docs", 3),
        ("/docs/new", 1),
        ("/docs/newer", 0),
        ("/docs/old/page", 1),
        ("/docs/*", 0),
        ("/docs/old/*", 1),
        ("caf\u00e9", 2),
        ("cafe", 3),
        (" ", 3),
        ("", 3),
    ],
)
def test_the_group_of_a_key(key, group):
    assert KeyGroups.of(GROUPS, KeyRules()).place(key) == group


def test_members_are_normalised_as_keys_are():
    made = KeyGroups.of({"a": ["  Caf\u0065\u0301 *", "TEA", "True"]}, KeyRules(fold_case=True))
    assert made.members == (("caf\u00e9 *", "tea", "true"),)
    assert [made.place(key) for key in ("caf\u00e9 noir", "caf\u00e9", "tea", "true")] == [
        0,
        1,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"a": ["tea"], "b": [" tea "]}, "'tea' is listed twice"),
        ({"a": ["te*", "te*"]}, "'te\\*' is listed twice"),
        ({"a": ["*"]}, "stands for all keys"),
        ({"a": [" *"]}, "stands for all keys"),
        ({"a": [" "]}, "no key is"),
        ({"a": ["x" * 300]}, "longer than 200"),
    ],
)
def test_what_is_no_member_is_refused(groups, words):
    with pytest.raises(ConfigurationError, match=words):
        KeyGroups.of(groups, KeyRules())


def test_bins_of_groups_follow_the_listed_keys():
    groups = KeyGroups.of({"unlisted: a": ["a*"], "unlisted: b": ["b"]}, KeyRules())
    keys = DiscoveredKeys(("c", "b", "ab"), found=True, since=(4,), groups=groups)
    assert keys.bins == 5
    assert keys.labels == ("c", "b", "ab", "unlisted: a", "unlisted: b")
    assert keys.unlisted_bins == (2, 1, 0)
    assert keys.declared.labels == ("unlisted: a", "unlisted: b")
