"""The findings as a page for people and as JSON for programs.

One HTML file that needs nothing else: bars are inline SVG, there is no script and no address.
"""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

from streamveil.mechanisms.core.records import Lifetime
from streamveil.pipelines.audit.findings import Check, Findings, named
from streamveil.pipelines.pages.document import document, stylesheet
from streamveil.pipelines.pages.templates import template

# What bars end at: so many times a claim.
_WIDEST = 2.0


def json_of(findings: Findings, command: str) -> str:
    """All figures, and the verdict in words."""
    found = {
        "verdict": _verdict(findings),
        "sentence": findings.sentence,
        "mechanism": findings.mechanism,
        "confidence": findings.confidence,
        "verdict_confidence": findings.verdict_confidence,
        "visible_violation": _finite(findings.visible),
        "charged_in_window": findings.overspent,
        "replay": _replay(findings),
        "own_input": findings.own,
        "runs": findings.runs,
        "slots": findings.slots,
        "rounds": findings.rounds,
        "seconds": findings.seconds,
        "notes": list(findings.notes),
        "checks": [_record(one) for one in findings.checks],
        "command": command,
        "version": version("streamveil"),
    }
    return json.dumps(found, indent=2) + "\n"


def _verdict(findings: Findings) -> str:
    if findings.violated:
        return "violation detected"
    return "no violation found" if findings.covered else "nothing tested"


def _record(one: Check) -> dict[str, Any]:
    return {
        "query": one.query or None,
        "subject": one.subject or None,
        "window": (
            None if one.subject or isinstance(one.requirement, Lifetime) else one.requirement.window
        ),
        "epsilon": one.requirement.epsilon,
        "part": one.part,
        "claim": one.claim,
        "claimed": one.claimed,
        "at_least": one.epsilon,
        "times": one.times,
        "times_of_verdict": one.surely,
        "estimate": one.reached,
        "guesses": one.guesses,
        "right": one.right,
        "visible_violation": _finite(one.visible),
        "violated": one.violated,
    }


def _replay(findings: Findings) -> dict[str, Any] | None:
    found = findings.replayed
    if found is None:
        return None
    return {
        "violation": found.violation or None,
        "worst": found.worst,
        "worlds": found.worlds,
        "complete": found.complete,
        "slots": found.slots,
    }


def _finite(number: float) -> float | None:
    return None if math.isinf(number) else number


def page_of(findings: Findings, command: str) -> str:
    """The page as HTML."""
    here = Path(__file__).parent
    body = template(here / "audit.html.jinja").render(
        findings=findings,
        rows=[_row(one) for one in findings.checks],
        worst=findings.worst if findings.checks else None,
        named=named,
        by_query=any(one.query for one in findings.checks),
        parts={one.part for one in findings.checks},
        visible=_times(findings.visible),
        version=version("streamveil"),
        command=command,
    )
    return document(f"Audit of {findings.mechanism}", stylesheet(here / "audit.css"), body)


def _row(one: Check) -> dict[str, Any]:
    return {
        **_record(one),
        "name": named(one),
        "share": 100 * min(one.times, _WIDEST) / _WIDEST,
        "estimate": 100 * min(one.reached, _WIDEST) / _WIDEST,
        "visible": _times(one.visible),
    }


def _times(visible: float) -> str:
    return "none" if math.isinf(visible) else f"{visible:.2f}"
