"""The page of a query set: it needs nothing else, its figures are right, and labels are text."""

import itertools
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from streamveil.io import LEDGER_SCHEMA, answer_schema
from streamveil.mechanisms.core.budgets import Requirements
from streamveil.mechanisms.core.domains import Categories
from streamveil.mechanisms.core.records import (
    NULLIFIED,
    PREDICTED,
    PUBLISHED,
    SKIPPED,
    ConfigurationError,
    Requirement,
    Slots,
    format_duration,
)
from streamveil.mechanisms.queries.bounds import AutoBounds
from streamveil.mechanisms.queries.queries import Query, QuerySet
from streamveil.mechanisms.queries.reading import query_set_of
from streamveil.mechanisms.queries.statistics import TopK
from streamveil.pipelines.pages.palette import COLOURS
from streamveil.pipelines.pages.sheet import Label, Path, Sheet, text_width
from streamveil.pipelines.reports.charts import draw_figures, draw_scatter, draw_sums, picture
from streamveil.pipelines.reports.labels import Wording
from streamveil.pipelines.reports.page import context, write_page, write_picture
from streamveil.pipelines.reports.report import QueryFigures, Report, aside_of, meets_parts

CLASSES = (Requirement(2, 1.0), Requirement(3, 4.0))
STATUSES = (SKIPPED, PUBLISHED, SKIPPED, NULLIFIED)
BOLD = "<b>bold</b>"
LOST = {"read": 336776, "kept": 300, "dropped": 4, "late": 0, "rejected": {"null user": 2}}


def make(true, released, *, labels=None, length="1d", kept=None, **fields):
    """A report of one count, beside the true one."""
    slots = Slots.of(length, "2013-01-01T05:00Z")
    true, released = np.array(true, float)[..., None], np.array(released, float)[..., None]
    labels = [f"L{j}" for j in range(true.shape[1])] if labels is None else labels
    query = Query("flights", value=("dest",), domain=Categories(labels), mechanism="pbd")
    stderr = np.full(released.shape, 2.0)
    stderr[0] = np.nan
    starts = np.array([slots.start(t) for t in range(len(true) + 1)], "datetime64[us]")
    edges = starts if length == "1h" else starts - np.timedelta64(5, "h")
    figures = QueryFigures(
        *(query, slots, edges, released),
        *(np.maximum(released - 2 * stderr, 0), np.maximum(released + 2 * stderr, 0), stderr),
        [STATUSES[t % len(STATUSES)] for t in range(len(true))],
        true=true,
        kept=true if kept is None else np.array(kept, float)[..., None],
    )
    names = {one: fields.pop(one) for one in ("names", "bin") if one in fields}
    return Report(
        QuerySet(slots, (query,)),
        {"flights": figures},
        {"flights": 1.0},
        ledger_of("flights", [(t, t, *spent(t)) for t in range(len(true))]),
        LOST,
        words={"flights": Wording("Flights by airport", "", "events", **names)},
        title="Flights",
        user="aircraft",
        **fields,
    )


def spent(slot):
    """What a slot costs each class; two in a row cost 0.75 and 3."""
    return (0.25, 0.5) if slot % 2 else (0.5, 2.5)


