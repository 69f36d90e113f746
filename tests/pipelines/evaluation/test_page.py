"""The page needs nothing else, says what the runs say, and trusts no name."""

import re

import pytest

from streamveil.pipelines.evaluation.page import MOST_LINES, page_of
from streamveil.pipelines.evaluation.w_event import WEvent
from tests.pipelines.evaluation.runs import compared, run

NASTY = '"><script>alert(1)</script>'


def runs(streams=("sin", NASTY), epsilons=(0.3, 0.6), windows=(12,), seeds=(0, 1, 2)):
    return [
        run(name, seed, (amre + seed) / epsilon, stream, epsilon, window)
        for stream in streams
        for epsilon in epsilons
        for window in windows
        for name, amre in (("pba:x=1", 40.0), ("pbd", 90.0), ("ba", 3.0))
        for seed in seeds
    ]


def words(html):
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)
    return " ".join(text.split())


@pytest.fixture(scope="module")
def html():
    return page_of(compared(runs(), command="streamveil evaluate --streams='<it>'"))


def test_page_needs_nothing_else(html):
    assert not re.search(r"https?:|<script|<link|<img|<iframe|@import|@font-face", html)
    assert not re.findall(r"""(?:src|href)=["']([^"'#][^"']*)|url\(([^#)][^)]*)\)""", html)


def test_page_is_sound_html(html):
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', html)) <= set(ids)
    charts = re.findall(r'<svg[^>]*role="img" aria-label="[^"]+"[^>]*><title>[^<]', html)
    assert len(charts) == html.count("<svg") == 2 * (len(WEvent.measures) + 2)


def test_whoever_cannot_see_it_may_skip_to_the_findings(html):
    before, rest = html.split('<main id="main"')
    main, after = rest.split("</main>")
    assert 'href="#main"' in before
    assert "<section" in main
    assert "<section" not in before + after
    assert "<figcaption" not in re.sub(r"<figure.*?</figure>", "", html, flags=re.DOTALL)
    for scrolled in re.findall(r'<div class="scroll"[^>]*>', html):
        assert 'tabindex="0" role="region" aria-label="' in scrolled
    (table,) = re.findall(
        r'<table class="all" aria-label="All figures">.*?</table>', html, re.DOTALL
    )
    assert table.count('scope="row"') == table.count("<tr") - 1


def test_charts_follow_the_colour_scheme(html):
    charts = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert "var(--series0)" in charts
    assert set(re.findall(r"#[0-9a-f]{6}\b", charts)) <= {"#ffffff"}
    for name in set(re.findall(r"var\(--(\w+)\)", html)):
        assert f"--{name}: " in html


def test_names_are_text(html):
    assert NASTY not in html
    assert "alert(1)&lt;/script&gt;" in html
    assert "--streams=&#39;&lt;it&gt;&#39;" in html


def test_what_it_says(html):
    text = words(html)
    assert "3 mechanisms on 2 streams, under 2 requirements (E, w), 3 times each." in text
    assert "at most 98.0% of any" in text
    assert "Overall: pba:x=1 . pbd has 2.22 times its error, in the geometric mean" in text
    assert "△ ba : baselines, never advised" in text
    assert text.count("lower error, baseline: △ ba") == 4
    assert "137 ± 1.9" in text  # 41 / 0.3
    assert "9,000 users, 500 slots, 2 bins" in text


@pytest.mark.slow
def test_ties_and_single_seeds():
    few = runs(streams=("sin",), epsilons=(0.6,), seeds=(0,))
    text = words(page_of(compared(few, notes=["sin: 9 of 10 events are beyond the bound"])))
    assert "9 of 10 events are beyond the bound." in text
    assert "no single mechanism is best: ● pba:x=1 , ■ pbd are tied" in text
    assert "under 1 requirement (E, w), once." in text
    assert "One seed cannot tell a difference from noise" in text
    assert "More or less protection" not in text


@pytest.mark.slow
def test_only_comparators():
    made = [one for one in runs(streams=("sin",)) if one.mechanism == "ba"]
    assert "Only baselines were run, which are never advised" in words(page_of(compared(made)))


@pytest.mark.slow
def test_no_more_charts_than_are_read():
    many = [f"s{i}" for i in range(9)]
    html = page_of(compared(runs(streams=many, windows=(3, 6), seeds=(0, 1))))
    assert html.count("<svg") == 2 * (len(WEvent.measures) + MOST_LINES)


@pytest.mark.slow
def test_errors_of_nothing_and_unknown_coverage():
    unknown = {"relative_error": float("nan"), "coverage": float("nan")}
    made = [run("pba", seed, 0.0, **unknown) for seed in (0, 1)]
    assert "0 ± 0" in words(page_of(compared(made)))
