"""What releases say of their cost, where each slot is published by itself: of sums see ledgers."""

import json

from streamveil.mechanisms.core.records import PUBLISHED


def cost(content):
    """What a release cost, given as JSON; one that repeats another names what that cost."""
    release = json.loads(content)
    return release["epsilon"] if release["status"] == PUBLISHED else 0.0


def spent(given):
    """By slot, in order, what its different releases cost together."""
    return [(slot, sum(map(cost, contents))) for slot, contents in sorted(given.items())]