def ledger_of(query, charges):
    """Rows of first and last base slot and what both classes spent."""
    rows = [
        (
            *(query, last // (last - first + 1), first, last),
            *(one.window, one.epsilon, users, cost, cost),
        )
        for first, last, *both in charges
        for one, users, cost in zip(CLASSES, (1200, 34), both, strict=True)
    ]
    arrays = map(pa.array, zip(*rows, strict=True), LEDGER_SCHEMA.types)
    return pa.Table.from_arrays(list(arrays), schema=LEDGER_SCHEMA)


def with_figures(report, **changes):
    return replace(report, figures={"flights": replace(report.figures["flights"], **changes)})


def page(report, tmp_path):
    path = tmp_path / "page.html"
    write_page(str(path), report)
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def year():
    rng = np.random.default_rng(5)
    true = rng.poisson(60 / np.arange(1, 106), (365, 105))
    released = true + np.rint(rng.laplace(0, 8, true.shape)).astype(int)
    labels = ["<b>bold</b>", '"><script>alert(1)</script>', "$x_1$ {{ 7 * 7 }}"]
    labels += [f"L{j}" for j in range(3, 105)]
    names = {labels[0]: "<i>long</i>"}
    return make(true, released, labels=labels, names=names, repeat="run <it>")


@pytest.fixture(scope="module")
def html(year, tmp_path_factory):
    return page(year, tmp_path_factory.mktemp("page"))


def test_charts_and_size_of_a_year(html):
    assert len(html.encode()) < 2_000_000
    assert html.count("<svg") == 2 * (1 + 4 + 4 + 1 + 1 + 1) + len(CLASSES)
    assert html.count("How to read it") == 6


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
    named = re.findall(r'aria-label="([^"]+ by (?:day|week)[^"]+)"', html)
    assert len(named) == 2 * (1 + 8)
    ranges = r"true[a-z ]* from \S+ to \S+, \S+ on average; (kept.*)?released"
    assert all(re.search(ranges, one) for one in named)


def test_no_name_of_a_point_is_written_over_the_numbers_of_the_scale():
    labels = ["LGA", "LEX", "BOS", "ORD"]
    report = make([[1, 1, 900, 8000]], [[100, 160, 900, 8000]], labels=labels)
    plot = draw_scatter(Sheet(520, 520), report.figures["flights"].accuracy, labels, "flights")
    written = {one.text: one for one in of_kind(plot.sheet, Label) if one.text in labels}
    assert {"LGA", "LEX"} <= set(written)
    for name, one in written.items():
        left = one.x - (text_width(name, one.size) if one.anchor == "end" else 0)
        assert left >= plot.box.left - 1


def of_kind(sheet, kind):
    return [shape for shape in sheet.shapes if isinstance(shape, kind)]


def areas(sheet):
    return [path for path in of_kind(sheet, Path) if path.fill]


def lines(sheet):
    return [path for path in of_kind(sheet, Path) if not path.fill]


def value_at(plot, y):
    """What a height on a plot stands for."""
    share = (plot.box.bottom - y) / (plot.box.bottom - plot.box.top)
    return plot.y.low + share * (plot.y.high - plot.y.low)


def test_labels_are_text(html):
    assert "<i>long" not in html
    assert "alert(1)</script>" not in html
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "&lt;i&gt;long" in html
    assert "{{ 7 * 7 }}" in html
    assert "run &lt;it&gt;" in html


# Only what occurs is spoken of, but for publications.
@pytest.mark.slow
def test_what_became_of_slots(tmp_path):
    report = make([[5, 1]] * 5, [[5, 1]] * 5)

    def check(**changes):
        text = words(page(with_figures(report, **changes), tmp_path))
        return re.findall(r"(\d+) days?(?: of \d+)? (?:was|were) (\w+)", text), text

    said, text = check()
    assert said == [("1", "published"), ("3", "skipped"), ("1", "nullified")]
    assert "alarm" not in text
    assert "in the median" not in text
    said, text = check(statuses=[PREDICTED] * 5, alarms=1)
    assert said == [("0", "published"), ("5", "predicted")]
    assert "In 1 day the mechanism found that the counts had changed" in text
    every = [PUBLISHED, PUBLISHED, SKIPPED, PUBLISHED, PUBLISHED]
    assert "typically every day and at least every 2 days" in check(statuses=every)[1]
    assert check(statuses=[PUBLISHED] * 5)[0] == []


def words(html):
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)
    return re.sub(r" ([.,:])", r"\1", " ".join(text.split()))


def test_budgets_of_one_count():
    report = make([[10, 0], [20, 10], [20, 1], [9, 10]], [[0, 0], [22, 8], [22, 0], [9, 7]])
    assert report.users == 1234
    assert report.largest_use == {CLASSES[1]: 2.5 / 4, CLASSES[0]: 0.5}
    use = report.use_of(CLASSES[0])
    assert use.users == 1200
    assert use.together.tolist() == [0.5, 0.75, 0.75, 0.75]


