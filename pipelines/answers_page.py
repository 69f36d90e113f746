"""A page of a portfolio: a section for each question, and one for the budget that they share.

The page is one HTML file that needs nothing else, without scripts and addresses. All of it may be
published but for its last section, which tells what the run lost: that is raw.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from streamveil.mechanisms.core.records import MICROSECONDS, Slots, format_duration
from streamveil.mechanisms.portfolio.questions import Question
from streamveil.pipelines.answers_charts import LINES, STACK, draw_answer, draw_budget
from streamveil.pipelines.answers_report import AnswersReport, QuestionFigures, meets_parts
from streamveil.pipelines.charts import PALETTE, STYLE, chart, shorten
from streamveil.pipelines.html import decimal, template
from streamveil.pipelines.page import CLASS_ROWS, READABLE_SLOTS, budget_row
from streamveil.pipelines.wording import Wording, plain_wording

PALETTE_OF_ANSWERS = {**PALETTE, **STACK}
_SPANS = {"1w": "week", "1d": "day", "1h": "hour", "1m": "minute", "1s": "second"}
CHARTS = 4
ROWS = 10


def write_answers_page(report: AnswersReport, path: str) -> None:
    """Write the page as one HTML file that needs no other.

    Args:
        report: what to show.
        path: file to write.
    """
    page = template(Path(__file__).parent / "answers.html.jinja")
    html = page.render(
        context(report), base=_spans(report.portfolio.base), report=report, lost=report.lost
    )
    Path(path).write_text(html, encoding="utf-8")


def context(
    report: AnswersReport, wordings: Mapping[str, Wording] | None = None, charts: int = CHARTS
) -> dict[str, Any]:
    """What templates show of questions and their budget.

    Args:
        report: what to show.
        wordings: how to speak of questions, by their names; else plainly.
        charts: of a question, at most.
    """
    words = wordings or {}
    with matplotlib.rc_context(STYLE):
        return {
            "palette": PALETTE_OF_ANSWERS,
            "questions": [
                _section(
                    *(report, question),
                    words.get(question.name) or plain_wording(question, report.bounds_of(question)),
                    charts,
                )
                for question in report.portfolio
            ],
            "budget": _budget(report),
        }


def _section(
    report: AnswersReport, question: Question, words: Wording, charts: int
) -> dict[str, Any]:
    told = report.figures[question.name]
    slots = len(told.values)
    part = slice(max(0, slots - READABLE_SLOTS), slots)
    span = _span(told.slots)
    bins = told.best[:charts]
    return {
        "name": question.name,
        "words": words,
        "told": told,
        "span": span,
        "slots": slots,
        "shown": part.stop - part.start,
        "share": report.shares[question.name],
        "most": question.max_contributions,
        "once": question.statistic.once,
        "parts": meets_parts(question),
        "lines": [(output, LINES[o % len(LINES)]) for o, output in enumerate(told.outputs)],
        "errors": list(zip(told.outputs, told.error.tolist(), strict=True)),
        "panels": [
            {
                "label": told.labels[j],
                "name": words.names.get(told.labels[j], ""),
                "chart": chart(
                    f"{question.name}{i}",
                    f"{shorten(told.labels[j], 60)}: {', '.join(told.outputs)} by {span}, with "
                    "intervals of 90%",
                    partial(draw_answer, told=told, j=j, part=part),
                    wide=(540, 190) if len(bins) > 1 else (1100, 230),
                    narrow=(350, 165),
                    palette=PALETTE_OF_ANSWERS,
                ),
            }
            for i, j in enumerate(bins if slots else ())
        ],
        "newest": [
            {
                "span": _span(one.slots),
                "last": _date(one, len(one.values) - 1),
                "rows": _last_figures(one),
            }
            for one in (told, *report.longer.get(question.name, ()))
            if len(one.values)
        ],
        "bins": len(told.labels),
    }


def _last_figures(told: QuestionFigures) -> list[tuple[str, list[str]]]:
    """Of the newest slot, bin by bin: each figure with its interval."""
    rows = []
    for j in told.best[:ROWS]:
        figures = zip(told.values[-1, j], told.low[-1, j], told.high[-1, j], strict=True)
        rows.append((told.labels[j], [_figure(*map(float, each)) for each in figures]))
    return rows


def _figure(value: float, low: float, high: float) -> str:
    interval = f" ({decimal(low)} to {decimal(high)})" if np.isfinite([low, high]).all() else ""
    return f"{decimal(value)}{interval}"


def _budget(report: AnswersReport) -> dict[str, Any] | None:
    """What the template shows of the budget; None without a ledger."""
    if not report.largest_use:
        return None
    uses = [report.use_of(requirement) for requirement in list(report.largest_use)[:CLASS_ROWS]]
    fullest = max(uses, key=lambda use: (use.together.mean(), use.requirement))
    edges = report.base_edges
    # A step is the fullest window of some base slots in a row.
    size = -(-fullest.by_question.shape[1] // READABLE_SLOTS)
    starts = np.arange(0, fullest.by_question.shape[1], size)
    ends = np.append(starts[1:], fullest.by_question.shape[1])
    at = [
        begin + int(fullest.together[begin:end].argmax())
        for begin, end in zip(starts, ends, strict=True)
    ]
    by_question = fullest.by_question[:, at]
    order = np.argsort(-by_question.mean(axis=1), kind="stable")
    names = [question.name for question in report.portfolio]
    *own, others = STACK
    stacked = [(color, [names[q]], by_question[q]) for color, q in zip(own, order, strict=False)]
    rest = order[len(own) :]
    look = ["the look at bounds"] if fullest.aside else []
    if len(rest) or look:
        shares = by_question[rest].sum(axis=0) + fullest.aside
        stacked.append((others, [*(names[q] for q in rest), *look], shares))
    return {
        "fullest": fullest.requirement,
        "users": fullest.users,
        "base": _spans(report.portfolio.base),
        "window": _so_many(fullest.requirement.window, report.portfolio.base),
        "grouped": size > 1,
        "questions": [
            (color, ", ".join(those), float(shares.mean())) for color, those, shares in stacked
        ],
        "chart": chart(
            "budget",
            "Share of the budget that each question had spent in the last "
            f"{fullest.requirement.window} base slots, one upon the other, over time",
            partial(
                draw_budget,
                edges=np.append(edges[:-1:size], edges[-1:]),
                stacked=[(color, shares) for color, _, shares in stacked],
            ),
            wide=(1100, 260),
            narrow=(350, 200),
            palette=PALETTE_OF_ANSWERS,
        ),
        "classes": len(report.largest_use),
        "rows": [
            budget_row(
                use.requirement,
                use.users,
                use.together,
                _so_many(use.requirement.window, report.portfolio.base),
            )
            for use in sorted(uses, key=lambda use: use.requirement)
        ],
    }


def _span(slots: Slots) -> str:
    """What a slot is called: a day, a slot of 6h."""
    length = format_duration(slots.length)
    return _SPANS.get(length, f"slot of {length}")


def _spans(slots: Slots) -> str:
    """What slots are called: days, slots of 6h."""
    length = format_duration(slots.length)
    return f"{_SPANS[length]}s" if length in _SPANS else f"slots of {length}"


def _so_many(number: int, slots: Slots) -> str:
    """So many of them: 1 day, 48 slots of 6h."""
    return f"{number:,} {_span(slots) if number == 1 else _spans(slots)}"


def _date(told: QuestionFigures, slot: int) -> str:
    time = told.edges[slot].item()
    hour = f", {time:%H:%M} UTC" if told.slots.length % MICROSECONDS["d"] else ""
    return f"{time.day} {time:%b %Y}{hour}"
