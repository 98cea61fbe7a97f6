"""A chapter fits a lab and a phone: its main line 90 minutes, its lines and figures a page; and words have entries."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from experiments.lab import results

FOLDER = results.ROOT / "notebooks"
CHAPTERS = {path.name[:2]: path for path in sorted(FOLDER.glob("*_*.ipynb"))}
GLOSSARY = FOLDER / "glossary.md"
TIMED = re.compile(r"The main line: about (\d+) minutes")
HEADING = re.compile(r"(?m)^(#+) (.*)$")
OURS = {
    line
    for package in ("mlpkit", "experiments")
    for path in results.ROOT.glob(f"{package}/**/*.py")
    for line in path.read_text(encoding="utf-8").splitlines()
}
ANSWER = re.compile(r"<details>.*?</details>", re.DOTALL)


def cells(path: Path, kind: str) -> list[dict]:
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell | {"text": "".join(cell["source"])} for cell in found if cell["cell_type"] == kind or kind == "any"]


def words(cell):
    """Return what a reader reads: no answers, and no code in which a line may begin with a hash."""
    return re.sub(r"(?s)```.*?```", "", ANSWER.sub("", cell["text"]))


def outputs(path):
    for cell in cells(path, "code"):
        for output in cell["outputs"]:
            yield cell["id"], output


def minutes(path):
    """Return how long the main line takes, by the rule that chapter 00 gives; a section is optional to its end."""
    total, optional = 0.0, 0  # the level of the heading that is optional
    for cell in cells(path, "any"):
        if cell["cell_type"] == "code":
            lines = len(re.findall(r"(?m)^.*\w", cell["text"]))  # a bracket alone takes nobody's time
            draws = re.search(r"\bplots\.|\baxes\.", cell["text"])
            total += 0 if optional else lines / (20 if draws else 10)
            continue
        for part in re.split(r"(?m)^(?=#+ )|^(?=\*\*\d+\. )", ANSWER.sub("", cell["text"])):
            if heading := HEADING.match(part):
                level = len(heading[1])
                if not optional or level <= optional:
                    optional = level if "Optional" in heading[2] else 0
            exercise = re.match(r"\*\*\d+\. (Optional)?", part)
            if optional or (exercise and exercise[1]):
                continue
            formulas = len(re.findall(r"(?s)\$\$.*?\$\$", part))
            predictions = len(re.findall(r"\*\*Predict:?\*\*", part, re.IGNORECASE))
            text = re.sub(r"(?s)\$\$.*?\$\$|`[^`]*`", "formula", part)
            total += len(text.split()) / 200 + formulas + predictions + (6 if exercise else 0)
    return total


@pytest.mark.parametrize("number", CHAPTERS)
def test_the_main_line_fits_ninety_minutes_and_the_chapter_says_how_many(number):
    path = CHAPTERS[number]
    said = int(TIMED.search(cells(path, "markdown")[0]["text"])[1])
    assert minutes(path) <= said <= 90


@pytest.mark.parametrize("number", CHAPTERS)
def test_headings_leave_out_no_level_and_no_number(number):
    levels, sections = [], []
    for cell in cells(CHAPTERS[number], "markdown"):
        text = words(cell)
        levels += [len(hashes) for hashes, _ in HEADING.findall(text)]
        sections += [int(n) for n in re.findall(r"(?m)^## (\d+)\. ", text)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
    assert sections == list(range(1, len(sections) + 1))


@pytest.mark.parametrize("number", CHAPTERS)
def test_every_column_of_a_table_has_a_name(number):
    for cell in cells(CHAPTERS[number], "markdown"):
        for header in re.findall(r"(?m)^(\|.*)\n\|[ :|-]+$", words(cell)):
            assert all(name.strip() for name in header.strip(" |").split("|")), (cell["id"], header)
            assert not re.match(r"\|\s*\|", header), (cell["id"], header)


@pytest.mark.parametrize("number", CHAPTERS)
def test_code_and_what_it_prints_fit_a_page(number):
    for cell in cells(CHAPTERS[number], "code"):
        lines = cell["text"].splitlines()
        assert len(lines) <= 20, cell["id"]
        assert max(map(len, lines)) <= 88, cell["id"]
    for name, output in outputs(CHAPTERS[number]):
        for line in "".join(output.get("text", "")).splitlines():
            assert len(line) <= 88 or line in OURS, (name, line)  # the package's own code is shown as it stands


@pytest.mark.parametrize("number", CHAPTERS)
def test_figures_fit_a_phone(number):
    """At 432 points a phone of 390 shows letters of 11 points at 10."""
    for name, output in outputs(CHAPTERS[number]):
        widths = [output.get("metadata", {}).get("image/png", {}).get("width", 0)]
        widths += map(int, re.findall(r'<img [^>]*width="(\d+)"', "".join(output.get("data", {}).get("text/html", ""))))
        assert max(widths) <= 432, (name, widths)


@pytest.mark.parametrize("number", CHAPTERS)
def test_every_exercise_has_an_answer(number):
    for cell in cells(CHAPTERS[number], "markdown"):
        exercises = len(re.findall(r"(?m)^\*\*\d+\. ", cell["text"]))
        assert exercises == len(ANSWER.findall(cell["text"])), cell["id"]


# The glossary


def entries():
    found = re.split(r"(?m)^## ", GLOSSARY.read_text(encoding="utf-8"))[1:]
    return dict(entry.strip().split("\n\n", 1) for entry in found)


def test_glossary_is_in_order_and_brief():
    assert list(entries()) == sorted(entries(), key=str.lower)
    for word, text in entries().items():
        meaning, chapters = re.fullmatch(r"(?s)(.*[.])\s\[([a0-9, ]+)\]", text).groups()
        sentences = re.split(r"(?<=[.:])\s+(?=[A-Z])", meaning)
        assert 1 <= len(sentences) <= 4, word
        assert set(chapters.split(", ")) <= set(CHAPTERS), word


def test_every_link_to_the_glossary_leads_to_an_entry_and_every_chapter_of_an_entry_is_there():
    anchors = {word.lower().replace(" ", "-") for word in entries()}
    linked = set()
    for path in CHAPTERS.values():
        linked |= set(re.findall(r"\(glossary\.md#([^)]*)\)", path.read_text(encoding="utf-8")))
    assert linked <= anchors
    assert linked