@pytest.mark.slow
def test_figures_on_the_page(tmp_path):
    report = make(
        [[10, 0], [20, 10], [20, 1], [9, 10]],
        [[0, 0], [22, 8], [22, 0], [9, 7]],
        bin="airport",
    )
    text = words(page(report, tmp_path))
    assert "Average error of each of 2 airports, day by day 25.0% 2.5 events, where" in text
    assert "What does 25.0% mean?" in text
    assert "the average true count is 10 events, and the average error is 2.5" in text
    assert "each of 2 airports day 2.5 of 10 25.0% 25.0% all airports together" in text
    assert "1 day of 4 was published" in text
    assert "ε = 1 to 4 over any 2 to 3 days; none of 1,234 budgets was exceeded" in text
    assert "each of 1,234 users (one user is one aircraft)" in text
    # The day whose slot starts at 05:00 UTC is the first of January where the data was made.
    assert "one for every day, 1 Jan 2013 to 4 Jan 2013, each of 2 airports, by pbd" in text
    assert "2 days 1 1,200 75.0% 68.8%" in text
    assert "336,776 events read: 300 kept, 0 late, 4 dropped, 2 rejected (null user 2)." in text
    assert "real publication must never do that" in text
    assert "Of the 2 truly busiest airports, 2 are among" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("true", "released"),
    [([[7]], [[5]]), ([[0, 0]], [[-3, 4]]), ([[0, 0]] * 3, [[0, 0]] * 3)],
    ids=["one slot, one bin", "nothing there", "zero everywhere"],
)
def test_small_reports(true, released, tmp_path):
    report = make(true, released)
    error = report.figures["flights"].accuracy.relative_error
    assert np.isnan(error) == (not np.any(true))
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page(report, tmp_path), flags=re.DOTALL)
    write_picture(report, *report.query_set, str(tmp_path / "picture.svg"))


@pytest.mark.slow
def test_many_slots_show_a_window(tmp_path):
    counts = np.tile(np.arange(24)[:, None], (50, 1))
    html = page(make(counts, counts + 1, length="1h"), tmp_path)
    assert "These are the last 168 of 1,200 slots." in html
    assert "over 6 hours in a row" in html


def test_picture(year, tmp_path):
    path = tmp_path / "picture.png"
    write_picture(year, *year.query_set, str(path))
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
    figures = report.figures["flights"]
    for draw, least in (
        (partial(draw_figures, series=figures, bins=[0], part=slice(0, 14)), bottom),
        (partial(draw_sums, accuracy=figures.accuracy, bins=[0], size=1), bottom),
        (partial(draw_sums, accuracy=figures.accuracy, bins=[0], size=7), 0),
    ):
        assert draw(Sheet(576, 288), unit="flights").y.low == pytest.approx(least, abs=0.5)


def drawn(report):
    return picture(report, *report.query_set)


def names_of(sheet):
    """Of the bins of a picture."""
    return [one.text.split(":")[0] for one in of_kind(sheet, Label) if one.text.startswith("L")]


# Of busy bins the picture shows the one of which most is dropped, and how much that is.
def test_a_picture_shows_what_is_dropped():
    true = np.tile([50, 40, 30, 20, 2], (14, 1))
    shown = drawn(make(true, true, kept=true - [1, 1, 2, 8, 0], length="1h"))
    assert names_of(shown) == ["L0", "L1", "L3"]
    lost = [one for one in areas(shown) if one.colour == "error"]
    assert len(lost) == 3
    heights = [np.ptp(one.points[:, 1]) for one in lost]
    assert heights[2] > 3 * max(heights[:2])
    written = [one.text for one in of_kind(shown, Label)]
    assert [written.count(name) for name in ("true", "released", "kept")] == [3, 3, 1]
    shown = drawn(make(true, true, length="1h"))
    assert names_of(shown) == ["L0", "L1", "L2"]
    assert not [one for one in areas(shown) if one.colour == "error"]


