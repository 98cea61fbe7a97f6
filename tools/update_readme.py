"""Write the README's headline, a table for each machine and a picture, from the published records.

What stands between the two markers is made here and nowhere else; a test fails when it is out of date. A machine whose
records are missing has no table, and an engine that a record does not hold has no row.
"""

import re
from dataclasses import dataclass

from mlpkit import overview, plots, results
from mlpkit.bench import BASELINE, brief
from mlpkit.recipe import Recipe

README = results.ROOT / "README.md"
PICTURE = results.FOLDER / "headline.png"
ALT = "Bars of microseconds a training step, on a logarithmic scale, for what the tables above list, in their order."
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
        """Return the machine, the date, and how many threads NumPy's products have."""
        facts = next(filter(None, (overview.record(name, self.machine) for name in overview.STEPS)))["machine"]
        return f"{overview.caption(self.machine)}, NumPy with {facts['blas']['threads']} threads"


PARTS = (
    Part("amd-epyc-2-cores", (("sgd", 128), ("adam", 64))),
    Part("nvidia-h200", (("sgd", 128), ("adam", 128), ("sgd", 64)), ("ours, GPU", "others, GPU")),
)


def headline():
    """Return what stands between the markers: the sentence, the tables and the picture, as Markdown."""
    network = "-".join(map(str, Recipe().sizes))
    parts = [f"Microseconds a training step ({network}, {Recipe().dtype} but where TF32 is named), medians.", ""]
    for part in recorded():
        parts += [f"**{part.title()}**", "", *rows(part), ""]
    return "\n".join([*parts, f"![{ALT}]({PICTURE.relative_to(results.ROOT).as_posix()})", ""])


def recorded():
    """Return the parts for which there are records."""
    return [part for part in PARTS if part.machine in overview.machines()]


def rows(part):
    """Return the lines of a machine's table."""
    first, *more = range(len(part.columns))
    times, others = part.times(first), [part.times(column) for column in more]
    ratios = overview.times_numpy(part.machine, *part.columns[first])
    heads = [f"{overview.TITLES[optimizer]}, batch {size}" for optimizer, size in part.columns]
    lines = [_row("", heads[0], "times NumPy's", *heads[1:]), "|---" + "|---:" * (len(heads) + 1) + "|"]
    for name, us in times.items():
        cells = [_time(us), _ratio(ratios.get(name)), *(_time(found.get(name)) for found in others)]
        lines.append(_row(overview.label(name), *cells))
    return lines


def _row(*cells):
    return "| " + " | ".join(cells) + " |"


def _time(us):
    return brief(us) if us else ""


def _ratio(value):
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def picture():
    """Return the figure: a panel a machine, with the first column of its table."""
    panels = {overview.title(part.machine): part.times() for part in recorded()}
    return overview.bars(panels, "microseconds a step, SGD, batch 128")


def main() -> None:
    PICTURE.write_bytes(plots.png(picture()))
    text = README.read_text(encoding="utf-8")
    README.write_text(MARKED.sub(lambda _: headline(), text), encoding="utf-8")


if __name__ == "__main__":
    main()
