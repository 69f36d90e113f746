"""Queries about places, for query sets of which it matters only how many bins they have."""

from streamveil.mechanisms import Categories
from streamveil.mechanisms.queries.queries import Query


def query(name, slots=1, bins=3, **more) -> Query:
    """One about so many places, by base slots or by so many of them."""
    places = Categories(tuple(f"place {number}" for number in range(bins)))
    return Query(name, slots, ("place",), places, **more)