# A product that is no longer sold was large over the whole period, and must not come first.
def test_the_newest_results_of_the_largest_bins_are_in_their_order(tmp_path):
    released = [[90, 10, 30], [90, 10, 30], [0, 50, 40]]
    report = with_figures(make(released, released), true=None, kept=None)
    query = replace(report.figures["flights"].query, statistic=TopK(2))
    top = with_figures(
        replace(report, query_set=QuerySet(report.query_set.base, (query,))), query=query
    )
    for one, expected in ((report, ["L0", "L2", "L1"]), (top, ["L1", "L2", "L0"])):
        newest = page(one, tmp_path).partition('<table class="newest">')[2]
        assert re.findall(r'<th class="text" scope="row">(L\d)', newest)[:3] == expected


# A flat line follows nothing, so the picture shows busy bins whose true counts change.
def test_a_picture_shows_the_busy_bins_that_change_most():
    true = np.tile([50, 40, 30, 20, 2], (28, 1))
    true[14:, [1, 3]] += [8, 12]
    assert names_of(drawn(make(true, true))) == ["L3", "L1", "L0"]


# Days in a year of weekly ups and downs are a flat line beside a saw: weeks show what is released.
def test_the_picture_of_days_has_weeks_and_names_its_lines(year, tmp_path):
    true = np.tile([50, 40, 30, 20, 2], (28, 1))
    report = make(true, true + 1, kept=true - [1, 1, 2, 8, 0])
    shown = drawn(report)
    assert names_of(shown) == ["L0", "L1", "L3"]
    ends = [one for one in of_kind(shown, Label) if one.text in ("true", "released", "kept")]
    assert [one.text for one in ends] == [
        *("true", "released", "true", "released", "kept", "true", "released"),
    ]
    assert np.diff([one.y for one in ends[-3:]]).max() <= -15
    plot = draw_sums(Sheet(540, 220), report.figures["flights"].accuracy, [0], 7, "flights")
    released = next(one for one in lines(plot.sheet) if one.colour == "released")
    assert value_at(plot, released.points[0, 1]) == pytest.approx(7 * 51)
    path = tmp_path / "picture.svg"
    write_picture(year, *year.query_set, str(path))
    assert "per week" in path.read_text()


# A count cannot be below 0, so nor can what it may be; and a week says of which month it is.
def test_a_picture_of_a_week_of_hours():
    hours = 24 * 30
    true = np.ones((hours, 2), np.int64)
    released = np.where(np.arange(hours)[:, None] % 24 < 12, 1, 0) * true
    report = make(true, released, length="1h")
    part = slice(hours - 168, hours)
    plot = draw_figures(Sheet(576, 288), report.figures["flights"], [0], part, "flights")
    bands = [one for one in areas(plot.sheet) if one.colour == "released"]
    assert min(value_at(plot, one.points[:, 1].max()) for one in bands) == pytest.approx(0)
    assert plot.y.low > -2
    texts = [one.text for one in of_kind(drawn(report), Label)]
    assert any(re.fullmatch(r"\d+ Jan", text) for text in texts), texts


def test_every_axis_has_a_title_with_its_unit(year):
    known = year.figures["flights"].accuracy
    weekly = draw_sums(Sheet(540, 220), known, [0], 7, "flights per week")
    assert (weekly.x.title, weekly.y.title) == ("date, 2013", "flights per week")
    scatter = draw_scatter(Sheet(540, 500), known, year.figures["flights"].labels, "flights")
    titles = ("true total, flights", "released total, flights")
    assert (scatter.x.title, scatter.y.title) == titles
    written = {one.text for plot in (weekly, scatter) for one in of_kind(plot.sheet, Label)}
    assert {"date, 2013", "flights per week", *titles} <= written


# A wide interval must not be drawn over the chart above, nor a point beside the axes.
def test_nothing_is_drawn_beyond_the_axes(year):
    figures = replace(
        year.figures["flights"],
        high=year.figures["flights"].high + 1e6 * np.eye(365, 105)[..., None],
    )
    plot = draw_figures(Sheet(540, 220), figures, [0], slice(0, 365), "flights")
    for one in (*areas(plot.sheet), *lines(plot.sheet)):
        assert one.points[:, 1].min() >= plot.box.top
        assert one.points[:, 0].max() <= plot.box.right


