"""Write the README's headline, a table for each machine and a picture, from the published records.

What stands between the two markers is made here and nowhere else; a test fails when it is out of date. A machine whose
records are missing has no table, and an engine that a record does not hold has no row.
"""

import re
import sys
from dataclasses import dataclass
from math import isclose

from experiments.lab import overview, results
from experiments.lab.results import brief
from mlpkit import plots
from mlpkit.engines import BASELINE
from mlpkit.files import write_atomically
from mlpkit.training.recipe import Recipe
from mlpkit.words import counted

README = results.ROOT / "README.md"
PICTURE = results.FOLDER / "headline.png"
ALT = (
    "Dots at the microseconds a training step, on a logarithmic scale, for what the tables above list, in their order."
)
MARK = " \\*"  # a ratio to a time of NumPy that is not in the table
MARKED = re.compile(r"(?<=<!-- headline -->\n).*?(?=<!-- /headline -->)", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """A machine's part of the headline. columns: recipes as pairs (optimizer, batch size); the first one sorts."""

    machine: str
    columns: tuple[tuple[str, int], ...]
    groups: tuple[str, ...] = overview.GROUPS

    def times(self, column=0):
        """Return the medians of a column, in microseconds a step, fastest first; NumPy's whatever its group."""
        found = overview.step_us(self.machine, *self.columns[column])
        return {name: us for name, us in found.items() if overview.group(name) in self.groups or name == BASELINE}

    def title(self):
        """Return the machine, the date, the libraries, and how many threads NumPy's products have."""
        last = overview.of_steps(self.machine)[-1]
        facts, asked = last["machine"], last["settings"].get("libraries", {})
        versions = [f"{title} {asked[name]}" for name, title in LIBRARIES.items() if asked.get(name)]
        numpy = f"NumPy {facts['libraries']['numpy']} with {counted(facts['blas']['threads'], 'thread')}"
        return ", ".join([overview.caption(self.machine), numpy, *versions])


LIBRARIES = {"torch": "PyTorch", "jax": "JAX", "scikit-learn": "scikit-learn"}
PARTS = (
    Part("amd-epyc-2-cores", (("sgd", 128), ("adam", 64))),
    Part("nvidia-h200", (("sgd", 128), ("adam", 64), ("adam", 128), ("sgd", 64)), groups=("ours, GPU", "others, GPU")),
)
STORY = (BASELINE, "cupy_naive", "jax_epoch", "cuda_persistent")


def headline():
    """Return what stands between the markers: the sentences, the tables and the picture, as Markdown."""
    network = "-".join(map(str, Recipe().model.sizes()))
    what = f"Microseconds a training step ({network}, {Recipe().dtype} but where TF32 or BF16 is named), medians. "
    parts = [*story(PARTS[-1]), what + "An empty cell was not measured.", ""]
    for part in recorded():
        parts += [f"**{part.title()}**", "", *rows(part), ""]
    return "\n".join([*parts, f"![{ALT}]({PICTURE.relative_to(results.ROOT).as_posix()})", ""])


def story(part):
    """Return the workbook's story in a sentence, and an empty line; or nothing, where a time of it is missing."""
    times = part.times()
    if not times.keys() >= set(STORY):
        return []
    numpy, naive, peer, ours = (brief(times[name]) for name in STORY)
    return [
        f"One training step, one machine: NumPy takes {numpy} microseconds, the same lines on the GPU {naive}, "
        f"JAX's scan over a whole epoch {peer}, and one CUDA kernel that trains the whole network {ours}.",
        "",
    ]


def recorded():
    """Return the parts for which there are records."""
    return [part for part in PARTS if part.machine in overview.machines()]


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


def picture():
    """Return the figure: a panel a machine, with the first column of its table."""
    panels = {overview.title(part.machine): part.times() for part in recorded()}
    return overview.dots(panels, "microseconds a step, SGD, batch 128")


def main() -> None:
    text, found = MARKED.subn(lambda _: headline(), README.read_text(encoding="utf-8"))
    if not found:
        sys.exit(f"{README} has no <!-- headline --> ... <!-- /headline --> to write between; it is left as it was.")
    write_atomically(PICTURE, plots.png(picture()))
    write_atomically(README, text.encode())


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:  # a record is odd, or a file can't be written
        sys.exit(f"{error}")
