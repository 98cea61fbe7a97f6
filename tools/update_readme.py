"""Write what README.md and results/README.md take from the published records and the chapters, and their pictures.

What stands between two markers is made here and nowhere else; a test fails when it is out of date. A machine whose
records are missing has no table, and an engine that a record does not hold has no row.
"""

import json
import re
import sys
import textwrap
from dataclasses import dataclass
from math import isclose

from experiments.lab import overview, results
from experiments.lab.results import brief
from mlpkit import plots
from mlpkit.engines import BASELINE
from mlpkit.files import write_atomically
from mlpkit.words import counted

README, TABLES = results.ROOT / "README.md", results.FOLDER / "README.md"
HEADLINE, STEPS = results.FOLDER / "headline.png", results.FOLDER / "steps.png"
ALT = "Dots at the microseconds a training step, on a logarithmic scale: a panel a machine, with the rows of the {}."
MARK = " \\*"  # a ratio to a time of NumPy that is not in the table
MINUTES = re.compile(r"The main line: about (\d+) minutes")  # in a chapter's first cell


@dataclass(frozen=True)
class Part:
    """A machine's part. columns: recipes as pairs (optimizer, batch size) of its long table; the first one sorts.

    story: its column of the README's short table, an engine or a peer a row, "" for none.
    """

    machine: str
    columns: tuple[tuple[str, int], ...]
    story: tuple[str, ...]
    groups: tuple[str, ...] = overview.GROUPS

    def times(self, column=0):
        """Return the medians of a column, in microseconds a step, fastest first; NumPy's whatever its group."""
        found = overview.step_us(self.machine, *self.columns[column])
        return {name: us for name, us in found.items() if overview.group(name) in self.groups or name == BASELINE}

    def told(self):
        """Return those of the first column's times that the story has, in its order."""
        times = self.times()
        return {name: times[name] for name in self.story if name in times}

    def heading(self):
        """Return as lines the machine, and the dates, the libraries, and how many threads NumPy's products have."""
        last = overview.of_steps(self.machine)[-1]
        facts, asked = last["machine"], last["settings"].get("libraries", {})
        versions = [f"{title} {asked[name]}" for name, title in LIBRARIES.items() if asked.get(name)]
        numpy = f"NumPy {facts['libraries']['numpy']} with {counted(facts['blas']['threads'], 'thread')}"
        said = ", ".join([overview.caption(self.machine), numpy, *versions])
        return [f"## {overview.title(self.machine)}", "", *_wrapped(f"{said}.")]


LIBRARIES = {"torch": "PyTorch", "jax": "JAX", "scikit-learn": "scikit-learn"}
PARTS = (
    Part(
        "amd-epyc-2-cores",
        (("sgd", 128), ("adam", 64)),
        ("numpy_baseline", "numba_step", "", "jax_epoch_cpu", ""),
    ),
    Part(
        "nvidia-h200",
        (("sgd", 128), ("adam", 64), ("adam", 128), ("sgd", 64)),
        ("numpy_baseline", "", "cupy_naive", "jax_epoch", "cuda_persistent"),
        groups=("ours, GPU", "others, GPU"),
    ),
)
PATHS = {
    "An afternoon": ("the network, and who trains it how fast", "00 01 12"),
    "A course": (
        "from NumPy to CUDA and to networks that see, in six weeks with [labs](labs/INSTRUCTORS.md)",
        "00 01 02 03 04 05 06 07 08 10 13 15",
    ),
    "I program GPUs": (
        "launches, graphs, and kernels up to the limit; what 01, 03 and 13 to 15 teach is taken as known",
        "07 08 09 10 11 a1 16 17 18 19",
    ),
    "At work": ("networks in files, services and pictures; two GPUs, and many trainings", "21 22 23 24 25 26 27"),
}


def recorded():
    """Return the parts for which there are records."""
    return [part for part in PARTS if part.machine in overview.machines()]


# Between the markers


