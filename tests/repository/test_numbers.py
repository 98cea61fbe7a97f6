"""Every number with a unit in the text of a chapter, a README or the change log has an entry in `numbers.toml`.

An entry is a phrase as it stands in the text, and one of three reasons:

- `derived`: an expression over the records. Its value, rounded to the digits in the text, is the number; a list stands
  for several numbers, and True for a claim that holds.
- `printed`: the id of a cell that prints the number, and whose output nbval compares with a fresh run.
- `given`: where the number comes from, if nothing here measures or computes it.

So a record that changes, a sentence that changes and an entry that nothing needs any more each fail here, with the
sentence.
"""

import ast
import json
import math
import re
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import experiments
from experiments.lab import overview, results, trainings
from mlpkit import data
from mlpkit.nn.models import MLP

ROOT = results.ROOT
TABLE = tomllib.loads(Path(__file__).with_name("numbers.toml").read_text(encoding="utf-8"))
PAGES = ["README.md", "results/README.md", "binder/README.md", "CHANGELOG.md"]
PAGES += [f"notebooks/{path.name}" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
CPU, GPU = results.CHAPTERS

WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
WORDS |= {
    "eleven": 11,
    "twelve": 12,
    "fifteen": 15,
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "hundred": 100,
}
DIGITS = r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?"
NUMBER = rf"(?<![/^·*×$-])(?:{DIGITS}|\b(?:{'|'.join(WORDS)})\b)"
TIME = r"µs|us|ns|ms|(?:micro|milli|nano)?seconds?|(?<= )s"
SIZE = r"[kKMGT]i?B(?:/s)?|[kMGT]?FLOPs?(?:/s)?|[MG]Hz|cycles?"
COMPARED = r"as|more|less|faster|slower|longer|shorter|higher|larger|smaller|better|the|its|NumPy"
TIMES = rf"times(?= (?:{COMPARED})\b)|(?<=\d )(?:times|x)(?=[,.;:)]| and not)"
UNIT = rf"(?:{TIME}|{SIZE}|{TIMES}|%|per ?cent|(?<=\d )points?)(?![\w/])"
RANGE = rf"(?:(?: to | or | and |, |-|–){NUMBER})*"
MEASURED = re.compile(rf"(?<=factor of )(?:\w+ )?{NUMBER}|{NUMBER}(?={RANGE}[  -]?{UNIT})", re.IGNORECASE)


READ: set[str] = set()  # what the machines are called whose records an expression has read


def record(name, machine=None):
    """Return a published record: that of a machine, where two have one of this name."""
    found = overview.record(name, machine) if machine else results.published(name)
    READ.add(_short(found["machine"]["gpu"].get("name") or found["machine"]["cpu"]))
    return found


def _short(machine):
    """Return how a text calls a machine: H200, Xeon, EPYC."""
    return next((name for name in ("H100", "H200", "Xeon", "EPYC") if name.lower() in machine.lower()), machine)


def runs(name, machine=None, /, **wanted):
    return results.runs(record(name, machine), **wanted)


def step_us(engine, optimizer="sgd", batch_size=128, machine=CPU):
    """Return the microseconds of a step, as the table in results/README.md has them."""
    READ.add(_short(machine))
    return overview.step_us(machine, optimizer, batch_size)[engine]


# What an expression may use.
NAMES = {
    "math": math,
    "np": np,
    "ROOT": ROOT,
    "CPU": CPU,
    "GPU": GPU,
    "PARAMETERS": MLP.layout.size,
    "median": results.median,
    "median_us": results.median_us,
    "data": data,
    "overview": overview,
    "trainings": trainings,
    **{function.__name__: function for function in (record, runs, step_us)},
    **{name: experiments.load(name) for name in experiments.names()},  # each knows how to read its record
}


def _plain(text):
    """Return Markdown without blocks of code and the targets of links, and with single spaces only."""
    return re.sub(r"\s+", " ", re.sub(r"```.*?```|(?<=\])\([^)\s]+\)", " ", text, flags=re.DOTALL))


@cache
def _cells(page):
    return json.loads((ROOT / page).read_text(encoding="utf-8"))["cells"]


@cache
def paragraphs(page):
    """Return a page's texts as pairs (where, text): its Markdown, and the texts that stand for pictures."""
    if page.endswith(".md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        return [("", _plain(re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL)))]
    found = []
    for index, cell in enumerate(_cells(page)):
        source = "".join(cell["source"])
        texts = [source] if cell["cell_type"] == "markdown" else _alts(source)
        found += [(f"[{index}] {cell['id']}", _plain(text)) for text in texts]
    return found


def _alts(source):
    """Return the texts named `alt`, each with what `alt +=` adds to it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.AugAssign) and isinstance(node.value, ast.Constant):
            adds, target = (False, node.targets[0]) if isinstance(node, ast.Assign) else (True, node.target)
            if ast.unparse(target) == "alt":
                found = [*found[:-1], found[-1] + node.value.value] if adds else [*found, node.value.value]
    return found


def printed(page, cell_id):
    """Return what a cell of a page prints: nothing, unless it is a cell whose output nbval compares."""
    cells = [cell for cell in _cells(page) if cell["id"] == cell_id]
    strict = [cell for cell in cells if "nbval-ignore-output" not in cell["metadata"].get("tags", [])]
    return "".join("".join(output.get("text", "")) for cell in strict for output in cell.get("outputs", []))


def says(number, value):
    """Is a number in a text a value, rounded to the number's digits?"""
    if number.lower() in WORDS:
        return round(value) == WORDS[number.lower()]
    return f"{value:.{len(number.partition('.')[2])}f}" == number.replace(",", "")


def _numbers(text, phrase):
    """Return the numbers in a phrase where it first stands in the text: those in digits, and words with a unit."""
    begin = text.index(phrase)
    matches = [*MEASURED.finditer(text), *re.finditer(DIGITS, text)]
    found = {m.span(): m[0] for m in matches if begin <= m.start() and m.end() <= begin + len(phrase)}
    return [re.sub(r"^\w+ (?=\w)", "", found[span]) for span in sorted(found)]


def mistake(page, phrase, kind, reason):
    """Return what is wrong with an entry, or None."""
    text = next((text for _, text in paragraphs(page) if phrase in text), None)
    if text is None:
        return "is not in the text any more"
    if not (numbers := _numbers(text, phrase)):
        return "holds no number with a unit"
    return CHECKS[kind](page, numbers, reason) if kind in CHECKS else f"has a reason of no known kind: {kind}"


@cache
def value_of(expression):
    """Return an expression's value, and what the machines are called whose records it has read."""
    READ.clear()
    return eval(expression, dict(NAMES)), frozenset(READ)


def _derived(page, numbers, expression):
    try:
        values, _ = value_of(expression)
    except Exception as error:  # a record without what it asks for: the others are still looked at
        return f"can't be computed ({type(error).__name__}: {error}): {expression}"
    if isinstance(values, bool | np.bool_):
        return None if values else f"does not hold: {expression}"
    values = list(np.atleast_1d(values))
    if len(values) == len(numbers) and all(map(says, numbers, values)):
        return None
    return f"should have {', '.join(f'{value:,.4g}' for value in values)}: {expression}"


def _printed(page, numbers, cell_id):
    shown = [float(token.replace(",", "")) for token in re.findall(DIGITS, printed(page, cell_id))]
    missing = [number for number in numbers if not any(says(number, value) for value in shown)]
    return f"has {', '.join(missing)}, which {cell_id} does not print, or not every time" if missing else None


def _given(page, numbers, source):
    return None if source.strip() else "has no source"


CHECKS = {"derived": _derived, "printed": _printed, "given": _given, "across": _given}


def mixed(page):
    """Return the sentences with numbers of several machines that stand in a text which does not name each of them."""
    found: dict = {}
    for phrase, entry in _entries(page).items():
        of = value_of(entry["derived"])[1] if "derived" in entry and "across" not in entry else ()
        for where, text in paragraphs(page):
            for sentence in re.split(r"(?<=[.!?])\)? ", text) if phrase in text and of else ():
                if phrase in sentence:
                    found.setdefault((where, sentence, text), set()).update(of)
    return [
        f"{page} {where}: {sentence!r} compares {', '.join(sorted(of))}"
        for (where, sentence, text), of in found.items()
        if len(of) > 1 and not all(name in text for name in of)
    ]


def unexplained(page):
    """Return each number with a unit that no entry holds, with its sentence."""
    found = []
    for where, text in paragraphs(page):
        entered = [m.span() for phrase in _entries(page) for m in re.finditer(re.escape(phrase), text)]
        for match in MEASURED.finditer(text):
            if not any(begin <= match.start() and match.end() <= end for begin, end in entered):
                around = text[max(0, match.start() - 60) : match.end() + 40]
                found.append(f"{page} {where}: {match[0]!r} in {around!r}")
    return found


def _section(page):
    """Return the name of a page's section: its own, and that of its folder where all folders may have such a page."""
    path = Path(page)
    return path.parent.name if path.name == "README.md" and path.parent.name else path.stem


def _entries(page):
    return TABLE.get(_section(page), {})


def test_what_is_a_number_with_a_unit():
    text = "In 1995 it took 1,613 us, or 0.5 to 12 ms; that is ten times faster, 2.4 x, a factor of two, 3 GB/s, 7 %."
    assert [match[0] for match in MEASURED.finditer(text)] == ["1,613", "0.5", "12", "ten", "2.4", "two", "3", "7"]
    assert not MEASURED.search("Section 3 has 128 rows of two points, $2^5$ bytes, and is read four times.")


def test_the_table_names_pages_only():
    assert len({*map(_section, PAGES)}) == len(PAGES)
    assert set(TABLE) <= {*map(_section, PAGES)}


@pytest.mark.parametrize("page", PAGES)
def test_every_number_with_a_unit_has_an_entry(page):
    found = unexplained(page)
    assert not found, "\n".join(["no entry in numbers.toml for", *found])


@pytest.mark.parametrize("page", PAGES)
def test_every_number_is_what_its_entry_says(page):
    reasons = [(phrase, *reason) for phrase, entry in _entries(page).items() for reason in entry.items()]
    found = [(phrase, mistake(page, phrase, *reason)) for phrase, *reason in reasons]
    wrong = [f"{page}: {phrase!r} {what}" for phrase, what in found if what]
    assert not wrong, "\n".join(wrong)


def test_a_sentence_whose_numbers_are_of_several_machines_is_found(monkeypatch):
    of = {"7 us": {"derived": "record('gpu_peers')"}, "9 us": {"derived": "record('peers')"}}
    monkeypatch.setitem(TABLE, "page", of)
    for text, count in (
        ("It takes 7 us. That takes 9 us.", 0),
        ("7 us, not 9 us.", 1),
        ("An H200: 7 us, an EPYC: 9 us.", 0),
    ):
        monkeypatch.setattr(f"{__name__}.paragraphs", lambda page, text=text: [("", text)])
        assert len(mixed("page.ipynb")) == count


@pytest.mark.parametrize("page", PAGES)
def test_one_comparison_has_one_machine(page):
    found = mixed(page)
    assert not found, "\n".join(["name each machine, or say in numbers.toml, by `across`, why not:", *found])


def test_a_ratio_in_a_table_is_that_of_its_times_or_is_marked():
    """Both times of a ratio are from one record, and a table may have another record's for NumPy."""
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8").partition("<!-- /tables -->")[0]
    checked = 0
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if "`" in line]
        times = {module: float(us.replace(",", "")) for _, _, module, us, *_ in rows}
        for _, _, module, _, ratio, *_ in (row for row in rows if "\\*" not in row[4]):
            checked += 1
            assert float(ratio.replace(",", "")) == pytest.approx(times[module] / times["`numpy_baseline`"], rel=0.05)
    assert checked > 20