# Whatever is seen through a colour of the palette can be read on both grounds.
def test_colours_of_text_stand_out_from_the_page():
    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    for scheme in (0, 1):
        page = light(COLOURS["page"][scheme])
        for name in ("ink", "muted", "released", "revised", "error"):
            bright, dark = sorted((light(COLOURS[name][scheme]), page), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) > 4.5, name


# Where estimates are shrunk a lot, the page says that counts are too low, in sums too.
@pytest.mark.slow
def test_a_page_says_that_estimates_were_shrunk(tmp_path):
    report = make([[9, 8], [7, 6]], [[2, 2], [2, 1]])
    html = page(report, tmp_path)
    assert "shrunk" not in html
    assert "so it fades as counts are added up" in html
    html = page(with_figures(report, believed=0.25), tmp_path)
    assert "shrunk, to 25.0% on average" in html
    assert "fades" not in html
    assert "how to live with it" not in html


def test_refuses_shapes_that_disagree():
    with pytest.raises(ConfigurationError, match=r"true figures of query 'flights' have shape"):
        make([[1, 2, 3]], [[1, 2]])
    with pytest.raises(
        ConfigurationError, match=r"shape \(1, 3, 1\), and those released \(1, 2, 1\)"
    ):
        with_figures(make([[1, 2]], [[1, 2]]), revised=np.ones((1, 3, 1)))


@pytest.mark.slow
def test_revisions_are_drawn_beside_their_error(tmp_path):
    report = make([[10, 20], [10, 20], [12, 18]] * 5, [[12, 20], [10, 26], [12, 10]] * 5)
    html = page(report, tmp_path)
    assert "revised" not in html.split("</style>")[1]
    revised = np.tile([[10.0], [20.0]], (15, 1, 1))
    html = page(with_figures(report, revised=revised, lag=1), tmp_path)
    assert "revised 1 day later" in html
    assert "Error as revised later" in html
    assert re.search(r"4\.4\s?%", html)  # 4 of 90, five times
    assert "var(--revised)" in html.split("</style>")[1]
    high = with_figures(report, revised=np.tile([[99.0], [20.0]], (15, 1, 1)), lag=1)
    plot = draw_sums(Sheet(540, 220), high.figures["flights"].accuracy, [0], 5, "events")
    assert plot.y.high > 5 * 99


# ---- several queries ------------------------------------------------------------------------

QUERY_SET = query_set_of(
    {
        "slot": "1d",
        "queries": [
            {"name": "places", "by": "place", "keys": [BOLD, *"BCDEFGHIJKL"], "share": 0.25},
            {
                "name": "late",
                "every": "2d",
                "statistic": "quantiles",
                "of": "delay",
                "edges": [-30, 0, 60],
                "quantiles": [0.5, 0.9],
                "where": {"kind": ["bus", "tram"], "delay": {"from": -30}},
                "max_contributions": 3,
                "share": 0.5,
            },
        ],
    }
)
# Query, first and last base slot, and what it cost users with 1 over 2 days and 4 over 3.
CHARGES = [
    *(("places", 10, 10, (0.25, 0.5)), ("places", 11, 11, (0.25, 0.5))),
    *(("late", 10, 11, (0.5, 1.0)), ("places", 12, 12, (0.125, 0.5))),
    *(("places", 13, 13, (0.25, 0.5)), ("late", 12, 13, (0.125, 1.5))),
]
LOST_OF_SET = {
    "read": 1234,
    "kept": 1200,
    "late": 7,
    "dropped": 15,
    "rejected": {"null user": 12},
    "queries": {
        "places": {"counted": 900, "beyond_bound": 45, "unread": {"value out of domain": 67}},
        "late": {"counted": 800, "beyond_bound": 0, "unread": {}},
    },
}


def figures(query, values):
    """Answers from day 10 on, values of shape (slots, bins, figures)."""
    slots = QUERY_SET.slots_of(query)
    return QueryFigures.of(query, slots, as_table(query, values))


