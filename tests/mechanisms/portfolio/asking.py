"""Questions about places, for portfolios of which it matters only how many bins they have."""

from streamveil.mechanisms import Categories
from streamveil.mechanisms.portfolio.questions import Question


def question(name, slots=1, bins=3, **more) -> Question:
    """One about so many places, by base slots or by so many of them."""
    places = Categories(tuple(f"place {number}" for number in range(bins)))
    return Question(name, slots, ("place",), places, **more)
