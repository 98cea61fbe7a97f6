"""Write the README's headline, a table and a picture, from the published records.

What stands between the two markers is made here and nowhere else; a test fails when it is out of date.
"""

import re

import numpy as np

from mlpkit import plots, results

README = results.ROOT / "README.md"
PICTURE = results.FOLDER / "headline.png"
MARKED = re.compile(r"(?<=<!-- headline -->\n).*?(?=<!-- /headline -->)", re.DOTALL)
NAMES = {
    "numpy_baseline": "NumPy, this workbook",
    "python_lists": "Python lists",
    "python_loops": "Python loops over arrays",
    "plain_numpy": "NumPy, one plain script",
    "pytorch": "PyTorch",
    "pytorch_compiled": "PyTorch, compiled",
    "scikit_learn": "scikit-learn",
}
ALT = "Bars of microseconds a training step, on a logarithmic scale, for the libraries in the table above."


def medians() -> dict[str, float]:
    """Return microseconds a step by name, fastest first; the baseline's are those measured among its peers."""
    peers = {run["engine"]: run for run in results.published("peers")["runs"]}
    peers["numpy_baseline"] = peers.pop("mlpkit_numpy")
    engines = {run["engine"]: run for run in results.published("engines")["runs"]}
    found = {name: float(np.median(run["samples_us"])) for name, run in (engines | peers).items() if run["samples_us"]}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def headline(times: dict[str, float]) -> str:
    """Return what stands between the markers: the sentence, the table and the picture, as Markdown."""
    record = results.published("peers")
    recipe = record["settings"]["recipe"]
    rows = [
        f"| {NAMES[name]} | {time:,.0f} | {_ratio(time / times['numpy_baseline'])} |" for name, time in times.items()
    ]
    return "\n".join(
        [
            f"One training step ({'-'.join(map(str, recipe['sizes']))}, batch {recipe['batch_size']}, "
            f"{recipe['optimizer'].upper()}, {recipe['dtype']}), medians, on {results.caption(record)}:",
            "",
            "| | microseconds a step | against NumPy |",
            "|---|---:|---:|",
            *rows,
            "",
            f"![{ALT}]({PICTURE.relative_to(results.ROOT)})",
            "",
        ]
    )


def _ratio(value: float) -> str:
    return f"{value:,.0f} x" if value >= 10 else f"{value:.2f} x"


def main() -> None:
    times = medians()
    figure = plots.bars({NAMES[name]: time for name, time in times.items()}, "microseconds a step", log=True)
    PICTURE.write_bytes(plots.png(figure))
    text = README.read_text(encoding="utf-8")
    README.write_text(MARKED.sub(lambda _: headline(times), text), encoding="utf-8")


if __name__ == "__main__":
    main()