def as_table(query, values, spread=2.0):
    slots = QUERY_SET.slots_of(query)
    labels, outputs = query.tree.labels(query.domain), query.statistic.outputs
    count = len(labels) * len(outputs)
    first = 10 // query.slots
    numbers = np.repeat(np.arange(first, first + len(values)), count)
    flat = np.asarray(values, float).ravel()
    columns = {
        "slot": numbers,
        "start": slots.origin + numbers * slots.length,
        "end": slots.origin + (numbers + 1) * slots.length,
        "length": np.full(len(flat), format_duration(slots.length), object),
        "query": np.full(len(flat), query.name, object),
        "key": np.tile(np.repeat(np.array(labels, object), len(outputs)), len(values)),
        "level": np.zeros(len(flat), np.int64),
        "statistic": np.tile(np.array(outputs, object), len(labels) * len(values)),
        "value": flat,
        "stderr": np.full(len(flat), spread),
        "low": flat - spread,
        "high": flat + spread,
        "status": np.full(len(flat), "published", object),
        "note": np.full(len(flat), None, object),
        "clipping": np.zeros(len(flat)),
    }
    schema = answer_schema(query)
    return pa.table({f.name: pa.array(columns[f.name], f.type) for f in schema}, schema=schema)


def ledger():
    parts = [ledger_of(name, [(first, last, *both)]) for name, first, last, both in CHARGES]
    made = pa.concat_tables(parts)
    most = pa.array([1.0, 4.0] * len(CHARGES))
    return made.set_column(made.num_columns - 1, "spent_in_window", most)


@pytest.fixture(scope="module")
def several():
    places, late = QUERY_SET
    rising = np.arange(4 * 12).reshape(4, 12, 1)
    by_query = {
        "places": figures(places, rising),
        "late": figures(late, [[[-1.5, 30.0]], [[-2.5, 1234.5]]]),
    }
    return Report(QUERY_SET, by_query, {"places": 0.25, "late": 0.5}, ledger(), LOST_OF_SET)


@pytest.fixture(scope="module")
def answers(several, tmp_path_factory):
    return page(several, tmp_path_factory.mktemp("page"))


def test_a_charge_counts_in_every_window_that_meets_its_slot(several):
    """By hand: days 10 to 13 on the left, the shares of 1 over windows of two days."""
    use = several.use_of(Requirement(2, 1.0))
    assert use.users == 1200
    assert use.by_query.tolist() == [[0.25, 0.5, 0.375, 0.375], [0.5, 0.5, 0.625, 0.125]]
    assert use.together.max() == several.largest_use[Requirement(2, 1.0)] == 1
    three = several.use_of(Requirement(3, 4.0))
    assert (4 * three.by_query).tolist() == [[0.5, 1.0, 1.5, 1.5], [1.0, 1.0, 2.5, 2.5]]
    with pytest.raises(KeyError):
        several.use_of(Requirement(9, 9.0))


# What a look at bounds costs is in every window, and in no row of the ledger.
def test_a_look_at_bounds_is_part_of_what_was_spent(several):
    places, late = QUERY_SET
    looking = Query("looking", statistic=AutoBounds("sum", "delay"))
    looks = replace(QUERY_SET, queries=(places, late, looking))
    aside = aside_of(looks, Requirements(CLASSES), np.array([1200, 34]))
    made = replace(several, query_set=looks, aside=aside)
    for asked, share in ((Requirement(2, 1.0), 0.05), (Requirement(3, 4.0), 0.0125)):
        use = made.use_of(asked)
        assert use.aside == pytest.approx(share)
        np.testing.assert_allclose(use.together, use.by_query.sum(axis=0) + share)
        assert several.use_of(asked).aside == 0
    figured = replace(made, query_set=QUERY_SET)
    (*_, (_, names, mean)) = context(figured)["budget"]["queries"]
    assert names == "the private estimate of bounds"
    assert mean == pytest.approx(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "window", "words"), [("1d", "2 days", "days"), ("6h", "2 slots of 6h", "slots of 6h")]
)
def test_windows_are_stated_in_base_slots(several, base, window, words):
    run = context(replace(several, query_set=replace(QUERY_SET, base=Slots.of(base))))
    assert run["budget"]["window"] == window
    assert run["base"] == words


