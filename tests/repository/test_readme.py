"""The READMEs say what is so: times come from records, minutes from chapters, and links and commands lead somewhere."""

import ast
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from test_chapters import CHAPTERS, TIMED, cells
from test_rooms import AN_EVENING

from experiments.lab import results
from mlpkit import data
from mlpkit.data import Split
from mlpkit.training.recipe import Recipe

README, TABLES = results.ROOT / "README.md", results.FOLDER / "README.md"
PICTURES = results.FOLDER / "headline.png", results.FOLDER / "steps.png"
TEXT = README.read_text(encoding="utf-8")


@pytest.fixture
def tool():
    """Return the names of tools/update_readme.py, and a dict of what it writes, {path: bytes}."""
    names, written = runpy.run_path(str(results.ROOT / "tools" / "update_readme.py"))["main"].__globals__, {}
    names["write_atomically"] = written.__setitem__
    return names, written


def test_running_the_tool_changes_nothing(tool):
    names, written = tool
    names["main"]()
    assert written.keys() == {README, TABLES, *PICTURES}
    for path in (README, TABLES, *(PICTURES if sys.platform == "linux" else ())):  # they were drawn on Linux
        assert written[path] == path.read_bytes(), path.name


@pytest.mark.parametrize("lacks", ["README", "TABLES"])
def test_where_a_page_lacks_its_marks_nothing_is_written(lacks, tool, tmp_path):
    names, written = tool
    page = tmp_path / "README.md"
    page.write_text("no marks", encoding="utf-8")
    names["PAGES"][page] = names["PAGES"].pop(names[lacks])
    with pytest.raises(ValueError, match="nothing is written"):
        names["main"]()
    assert not written


def test_what_stands_between_the_marks_is_replaced_and_nothing_else(tool, tmp_path):
    names, written = tool
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- b -->\nold\n<!-- /b -->\nan umlaut: ü\n<!-- a -->\n<!-- /a -->\nafter\n", "utf-8")
    names["PAGES"][page] = {"a": lambda: "one\n", "b": lambda: "two\n"}
    names["main"]()
    text = "before\n<!-- b -->\ntwo\n<!-- /b -->\nan umlaut: ü\n<!-- a -->\none\n<!-- /a -->\nafter\n"
    assert written[page].decode() == text


@pytest.mark.parametrize("page", [README, TABLES], ids=["README", "results"])
def test_links_lead_to_files(page):
    found = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    targets = [target for target in found if "://" not in target]
    assert targets
    assert [target for target in targets if not (page.parent / target).exists()] == []


# The first screen

FIRST = re.sub(r"<!-- .* -->\n", "", TEXT.partition("\n## ")[0]).strip().split("\n\n")


def test_it_is_a_sentence_two_commands_a_picture_five_rows_and_three_paths():
    title, sentence, commands, picture, table, machines, _, ways, paths = FIRST
    assert title.startswith("# ")
    assert len(re.findall(r"\.(?=\s|$)", sentence)) == 1
    assert [line.split()[:2] for line in commands.splitlines()] == [["make", "run"], ["make", "test"]]
    assert re.fullmatch(r"!\[.+\]\(results/headline\.png\)", picture)
    assert len(table.splitlines()) == 2 + 5
    for column in table.splitlines()[0].strip("| ").split(" | ")[1:]:
        assert re.search(rf"{re.escape(column)}.*?, \d{{4}}-\d\d-\d\d", " ".join(machines.split()))
    assert "make lab" in ways
    assert len(re.findall(r"(?m)^- \*\*", paths)) == 3


def test_its_network_is_the_usual_one():
    recipe, text = Recipe(), FIRST[6]
    assert f"{'-'.join(map(str, recipe.model.sizes()))}," in text
    assert f"{recipe.dtype}, {recipe.optimizer.upper()}, batches of {recipe.batch_size}." in text


