"""A file's folder says what it may import, no import climbs back up or in a circle, and files can be read."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

LONGEST, AN_EVENING = 40, 2_560  # lines: of a function, and that are not blank, of the rooms to begin with
PYTHON = ("python_lists", "python_loops")
PACKAGE = Path(__file__).parents[2] / "mlpkit"
FLOORS = ("checks files", "kernels", "engines", "data nn", "course plots training", "lab", "__main__")  # lowest first
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}
MODULES = {path.relative_to(PACKAGE.parent).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
MODULES = {parts[:-1] if parts[-1] == "__init__" else parts: path for parts, path in MODULES.items()}


def imported(parts, path, top_level=False):
    """Yield the modules of the package that one imports, as tuples of names; top_level: as it is imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = parts if path.stem == "__init__" else parts[:-1]
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = (*start, *(node.module or "").split(".")) if node.module else start
            for found in [(*base, alias.name) for alias in node.names] + [base]:
                if found in MODULES and found != parts:
                    yield found


def room(parts):
    return parts[1] if len(parts) > 1 else parts[0]


def test_every_room_has_its_floor():
    assert {room(parts) for parts in MODULES} - {"mlpkit"} == set(FLOOR)


def test_no_import_climbs_back_up():
    arrows = {(parts, found) for parts, path in MODULES.items() for found in imported(parts, path)}
    assert len(arrows) > 300
    climbing = [
        f"{'.'.join(one)} imports {'.'.join(other)}"
        for one, other in sorted(arrows)
        if len(one) > 1 and len(other) > 1 and FLOOR[room(one)] < FLOOR[room(other)]
    ]
    assert not climbing


def test_no_files_import_each_other_in_a_circle():
    """A package's own file may import what lies in it: that arrow is left out."""
    graph = {
        parts: {
            found
            for found in imported(parts, path, True)
            if found[: len(parts)] != parts and found != parts[: len(found)]
        }
        for parts, path in MODULES.items()
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_a_function_fits_a_screen():
    long = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}"
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST
    ]
    assert not long


def test_what_a_student_reads_in_an_evening_stays_that_long():
    plain = [
        path
        for path in PACKAGE.glob("*/*.py")
        if path.parent.name in ("data", "nn", "training") or path.stem in ("numpy_baseline", *PYTHON)
    ]
    lines = sum(bool(line.strip()) for path in plain for line in path.read_text(encoding="utf-8").splitlines())
    assert lines <= AN_EVENING