def test_the_largest_come_first_and_then_the_surest(several):
    places, late = (several.figures[name] for name in ("places", "late"))
    assert places.best[:3] == [11, 10, 9]
    assert places.from_zero
    assert not late.from_zero
    assert [meets_parts(query) for query in QUERY_SET] == [False, True]


def test_names_of_lines_are_longer_where_there_is_room():
    labels = ["Gare de Lyon, departures", "Gare du Nord"]
    report = make([[5, 1]] * 5, [[5, 1]] * 5, labels=labels)
    series, names = report.figures["flights"], {}
    for width in (350, 540, 1100):
        sheet = Sheet(width, 220)
        plot = draw_figures(sheet, series, [0, 1], slice(0, 5), "flights")
        beside = [one for one in of_kind(sheet, Label) if one.x > plot.box.right]
        names[width] = {one.text for one in beside} - {"true", "kept"}
        assert all(one.x + text_width(one.text, one.size) <= width for one in beside)
    assert names[350] == {"Gare de …", "Gare du …"}
    assert names[540] == {"Gare de Lyon…", "Gare du Nord"}
    assert names[1100] == set(labels)


def test_charts_of_other_figures_need_not_begin_at_0(several):
    sheet = Sheet(540, 220)
    assert draw_figures(sheet, several.figures["places"], [0], slice(0, 4), "events").y.low == 0
    assert draw_figures(sheet, several.figures["late"], [0], slice(0, 2), "minutes").y.low < -4


def test_what_is_true_is_compared(several):
    late = several.figures["late"]
    true = late.values + np.array([[[1.0, 3.0]], [[0.5, 1.0]]])
    known = replace(late, true=true)
    assert known.covered == 0.75
    assert known.error.tolist() == [0.75, 2.0]
    assert np.isnan(late.error).all()


def test_a_section_for_each_query_and_the_budget(answers):
    assert re.findall(r'<section id="([\w-]+)"', answers) == [
        *("query-places", "query-late", "budget", "lost"),
    ]
    assert set(re.findall(r'<a href="#([\w-]+)"', answers)) <= set(
        re.findall(r'\bid="([^"]+)', answers)
    )
    assert re.search(r"<b>25.0%</b>\s+of each user", answers)
    assert "Quantiles of delay. Only events with kind bus or tram and delay from -30" in answers
    assert "In the unit of delay" in answers
    assert "A window may contain part of a slot of 2d, so the noise covers twice as many" in answers
    assert answers.count("so the noise covers twice as many") == 1
    assert "1,234 (1,232 to 1,236)" in answers
    assert "1,200 users with ε = 1 over\n  2 days" in answers
    # The last of two slots of 2 days begins on the day before.
    assert "one for every slot of 2d, 11 Jan 1970 to 14 Jan 1970" in answers
    assert "δ" not in answers


def test_delta_is_reported_beside_epsilon(several, tmp_path):
    html = page(replace(several, delta=1e-9), tmp_path)
    assert re.search(r"<b>ε = 1 to 4, δ = 1e-09</b>over any 2 to 3 days", html)
    assert "except with a probability of at most δ = 1e-09" in html


@pytest.mark.slow
def test_longer_times_are_reported_beside_slots(several, tmp_path):
    places = replace(QUERY_SET.queries[0], times=(2,))
    table = as_table(places, np.arange(4 * 12).reshape(4, 12, 1))
    days = as_table(replace(places, slots=2, times=()), np.full((2, 12, 1), 4321.0))
    both = pa.concat_tables([table, days])
    slots = QUERY_SET.of_length(2)
    longer = QueryFigures.of(places, slots, both)
    assert longer.values.shape == (2, 12, 1)
    assert QueryFigures.of(places, QUERY_SET.slots_of(places), both).values.shape == (4, 12, 1)
    html = page(replace(several, longer={"places": [longer]}), tmp_path)
    assert "for the slot of 2d that begins on 13 Jan 1970, all its slots together" in html
    assert "4,321 (4,319 to 4,323)" in html


