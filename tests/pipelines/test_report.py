"""The page holds everything it needs, says the right figures, and trusts no label."""

import itertools
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from matplotlib.figure import Figure

from streamveil.mechanisms.core.records import (
    NULLIFIED,
    PREDICTED,
    PUBLISHED,
    SKIPPED,
    ConfigurationError,
    Estimate,
    LedgerEntry,
    Release,
    Requirement,
    Revised,
    Revision,
    Slots,
)
from streamveil.pipelines.charts import (
    draw_panel,
    draw_scatter,
    draw_sums,
    draw_total,
    picture,
    span_picture,
)
from streamveil.pipelines.page import write_page, write_picture
from streamveil.pipelines.report import Report
from streamveil.pipelines.sums import longest

CLASSES = (Requirement(2, 1.0), Requirement(3, 4.0))
STATUSES = (SKIPPED, PUBLISHED, SKIPPED, NULLIFIED)


def make(true, released, *, labels=None, length="1d", **fields):
    slots = Slots.of(length, "2013-01-01T05:00Z")
    true, released = np.array(true, np.int64), np.array(released, np.int64)
    bins = true.shape[1]
    releases, ledger = [], []
    for t, counts in enumerate(released):
        before = t == 0
        stderr = np.full(bins, np.inf if before else 2.0)
        status = STATUSES[t % len(STATUSES)]
        place = None if before else 1
        releases.append(
            Release.of(Estimate(counts, status, place, 0.5, stderr), t, slots, "pbd<&>")
        )
        spent = np.array([0.25, 0.5]) if t % 2 else np.array([0.5, 2.5])
        ledger.append(LedgerEntry(t, CLASSES, np.array([1200, 34]), spent, spent))
    return Report(
        title="Flights",
        subject="flights from New York",
        labels=[f"L{j}" for j in range(bins)] if labels is None else labels,
        label_names=fields.pop("label_names", {}),
        slots=slots,
        slot_name="day" if length == "1d" else "hour",
        user_name="aircraft",
        releases=releases,
        ledger=ledger,
        true_counts=true,
        counted=fields.pop("counted", true),
        facts={"Events read": "336,776"},
        **fields,
    )


def page(report, tmp_path):
    path = tmp_path / "page.html"
    write_page(report, str(path))
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def year():
    rng = np.random.default_rng(5)
    true = rng.poisson(60 / np.arange(1, 106), (365, 105))
    released = true + np.rint(rng.laplace(0, 8, true.shape)).astype(int)
    labels = ["<b>bold</b>", '"><script>alert(1)</script>', "$x_1$ {{ 7 * 7 }}"]
    labels += [f"L{j}" for j in range(3, 105)]
    names = {labels[0]: "<i>long</i>"}
    return make(true, released, labels=labels, label_names=names, repeat="run <it>")


@pytest.fixture(scope="module")
def html(year, tmp_path_factory):
    return page(year, tmp_path_factory.mktemp("page"))


def test_page_needs_nothing_else(html):
    assert not re.search(r"https?:|<script|<link|<img|<iframe|@import|@font-face", html)
    outside = re.findall(r"""(?:src|href)=["']([^"'#][^"']*)|url\(([^#)][^)]*)\)""", html)
    assert not outside
    assert len(html.encode()) < 2_000_000


def test_page_is_sound_html(html):
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))
    assert used <= set(ids)
    charts = re.findall(r'<svg[^>]*role="img" aria-label="[^"]+"[^>]*><title>[^<]', html)
    assert len(charts) == html.count("<svg") == 2 * (4 + 4 + 1 + 2) + len(CLASSES)
    assert html.count("How to read it") == 8


