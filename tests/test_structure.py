"""The script that counts rooms, arrows, floors and circles."""

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / ".ci" / "structure.py"))
ROOF = "from streamveil.house.middle.stairs import climb\n"
STAIRS = "def climb():\n    from streamveil.house import cellar\n"


@pytest.fixture
def house(tmp_path):
    """Makes a house of modules by their paths, and gives what is known of it."""

    def built(**modules):
        for name, text in modules.items():
            path = tmp_path / "house" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return SCRIPT["house_of"](SCRIPT["arrows_of"]("house", tmp_path))

    return built


def test_rooms_are_modules_and_folders_on_floors(house):
    made = house(roof=ROOF, middle__stairs=STAIRS, cellar="import streamveil.io\n")
    assert made.arrows == {"roof": {"middle"}, "middle": {"cellar"}, "cellar": set()}
    assert made.floors == [{"cellar"}, {"middle"}, {"roof"}]
    assert (made.circles, made.upward) == ([], [])


def test_an_import_for_types_closes_a_circle_too(house, capsys, tmp_path):
    types = "if TYPE_CHECKING:\n    from streamveil.house.roof import Tile\n"
    made = house(roof=ROOF, middle__stairs=STAIRS, cellar=types, tower=ROOF)
    assert made.circles == [{"roof", "middle", "cellar"}]
    assert made.floors == [{"roof", "middle", "cellar"}, {"tower"}]
    assert ("cellar", "roof") in made.upward
    assert ("tower", "middle") not in made.upward
    assert SCRIPT["main"](["house"], tmp_path) == 1
    assert "circle: cellar, middle, roof" in capsys.readouterr().out


def test_too_many_floors_fail(house, tmp_path):
    above = [f"from streamveil.house import room{i - 1}\n" if i else "" for i in range(8)]
    assert len(house(**{f"room{i}": text for i, text in enumerate(above)}).floors) == 8
    assert SCRIPT["main"](["house"], tmp_path) == 1
