"""The dashboard and the alerts ask for figures that there are."""

import json
import re
from pathlib import Path

import pytest

from streamveil.pipelines.monitoring.metrics import figures_of

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "dashboards" / "grafana.json").read_text())
ALERTS = (DOCS / "dashboards" / "alerts.yaml").read_text()
NAME = re.compile(r"\bstreamveil_\w+")
ROWS = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]


def expressions(row):
    """What the panels below the title of a row ask for."""
    inside = False
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            inside = panel["title"] == row
        elif inside:
            yield from (target["expr"] for target in panel["targets"])


def names(group):
    return {figure.full_name for figure in figures_of(group)}


def test_the_rows_are_the_groups():
    public, raw = ROWS
    assert "public" in public
    assert "--metrics=raw" in raw


@pytest.mark.parametrize(("number", "group"), [(0, "public"), (1, "raw")])
def test_every_panel_asks_for_figures_of_its_group(number, group):
    asked = list(expressions(ROWS[number]))
    assert len(asked) > 3
    for expression in asked:
        found = set(NAME.findall(expression))
        assert found, expression
        assert found <= names(group), expression


def test_every_figure_is_on_the_dashboard_or_in_the_alerts_but_for_what_says_the_same():
    shown = set(NAME.findall(json.dumps(DASHBOARD) + ALERTS))
    assert names("raw") - shown == {
        "streamveil_slot_length_seconds",
        "streamveil_lag_seconds",  # by the clock of the stream
        "streamveil_failed",
    }


def test_alerts_ask_for_figures_of_their_group():
    public, raw = ALERTS.split("--metrics=raw")
    assert len(set(NAME.findall(public))) > 1
    assert set(NAME.findall(public)) <= names("public")
    assert set(NAME.findall(raw)) <= names("raw")


def test_the_page_names_every_figure():
    found = set(NAME.findall((DOCS / "reference/metrics.md").read_text()))
    beams = {"streamveil_slots_published"}  # as Flink shows it
    assert found == names("raw") | beams