# What a screen reader and a keyboard need: landmarks, a way past them, headings in order, names.
def test_page_can_be_read_without_eyes_or_mouse(html):
    assert re.findall(r"<(main|header|footer|nav)\b", html) == ["header", "nav", "main", "footer"]
    first = re.search(r"<body>\s*(<[^>]+>)", html).group(1)
    assert first == '<a class="skip" href="#main">'
    assert ":focus-visible { outline:" in html
    levels = [int(level) for level in re.findall(r"<h(\d)", html)]
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))
    assert levels.count(1) == 1
    tables = re.findall(r"<table.*?</table>", html, re.DOTALL)
    assert len(tables) == 3
    for table in tables:
        assert "<caption>" in table
        assert not re.search(r"<th(?![^>]*scope=)[ >]", table)
        rows = re.findall(r"<tr.*?</tr>", table.split("<tbody")[1], re.DOTALL)
        assert all('scope="row"' in row for row in rows)
    assert "overflow-x" not in html  # no keyboard scrolls what cannot be focused
    assert not re.search(r"</figure>\s*<figcaption|</div>\s*</section>\s*<figcaption", html)
    named = re.findall(r'aria-label="(Counts of [^"]+)"', html)
    assert len(named) == 2 * 8
    assert all(re.search(r"true from \S+ to \S+, \S+ in the mean; released", one) for one in named)


def test_no_name_of_a_point_is_written_over_the_numbers_of_the_scale():
    true = [[1, 1, 900, 8000]]
    figure = Figure(figsize=(5.2, 5.2))
    draw_scatter(figure, make(true, [[100, 160, 900, 8000]], labels=["LGA", "LEX", "BOS", "ORD"]))
    (axes,) = figure.axes
    written = {one.get_text(): one.get_window_extent() for one in axes.texts}
    assert {"LGA", "LEX"} <= set(written)
    assert min(box.x0 for box in written.values()) >= axes.bbox.x0


def test_charts_follow_the_colour_scheme(html):
    charts = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert "var(--released)" in charts
    assert set(re.findall(r"#[0-9a-f]{6}\b", charts)) <= {"#ffffff"}


def test_labels_are_text(html):
    assert "<b>bold" not in html
    assert "<i>long" not in html
    assert "alert(1)</script>" not in html
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "&lt;i&gt;long" in html
    assert "{{ 7 * 7 }}" in html
    assert "run &lt;it&gt;" in html
    assert "pbd&lt;&amp;&gt;" in html


# Only what occurs is spoken of, but for publications.
@pytest.mark.slow
def test_what_became_of_slots(tmp_path):
    report = make([[5, 1]] * 5, [[5, 1]] * 5)

    def told(releases):
        text = words(page(replace(report, releases=releases), tmp_path))
        return re.findall(r"(\d+) days?(?: of \d+)? (?:was|were) (\w+)", text), text

    said, text = told(report.releases)
    assert said == [("1", "published"), ("3", "skipped"), ("1", "nullified")]
    assert "alarm" not in text
    assert "in the median" not in text
    predicted = [replace(r, status=PREDICTED, alarm=r.slot == 3) for r in report.releases]
    said, text = told(predicted)
    assert said == [("0", "published"), ("5", "predicted")]
    assert "In 1 day the mechanism saw the counts jump" in text
    every = [replace(r, status=PUBLISHED if r.slot != 2 else SKIPPED) for r in report.releases]
    assert "every day in the median and 2 days apart at most" in told(every)[1]


def words(html):
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)
    return re.sub(r" ([.,:])", r"\1", " ".join(text.split()))


def test_figures():
    # Errors: 10 and 0, 2 and 2, 2 and 1, 0 and 3; they sum to 20 where the truth sums to 80.
    true = [[10, 0], [20, 10], [20, 1], [9, 10]]
    released = [[0, 0], [22, 8], [22, 0], [9, 7]]
    report = make(true, released)
    assert report.relative_error == 20 / 80
    assert report.mean_error == 20 / 8
    assert [report.slots_with(s) for s in (PUBLISHED, SKIPPED, NULLIFIED)] == [1, 2, 1]
    assert report.users == 1234
    assert report.largest_use == 2.5 / 4
    users, use = report.budget_use[CLASSES[0]]
    assert users == 1200
    assert use.tolist() == [0.5, 0.25, 0.5, 0.25]
    assert report.busiest == [0, 1]
    assert np.isnan(report.stderr[0]).all()
    assert (report.stderr[1:] == 2).all()


