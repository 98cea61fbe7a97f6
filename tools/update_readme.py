"""Write the README's headline, a table and a picture, from the published records.

What stands between the two markers is made here and nowhere else; a test fails when it is out of date.
"""

import re

import numpy as np

from mlpkit import plots, results

README = results.ROOT / "README.md"
PICTURE = results.FOLDER / "headline.png"
MARKED = re.compile(r"(?<=<!-- headline -->\n).*?(?=<!-- /headline -->)", re.DOTALL)
NUMPY = "NumPy, this workbook"
PEERS = {
    "plain_numpy": "NumPy, one plain script",
    "pytorch": "PyTorch",
    "pytorch_compiled": "PyTorch, compiled",
    "scikit_learn": "scikit-learn",
}
PYTHON = {"python_lists": "Python lists", "python_loops": "Python loops over arrays"}
TABLES = [("peers", PEERS, {"mlpkit_numpy": NUMPY}), ("engines", PYTHON, {"numpy_baseline": NUMPY})]
ALT = "Bars of microseconds a training step, on a logarithmic scale, for the libraries in the table above."


def medians(experiment: str, names: dict[str, str]) -> dict[str, float]:
    """Return a record's median microseconds a step, by name, of the runs that `names` lists."""
    runs = {run["engine"]: run["samples_us"] for run in results.published(experiment)["runs"]}
    return {title: float(np.median(runs[name])) for name, title in names.items() if runs.get(name)}


def measured() -> tuple[dict[str, float], dict[str, float]]:
    """Return the times by name, fastest first, and how many times NumPy's each is, NumPy measured in the same run."""
    times: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for experiment, names, baseline in TABLES:
        found = medians(experiment, names | baseline)
        (numpy,) = (found[title] for title in baseline.values())
        times |= {title: time for title, time in found.items() if title not in times}
        ratios |= {title: time / numpy for title, time in found.items() if title not in ratios}
    return dict(sorted(times.items(), key=lambda item: item[1])), ratios


def headline() -> str:
    """Return what stands between the markers: the sentence, the table and the picture, as Markdown."""
    record = results.published("peers")
    recipe = record["settings"]["recipe"]
    times, ratios = measured()
    rows = [f"| {title} | {time:,.0f} | {_ratio(ratios[title])} |" for title, time in times.items()]
    return "\n".join(
        [
            f"One training step ({'-'.join(map(str, recipe['sizes']))}, batch {recipe['batch_size']}, "
            f"{recipe['optimizer'].upper()}, {recipe['dtype']}), medians, on {results.caption(record)}, "
            f"{record['machine']['blas']['threads']} BLAS threads:",
            "",
            "| | microseconds a step | times NumPy's |",
            "|---|---:|---:|",
            *rows,
            "",
            f"![{ALT}]({PICTURE.relative_to(results.ROOT).as_posix()})",
            "",
        ]
    )


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def main() -> None:
    PICTURE.write_bytes(plots.png(plots.bars(measured()[0], "microseconds a step", log=True)))
    text = README.read_text(encoding="utf-8")
    README.write_text(MARKED.sub(lambda _: headline(), text), encoding="utf-8")


if __name__ == "__main__":
    main()