def test_titles_are_headings_and_units_stand_beside_numbers(several, tmp_path):
    places, late = QUERY_SET
    late = replace(late, title="How <late> they are", unit="minutes")
    html = page(replace(several, query_set=replace(QUERY_SET, queries=(places, late))), tmp_path)
    title = "How &lt;late&gt; they are"
    assert f"<h2>{title}</h2>" in html
    assert f'<a href="#query-late">{title}</a>' in html
    assert f'scope="row">{title}</th>' in html
    assert f"</i>{title}, " in html
    assert "In minutes." in html
    assert "90% interval in brackets, in minutes." in html
    assert "<h2>places</h2>" in html


# Bounds that a run chose are known from its counters; a runner without them tells none.
@pytest.mark.parametrize(
    ("counted", "words"),
    [
        ({"bounds": [0, 64]}, "Mean of delay. Numbers count from 0 to 64, as the run chose."),
        ({}, "Mean of delay. Numbers count within bounds that the run chose."),
    ],
)
def test_bounds_that_a_run_chose(counted, words):
    asked = Query("mean", statistic=AutoBounds("mean", "delay"))
    query_set = replace(QUERY_SET, queries=(asked,))
    results = {"mean": figures(asked, [[[2.0]]])}
    lost = {**LOST, "queries": {"mean": counted}}
    made = Report(query_set, results, {"mean": 0.95}, pa.table({}), lost)
    assert made.wording(asked).about == words


@pytest.mark.slow
def test_an_hour_is_written_as_one(several, tmp_path):
    half_hours = replace(
        QUERY_SET, base=replace(QUERY_SET.base, length=QUERY_SET.base.length // 48)
    )
    late = several.figures["late"]
    of_an_hour = replace(late, slots=half_hours.slots_of(late.query))
    figures_of_both = {**several.figures, "late": of_an_hour}
    run = replace(several, query_set=half_hours, figures=figures_of_both)
    html = re.sub(r"\s+", " ", page(run, tmp_path))
    assert "may contain part of an hour" in html
    assert " a hour" not in html


def test_losses_are_set_apart(answers):
    before, lost = answers.split('<section id="lost">')
    assert "1,234 events read: 1,200 kept, 7 late, 15 dropped, 12 rejected (null user 12)." in (
        words(lost)
    )
    assert "<td>900</td><td>45</td>" in re.sub(r">\s+<", "><", lost)
    assert "value out of domain 67" in lost
    assert "This section is not private" in lost
    assert "null user" not in before


@pytest.mark.parametrize("made", ["html", "answers"])
def test_a_page_needs_nothing_else_and_trusts_no_label(made, request):
    html = request.getfixturevalue(made)
    assert not re.search(r"https?:|<script|<link|<img|<iframe|@import|@font-face", html)
    outside = re.findall(r"""(?:src|href)=["']([^"'#][^"']*)|url\(([^#)][^)]*)\)""", html)
    assert not outside
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', html)) <= set(ids)
    assert len(re.findall(r'<svg[^>]*role="img" aria-label="[^"]+"[^>]*><title>[^<]', html)) == (
        html.count("<svg")
    )
    charts = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert "var(--released)" in charts
    assert set(re.findall(r"#[0-9a-f]{6}\b", charts)) <= {"#ffffff"}
    assert BOLD not in html


# A demonstration of two runs: each has a budget of its own, and ids that the other has not.
@pytest.mark.slow
def test_two_runs_on_a_page(several, tmp_path):
    path = tmp_path / "page.html"
    write_page(str(path), make([[5, 1]] * 5, [[4, 1]] * 5), replace(several, title="Two queries"))
    html = path.read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert {"budget", "run1-budget", "query-flights", "run1-query-late", "run1-queries"} <= set(ids)
    assert "This is a second run." in html
    levels = [int(level) for level in re.findall(r"<h(\d)", html)]
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))


def test_without_a_ledger_and_without_answers(several, tmp_path):
    places = QUERY_SET.queries[0]
    none = figures(places, np.empty((0, 12, 1)))
    bare = replace(several, figures={**several.figures, "places": none}, ledger=pa.table({}))
    assert bare.users == 0
    assert "The run kept no ledger" in page(bare, tmp_path)