def test_figures_on_the_page(tmp_path):
    report = make(
        [[10, 0], [20, 10], [20, 1], [9, 10]],
        [[0, 0], [22, 8], [22, 0], [9, 7]],
        bin_name="airport",
    )
    text = words(page(report, tmp_path))
    assert "Each of 2 airports, day by day 25.0% off: by 2.5 of 10 events, in the mean" in text
    assert "What does 25.0% mean?" in text
    assert "the release says 2.5 too many or too few" in text
    assert "each of 2 airports day 2.5 of 10 25.0% 25.0% all airports together" in text
    assert "1 day of 4 were" not in text
    assert "1 day of 4 was published" in text
    assert "Largest budget use 62.5%" in text
    assert "1,234 users" in text
    # The day whose slot starts at 05:00 UTC is the first of January where the data was made.
    assert "every day from 1 Jan 2013 to 4 Jan 2013" in text
    assert "2 days 1 1,200 50.0% 37.5%" in text
    assert "Events read 336,776" in text
    assert "real publication must never do that" in text
    assert "Of the 2 truly busiest airports, 2 are among" in text


@pytest.mark.parametrize(
    ("true", "released"),
    [([[7]], [[5]]), ([[0, 0]], [[-3, 4]]), ([[0, 0]] * 3, [[0, 0]] * 3)],
    ids=["one slot, one bin", "nothing there", "zero everywhere"],
)
def test_small_reports(true, released, tmp_path):
    report = make(true, released)
    assert np.isnan(report.relative_error) == (not np.any(true))
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page(report, tmp_path), flags=re.DOTALL)
    write_picture(report, str(tmp_path / "picture.svg"))


def test_many_slots_show_a_window(tmp_path):
    counts = np.tile(np.arange(24)[:, None], (50, 1))
    html = page(make(counts, counts + 1, length="1h"), tmp_path)
    assert "1,200 hours are too many to tell apart" in html
    assert re.search(
        r"show the middle\s+168: 22 Jan 2013, 17:00 UTC to 29 Jan 2013, 16:00 UTC", html
    )
    assert "mean of 6 hours in a row" in html


def test_no_ledger(tmp_path):
    report = replace(make([[1], [2]], [[1], [3]]), ledger=[])
    assert report.largest_use == 0
    assert "The run kept no ledger" in page(report, tmp_path)


def test_picture(year, tmp_path):
    path = tmp_path / "picture.png"
    write_picture(year, str(path))
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = (int.from_bytes(head[i : i + 4], "big") for i in (16, 20))
    assert width == 2 * height
    assert width >= 800


# Of a year of some counts from 50 to 60 a chart from 50 up would show a year of ups and downs.
@pytest.mark.parametrize(("released", "bottom"), [(55, 0), (-5, -9)])
def test_charts_of_counts_begin_at_0(released, bottom):
    true = 55 + np.arange(14)[:, None] % 2
    report = make(true, np.where(np.arange(14)[:, None] == 3, released, true))
    for draw, least in (
        (partial(draw_panel, j=0, part=slice(0, 14)), bottom),
        (partial(draw_total, group=1), bottom),
        (partial(draw_sums, j=0, size=7), 0),
    ):
        figure = Figure(figsize=(8, 4))
        draw(figure, report=report)
        assert figure.axes[0].get_ylim()[0] == pytest.approx(least, abs=0.5)


# Of busy bins the picture shows the one that loses most by the bound, and how much that is.
def test_a_picture_shows_what_does_not_count(tmp_path):
    true = np.tile([50, 40, 30, 20, 2], (14, 1))
    drawn = picture(make(true, true, counted=true - [1, 1, 2, 8, 0]), slice(0, 14))
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["L0", "L1", "L3"]
    _, lost = drawn.axes[2].collections
    assert set(lost.get_paths()[0].vertices[:, 1]) == {12, 20}
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [
        *("true", "counted", "not counted", "released", "± 2 standard errors"),
    ]
    drawn = picture(make(true, true), slice(0, 14))
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["L0", "L1", "L2"]
    assert len(drawn.axes[2].collections) == 1