def ways():
    """Return {path: ([(chapter, minutes), ...], minutes in all)} as the page has them."""
    found = {}
    for item in FIRST[-1].split("\n- "):
        name, total = re.search(r"\*\*(.+)\*\*, (\d+) minutes", item).groups()
        found[name] = re.findall(r"\[\w\w\]\(notebooks/(\w\w)_\w+\.ipynb\)\s+\((\d+)\)", item), int(total)
    return found


def test_minutes_are_those_of_the_chapters_and_sums_are_right():
    assert [*ways()] == ["An afternoon", "A course", "I program GPUs", "At work"]
    for chapters, total in ways().values():
        for number, minutes in chapters:
            assert minutes == TIMED.search(cells(CHAPTERS[number], "markdown")[0]["text"])[1], number
        assert sum(int(minutes) for _, minutes in chapters) == total
    assert ways()["An afternoon"][1] <= 240


def test_the_course_is_the_plan_of_six_weeks():
    plan = (results.ROOT / "labs" / "INSTRUCTORS.md").read_text(encoding="utf-8")
    weeks = re.findall(r"(?m)^\| \d+ \| chapters? ([\d, ]+);", plan)
    assert len(weeks) == 6
    assert [number for number, _ in ways()["A course"][0]] == ", ".join(weeks).split(", ")


# Below it


def test_every_chapter_has_a_row_in_its_place():
    rows = re.findall(r"(?m)^\| (\w\w) \| \[.+?\]\(notebooks/(\w+\.ipynb)\) \|", TEXT)
    assert rows == [(number.upper(), path.name) for number, path in CHAPTERS.items()]


def test_every_room_of_the_package_has_a_row():
    rows = re.findall(r"(?m)^\| \[`(\w+)/`\]\((mlpkit/)?\1\)", TEXT)
    rooms = {path.parent.name for path in (results.ROOT / "mlpkit").glob("*/__init__.py")}
    assert {room for room, inside in rows if inside} == rooms
    assert [room for room, inside in rows if not inside] == ["experiments"]


def test_an_evening_is_as_long_as_it_is_held_to():
    assert f"at most {AN_EVENING:,} lines" in TEXT


def test_its_pieces_of_python_run(monkeypatch, capsys, tmp_path):
    """On a few images: a whole epoch takes a minute. The reader's pictures are noise, some brighter."""
    whole = data.load()
    few = whole._replace(
        **{name: Split(*(a[:300] for a in getattr(whole, name))) for name in ("train", "validation", "test")}
    )
    monkeypatch.setattr(data, "load", lambda: few)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for i in range(40):
        path = tmp_path / "pets" / ("cat" if i % 2 else "dog") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(100, size=(40, 32, 3), dtype=np.uint8) + np.uint8(100 * (i % 2))).save(path)
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        exec(code, names)
    measures, accuracies = map(ast.literal_eval, capsys.readouterr().out.splitlines())
    assert 0 < measures["loss"] < 2.5
    assert 0 <= measures["accuracy"] <= 1
    assert len(accuracies) == Recipe().epochs
    assert names["pets"].train.X.shape == (36, 1, 28, 28)


def test_make_targets_exist():
    named = set(re.findall(r"^    make (\w+)|`make (\w+)", TEXT, re.MULTILINE))
    makefile = (results.ROOT / "Makefile").read_text()
    named = {first or second for first, second in named}
    assert {"run", "test", "lab"} <= named
    assert named <= set(re.findall(r"^(\w+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("content", [None, '{"cells": ['], ids=["missing", "broken"])
def test_what_is_no_notebook_is_refused_before_any_is_run(content, tmp_path):
    if content:
        (tmp_path / "a.ipynb").write_text(content)
    command = [sys.executable, results.ROOT / "tools" / "execute_notebooks.py", tmp_path / "a.ipynb"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "a.ipynb can't be read as a notebook" in done.stderr
    assert "Traceback" not in done.stderr