def story():
    """Return the README's picture, its table, a row of the story each, and what its machines are."""
    parts = recorded()
    head = _row("microseconds a step", *(overview.title(part.machine) for part in parts))
    lines = [_image(HEADLINE, README, "table below"), "", head]
    lines.append("|---" + "|---:" * len(parts) + "|")
    times = [part.told() for part in parts]
    for names in zip(*(part.story for part in parts), strict=True):
        cells = [found.get(name) for found, name in zip(times, names, strict=True)]
        if any(cells):
            lines.append(_row(overview.label(next(filter(None, reversed(names)))), *map(_time, cells)))
    machines = "; ".join(overview.caption(part.machine) for part in parts)
    return "\n".join([*lines, "", *_wrapped(f"The machines: {machines}."), ""])


def paths():
    """Return the README's ways through the book: each a list of chapters, with the minutes of their main lines."""
    lines = []
    for name, (idea, numbers) in PATHS.items():
        minutes = {number: _minutes(_chapter(number)) for number in numbers.split()}
        linked = [f"[{n.upper()}](notebooks/{_chapter(n).name}) ({time})" for n, time in minutes.items()]
        text = f"- **{name}**, {sum(minutes.values())} minutes: {idea}. {', '.join(linked)}."
        lines += _wrapped(text, "  ")
    return "\n".join([*lines, ""])


def _chapter(number):
    (path,) = (results.ROOT / "notebooks").glob(f"{number}_*.ipynb")
    return path


def _minutes(chapter):
    """Return the minutes of a chapter's main line. Raises ValueError where its first cell does not say them."""
    first = json.loads(chapter.read_text(encoding="utf-8"))["cells"][0]
    if not (said := MINUTES.search("".join(first["source"]))):
        raise ValueError(f"{chapter.name} does not say in its first cell how many minutes its main line takes.")
    return int(said[1])


def tables():
    """Return the long tables, one a machine, and their picture."""
    lines = [line for part in recorded() for line in (*part.heading(), "", *rows(part), "")]
    return "\n".join([*lines, _image(STEPS, TABLES, "tables above"), ""])


def rows(part):
    """Return the lines of a machine's table. A ratio is of two times of one record, and marked if not NumPy's here."""
    first, *more = range(len(part.columns))
    times, others = part.times(first), [part.times(column) for column in more]
    ratios = overview.times_numpy(part.machine, *part.columns[first])
    heads = [f"{overview.TITLES[optimizer]}, batch {size}" for optimizer, size in part.columns]
    head = _row("who computes", "module", heads[0], "times NumPy's", *heads[1:])
    lines, others_numpy = [head, "|---|---" + "|---:" * (len(heads) + 1) + "|"], set()
    for name, us in times.items():
        ratio = _ratio(ratios.get(name))
        if name in ratios and not isclose(us / ratios[name], times[BASELINE]):
            ratio += MARK
            others_numpy.add(brief(us / ratios[name]))
        cells = [_time(us), ratio, *(_time(found.get(name)) for found in others)]
        lines.append(_row(overview.label(name), f"`{name}`", *cells))
    if others_numpy:
        lines += ["", f"{MARK.strip()} From another record, in which NumPy took {' or '.join(sorted(others_numpy))}."]
    return lines


def _row(*cells):
    return "| " + " | ".join(cells) + " |"


def _time(us):
    return brief(us) if us else ""


def _ratio(value):
    if value is None:
        return ""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.{2 if value >= 0.1 else 3 if value >= 0.01 else 4}f}"


def _wrapped(text, indent=""):
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _image(picture, page, listed):
    return f"![{ALT.format(listed)}]({picture.relative_to(page.parent).as_posix()})"


# The files

PAGES = {README: {"story": story, "paths": paths}, TABLES: {"tables": tables}}


def written(page):
    """Return a page's text with all that stands between its markers made anew. Raises ValueError where one lacks."""
    text = page.read_text(encoding="utf-8")
    for name, make in PAGES[page].items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page} has no {begin.strip()} ... {end} to write between; nothing is written.")
        text = before + begin + make() + end + after
    return text


def picture(times):
    """Return a figure: a panel a machine, with the times of its part, as `times` returns them."""
    panels = {overview.title(part.machine): times(part) for part in recorded()}
    return overview.dots(panels, "microseconds a step, SGD, batch 128")


def main() -> None:
    made = {page: written(page).encode() for page in PAGES}
    made |= {HEADLINE: plots.png(picture(Part.told)), STEPS: plots.png(picture(Part.times))}
    for path, content in made.items():
        write_atomically(path, content)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:  # a record is odd, a page lacks a marker, or a file can't be written
        sys.exit(f"{error}")