# Days in a year of weekly ups and downs are a flat line beside a saw: weeks show what is released.
def test_the_picture_of_days_has_weeks_and_names_its_lines(year, tmp_path):
    true = np.tile([50, 40, 30, 20, 2], (28, 1))
    report = make(true, true + 1, counted=true - [1, 1, 2, 8, 0])
    drawn = span_picture(report, *longest(report))
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["L0", "L1", "L3"]
    labels = [[text.get_text() for text in axes.texts] for axes in drawn.axes]
    assert labels == [["true", "released"], ["true", "released"], ["kept", "true", "released"]]
    heights = [text.xy[1] for text in drawn.axes[2].texts]
    assert np.diff(heights).min() > 0.2
    assert drawn.axes[0].lines[0].get_ydata()[0] == 7 * 51
    path = tmp_path / "picture.svg"
    write_picture(year, str(path))
    assert "per week" in path.read_text()


# A count cannot be below 0, so nor can what it may be; and a week says of which month it is.
def test_a_picture_of_a_week_of_hours(tmp_path):
    hours = 24 * 30
    true = np.ones((hours, 2), np.int64)
    report = make(true, np.where(np.arange(hours)[:, None] % 24 < 12, 1, 0) * true, length="1h")
    drawn = picture(report, slice(300, 468))
    axes = drawn.axes[0]
    (band,) = axes.collections
    assert band.get_paths()[0].vertices[:, 1].min() == 0
    assert axes.get_ylim()[0] > -2
    drawn.canvas.draw()
    labels = [tick.get_text() for tick in drawn.axes[-1].get_xticklabels()]
    assert any(re.fullmatch(r"\d\d Jan", label) for label in labels), labels


# Where little of the estimates is told, the page says that counts are too low, in sums too.
@pytest.mark.slow
def test_a_page_says_that_estimates_were_shrunk(tmp_path):
    report = make([[9, 8], [7, 6]], [[2, 2], [2, 1]])
    html = page(report, tmp_path)
    assert "far below it" not in html
    assert "so it fades as counts are added up" in html
    shrunk = [replace(one, diagnostics={"believed": 0.25}) for one in report.releases]
    html = page(replace(report, releases=shrunk), tmp_path)
    assert "25.0% on average" in html
    assert "fades" not in html
    assert "why to live with it" not in html


def test_refuses_shapes_that_disagree():
    with pytest.raises(ConfigurationError, match=r"\(1, 2\).*1 releases of 3 labels"):
        make([[1, 2]], [[1, 2]], labels=["a", "b", "c"])
    with pytest.raises(ConfigurationError, match=r"slot 0 has \(3,\) counts.*2 labels"):
        make([[1, 2]], [[1, 2, 3]])
    with pytest.raises(ConfigurationError, match="at least one release"):
        make(np.zeros((0, 2)), np.zeros((0, 2)))


# ---- revisions ------------------------------------------------------------------------------


@pytest.mark.slow
def test_revisions_are_drawn_and_their_error_is_told(tmp_path):
    report = make([[10, 20], [10, 20], [12, 18]] * 5, [[12, 20], [10, 26], [12, 10]] * 5)
    revised = [
        Revision.of(Revised(t, np.array([10, 20]), np.ones(2)), min(t + 1, 14), report.slots, "m")
        for t in range(15)
    ]
    html = page(report, tmp_path)
    assert "revised" not in html.split("</style>")[1]
    html = page(replace(report, revisions=revised), tmp_path)
    assert "revised 1 day later" in html
    assert "As revised later" in html
    assert re.search(r"4\.4\s?%", html)  # 4 of 90, five times
    assert "var(--revised)" in html.split("</style>")[1]
    high = [replace(one, counts=np.array([99, 20])) for one in revised]
    figure = Figure()
    draw_sums(figure, replace(report, revisions=high), 0, 5)
    assert figure.axes[0].get_ylim()[1] > 5 * 99
    with pytest.raises(ConfigurationError, match="2 revisions are not of the slots of 15 releases"):
        replace(report, revisions=revised[:2])
