"""How a package is built: rooms, arrows between them, floors and circles, over all imports.

`python .ci/structure.py` prints a line for each house, and ends with 1 where one has a circle or
more floors than it may. `python .ci/structure.py pipelines` lists its floors as well.

A house is a folder with code, and its rooms are the modules and folders directly in it. An arrow
leads from a room to one that it imports, wherever the import stands: at the top, in a function or
for types alone. The floor of a room is the length of the longest chain of arrows below it, of which
a circle counts once. So an arrow leads down, but for those within a circle.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
HOUSES = ("engine", "io", "mechanisms", "mechanisms/local", "pipelines", "transforms")
"""Those that are looked at, and the packages of `pipelines`."""
MOST_FLOORS = 7
HIGHER = {"io": 16, "mechanisms": 9, "pipelines/audit": 9, "pipelines/options": 8}
"""Houses that may have more floors, and how many."""

Arrows = Mapping[str, set[str]]


class House(NamedTuple):
    """What is known of a house."""

    arrows: Arrows
    """The rooms, each with those that it imports."""
    circles: list[set[str]]
    """Rooms that import each other, directly or by way of others."""
    floors: list[set[str]]
    """From the lowest up."""

    @property
    def upward(self) -> list[tuple[str, str]]:
        """Arrows that lead to no lower floor."""
        return [
            (room, other)
            for room, others in self.arrows.items()
            for other in others
            if any({room, other} <= circle for circle in self.circles)
        ]


def arrows_of(name: str, root: Path = ROOT) -> Arrows:
    """The rooms of a house, such as `pipelines/audit`, each with those that it imports."""
    package = f"streamveil.{name.replace('/', '.')}."
    files = {file: file.relative_to(root / name) for file in (root / name).rglob("*.py")}
    arrows = {_room(path): set[str]() for path in files.values() if _room(path) != "__init__"}
    for file, path in files.items():
        if (room := _room(path)) in arrows:
            inside = [one for one in _imports(file) if one.startswith(package)]
            found = {one.removeprefix(package).partition(".")[0] for one in inside}
            arrows[room] |= found & arrows.keys() - {room}
    return arrows


def _room(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def _imports(file: Path) -> Iterator[str]:
    """All modules that a file imports, and all names that it imports of them, with their paths."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def house_of(arrows: Arrows) -> House:
    """Find the circles and the floors of a house."""
    below = {room: _reached(room, arrows) for room in arrows}
    around = {room: {one for one in below[room] if room in below[one]} | {room} for room in arrows}
    heights: dict[str, int] = {}
    for room in sorted(arrows, key=lambda room: len(below[room] | {room})):  # the lowest first
        under = below[room] - around[room]
        heights[room] = 1 + max((heights[one] for one in under), default=-1)
    floors = [{room for room in heights if heights[room] == i} for i in sorted({*heights.values()})]
    circles = {frozenset(rooms) for rooms in around.values() if len(rooms) > 1}
    return House(arrows, [set(circle) for circle in circles], floors)


def _reached(room: str, arrows: Arrows) -> set[str]:
    """All rooms to which a chain of arrows leads from one."""
    found: set[str] = set()
    ahead = set(arrows[room])
    while ahead:
        found.add(one := ahead.pop())
        ahead |= arrows[one] - found
    return found


def main(names: list[str], root: Path = ROOT) -> int:
    """Print what is known of some houses, of all without names; return the exit code."""
    rooms = sorted(init.parent.name for init in (root / "pipelines").glob("*/__init__.py"))
    failed = False
    for name in names or (*HOUSES, *(f"pipelines/{room}" for room in rooms)):
        house = house_of(arrows_of(name, root))
        number, most = len(house.floors), HIGHER.get(name, MOST_FLOORS)
        print(
            f"{name}: {len(house.arrows)} rooms, {sum(map(len, house.arrows.values()))} arrows, "
            f"{number} floors of {most}, {len(house.circles)} circles, "
            f"{len(house.upward)} upward arrows"
        )
        for circle in house.circles:
            print(f"  circle: {', '.join(sorted(circle))}")
        for i in range(number - 1, -1, -1) if names else ():
            print(f"  {i}: {', '.join(sorted(house.floors[i]))}")
        failed |= bool(house.circles) or number > most
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
