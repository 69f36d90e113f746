"""Files as public ones are laid out, taken through the command as its pages say."""

import pytest

ASKED = ("--slot=1w", "--default_requirement=1,50,60")
COLUMNS = ("--user_column=user", "--time_column=time", "--value_column=value", "--domain=a")


@pytest.fixture
def released(toolbox, tmp_path, monkeypatch):
    """Writes a file and runs the command on it."""
    monkeypatch.chdir(tmp_path)

    def release(name, lines, *flags):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return toolbox.run("release", f"--input={name}", "--output=out.csv", *ASKED, *flags)

    return release


def test_several_spaces_between_columns(released):
    lines = ["user  day  number", *(f"  u{n}  2024-01-0{n % 7 + 1}   {n % 3}" for n in range(60))]
    flags = ("--delimiter= ", "--user_column=user", "--time_column=day", "--value_column=number")
    outcome = released("spaces.txt", lines, *flags, "--domain=0,1,2")
    assert outcome.code == 3
    assert "several spaces separate them: make these one first (tr -s ' ')" in outcome.message
    squeezed = [" ".join(["", *line.split()]) for line in lines]
    assert released("squeezed.txt", squeezed, *flags, "--domain=0,1,2").code == 0


def test_a_text_that_holds_the_delimiter(released):
    lines = [f"Sat, {day} Apr 2017 15:11:58 -0500" for day in range(10, 30)]
    flags = ("--columns=when", "--user_column=when", "--time_column=when", "--value_column=when")
    outcome = released("commits.txt", lines, *flags, "--domain=a", "--other=b")
    assert outcome.code == 3
    assert "Likely cause: --delimiter is not what separates the fields" in outcome.message


def test_date_and_time_in_two_columns(released):
    lines = ["id,date,time,type", *(f"{n},2015-01-01,11:38:36,veggie" for n in range(60))]
    flags = ("--user_column=id", "--time_column=date,time", "--value_column=type")
    outcome = released("pizza.csv", lines, *flags, "--domain=veggie")
    assert outcome.code == 2
    assert "name one of them, after you have joined 'date' and 'time' into one" in outcome.message


def test_events_without_a_value(released):
    lines = ["date,id", *(f"2014-03-0{n % 7 + 1} 00:00:00,{n}" for n in range(60))]
    flags = ("--user_column=id", "--time_column=date")
    outcome = released("transactions.csv", lines, *flags)
    assert outcome.code == 2
    assert "count all events in one with a query that has no value (--queries)" in outcome.message


def test_a_header_in_another_encoding(released, tmp_path):
    (tmp_path / "till.csv").write_bytes("Kunde;Straße\nä;b\n".encode("cp1252"))
    outcome = released("other.csv", [], "--input=till.csv", "--delimiter=;", *COLUMNS)
    assert outcome.code == 2
    assert "till.csv: line 1 is not UTF-8" in outcome.message
    assert "convert the file, as by iconv -f WINDOWS-1252 -t UTF-8" in outcome.message


def test_keys_inside_an_object(released):
    lines = ['{"user": {"id": 1}, "time": "2024-01-01", "value": "a"}']
    outcome = released("nested.jsonl", lines, "--user_column=user.id", *COLUMNS[1:])
    assert outcome.code == 2
    assert "after you have moved it from inside 'user' to a key of its own" in outcome.message
