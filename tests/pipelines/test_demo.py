"""`streamveil demo`: a year of real flights, released and shown on a page."""

import re

import pytest

from streamveil.io import read_ledger, read_releases, read_revisions, read_table


@pytest.fixture(scope="module")
def demo(toolbox, tmp_path_factory):
    """The folder of a demo, and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMVEIL_NOISE_KEY", "the same noise in every run of this test")
        outcome = toolbox.run("demo", f"--output_dir={folder}")
    assert outcome.code == 0, outcome
    return folder, outcome


@pytest.mark.slow
def test_outputs_exist(demo):
    folder, outcome = demo
    names = {path.name for path in folder.iterdir()}
    assert {
        "releases.parquet",
        "revisions.parquet",
        "ledger.parquet",
        "rejected.jsonl",
        "index.html",
    } <= names
    assert not [name for name in names if name.endswith(".part")]
    assert f"look at   {folder / 'index.html'}" in outcome.out


@pytest.mark.slow
def test_summary_is_printed(demo):
    out = demo[1].out
    assert re.search(r"336,776 events read: [\d,]+ counted, 2,512 rejected, 0 late", out)
    assert "rejected: null user 2,512" in out
    slots = {status: int(number) for number, status in re.findall(r"(\d+) (publ\w+|pred\w+)", out)}
    assert slots["published"] > 0
    assert sum(slots.values()) == 365
    assert "of any user's budget was spent" in out


@pytest.mark.slow
def test_error_is_moderate(demo):
    error = float(re.search(r"error: +(\d+\.\d)% of all flights", demo[1].out)[1])
    assert 0 < error < 25


@pytest.mark.slow
def test_sums_err_less(demo):
    out = demo[1].out
    day = re.search(r"error: +(\d+\.\d)% of all flights", out)[1]
    week, all_together = re.search(
        r"sums: +error of (\d+\.\d)% of the flights .*, and of (\d+\.\d)% of all flights", out
    ).groups()
    assert float(all_together) < float(week) < float(day)
    html = (demo[0] / "index.html").read_text(encoding="utf-8")
    for error in (day, week, all_together):
        assert f"<b>{error}%</b>" in html


@pytest.mark.slow
def test_revisions_err_less(demo):
    """Every day is revised seven days later, and on the whole for the better."""
    folder, outcome = demo
    error, revised = re.findall(r"(?:error|revised): +(\d+\.\d)% of all flights", outcome.out)
    assert float(revised) < float(error)
    assert "7 days later" in outcome.out
    revisions = read_revisions(str(folder / "revisions.parquet"))
    releases = read_releases(str(folder / "releases.parquet"))
    assert [one.slot for one in revisions] == [one.slot for one in releases]
    assert "revised 7 days later" in (folder / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_releases_and_ledger(demo):
    folder, _ = demo
    releases = read_releases(str(folder / "releases.parquet"))
    assert len(releases) == 365
    assert {len(release.counts) for release in releases} == {105}
    assert {release.mechanism for release in releases} == {"adaptive"}
    ledger = read_ledger(str(folder / "ledger.parquet"))
    assert [entry.slot for entry in ledger] == [release.slot for release in releases]
    for entry in ledger:
        for requirement, spent in zip(entry.classes, entry.spent_in_window, strict=True):
            assert spent <= requirement.epsilon * (1 + 1e-12)
    assert sum(ledger[0].users) == 4043


@pytest.mark.slow
def test_page_is_self_contained(demo):
    html = (demo[0] / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|<script|<link|<img|<iframe|@import|@font-face", html)
    assert "New York" in html
    assert "336,776" in html


@pytest.mark.slow
def test_three_queries_from_one_budget(demo):
    folder, outcome = demo
    shares = re.findall(r"query: (\w+), from (\d+)% of the budget: .* (\d+)% of the", outcome.out)
    assert [name for name, _, _ in shares] == ["late", "delay", "flights"]
    assert sum(int(share) for _, share, _ in shares) == 100
    assert all(int(held) > 65 for _, _, held in shares)  # with storms, and noise of any run
    html = (folder / "index.html").read_text(encoding="utf-8")
    section = html.split('<section id="run1-queries">')[0]
    for asked in ("How late are most", "How late does each airline", "How many flights go to"):
        assert len(re.findall(rf"<h2[^>]*>{asked}", section)) == 1
    assert "One budget for all queries" in section
    answers = {name: read_table(str(folder / "answers" / f"{name}.parquet")) for name, *_ in shares}
    assert {name: table.num_rows for name, table in answers.items()} == {
        "flights": 364 * 105,
        "delay": 364 * 7,
        "late": 52 * 2,
    }
    rows = read_table(str(folder / "answers-ledger.parquet")).to_pylist()
    assert all(row["spent_in_window"] <= row["epsilon"] * (1 + 1e-12) for row in rows)


@pytest.mark.slow
def test_again_into_the_same_folder(demo, toolbox, tmp_path):
    """The new demo replaces the old one; so does the picture."""
    folder, _ = demo
    old = (folder / "releases.parquet").read_bytes()
    picture = tmp_path / "picture.svg"
    outcome = toolbox.run(
        "demo", f"--output_dir={folder}", "--demo_mechanism=bd", f"--picture={picture}"
    )
    assert outcome.code == 0, outcome
    assert (folder / "releases.parquet").read_bytes() != old
    assert read_releases(str(folder / "releases.parquet"))[0].mechanism == "bd"
    assert picture.read_text().lstrip().startswith("<")


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--hourly=junk", ["--hourly=junk", "true", "false"]),
        ("--demo_mechanism=laplace", ["'laplace'", "pba, pbd, ba, bd"]),
        ("--mechanism=laplace", ["'laplace'", "pba, pbd, ba, bd"]),
        ("--output_dri=x", ["unknown option --output_dri=x", "did you mean --output?"]),
    ],
)
def test_bad_flags(toolbox, tmp_path, flag, words):
    outcome = toolbox.run("demo", f"--output_dir={tmp_path / 'demo'}", flag)
    assert outcome.code == 2
    assert outcome.message.startswith("streamveil demo: ")
    assert all(word in outcome.message for word in words), outcome.message


def test_bad_flags_keep_the_earlier_demo(toolbox, tmp_path):
    """What cannot be done must be found out before the old results are deleted."""
    page = tmp_path / "index.html"
    page.write_text("precious")
    assert toolbox.run("demo", f"--output_dir={tmp_path}", "--demo_mechanism=laplace").code == 2
    assert page.exists()


def test_folder_that_is_a_file(toolbox, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    outcome = toolbox.run("demo", f"--output_dir={path}")
    assert outcome.code == 2
    assert str(path) in outcome.message
