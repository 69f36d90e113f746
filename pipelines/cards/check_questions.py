"""Whether the answers to all questions together are within what the card promises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from streamveil.mechanisms.core.budgets import to_units
from streamveil.pipelines.cards.promises import class_key, requirement_of
from streamveil.pipelines.cards.read import Fault, Read, column, floats, numbers, units
from streamveil.pipelines.cards.recount import Answer, wrong_portfolio

Record = Mapping[str, Any]
Tables = Sequence[tuple[str, pa.Table]]


def question_faults(card: Record, read: Read) -> Iterator[str]:
    """Whether the answers to all questions together are within what the card promises."""
    rows = [row for path, table in read.of("ledger") for row in _answer_rows(path, table)]
    yield from _answered_and_booked(card, rows)
    classes = {(one["window"], one["epsilon"]): one for one in card["promise"]["classes"]}
    by_class: dict[tuple[int, float], list[Answer]] = {key: [] for key in classes}
    for key, users, answer in rows:
        if key not in classes or classes[key]["users"] != users:
            raise Fault(
                f"the ledger has {users} users with epsilon {key[1]:g} over {key[0]} base slots, "
                "and the card promises that to "
                f"{classes[key]['users'] if key in classes else 'none'}: one of the two was "
                "changed, or is of another stream"
            )
        by_class[key].append(answer)
    ends = {one.question: one.last for _, _, one in sorted(rows, key=lambda row: row[2].last)}
    goes_on = "passes" in card["runs"][-1] or card["runs"][-1].get("open", False)
    until = (max if goes_on else min)(ends.values(), default=0)
    for key, answers in by_class.items():
        look = int(to_units(float(classes[key].get("look", 0.0))))
        ordered = sorted(answers, key=lambda one: one.last)
        yield from wrong_portfolio(requirement_of(classes[key]), look, ordered, until)


def _answer_rows(path: str, table: pa.Table) -> list[tuple[tuple[int, float], int, Answer]]:
    columns = [
        column(path, table, "question"),
        numbers(path, table, "first_base_slot").tolist(),
        numbers(path, table, "last_base_slot").tolist(),
        units(path, table, "spent").tolist(),
        units(path, table, "spent_in_window").tolist(),
        numbers(path, table, "window").tolist(),
        floats(path, table, "epsilon").tolist(),
        numbers(path, table, "users").tolist(),
    ]
    return [
        ((window, epsilon), users, Answer(str(question), *figures))
        for question, *figures, window, epsilon, users in zip(*columns, strict=True)
    ]


def _answered_and_booked(
    card: Record, rows: Sequence[tuple[tuple[int, float], int, Answer]]
) -> Iterator[str]:
    """Whether each answer is booked for each class, once, and nothing else is."""
    asked = {one["name"]: one["slots"] for one in card["data"]["questions"]}
    wanted = {
        (name, slot * asked[name], (slot + 1) * asked[name] - 1, *class_key(one))
        for run in card["runs"]
        if "ledger" in run["files"]
        for name, (first, last) in run["answered"].items()
        for slot in range(first, last + 1)
        for one in card["promise"]["classes"]
    }
    found: set[Any] = set()
    for (window, epsilon), _, one in rows:
        key = (one.question, one.first, one.last, window, epsilon)
        if key in found:
            yield (
                f"the ledger books question {one.question}, base slots {one.first} to {one.last}, "
                "twice: take out the row that the run did not write"
            )
        found.add(key)
    for some, how in (
        (wanted - found, "was answered, and the ledger has no row of it for every class"),
        (found - wanted, "is in the ledger, and no run of the card answered it for that class"),
    ):
        if some:
            name, first, last, *_ = min(some)
            yield (
                f"question {name}, base slots {first} to {last}, {how}: bring back what the run "
                "wrote"
            )
