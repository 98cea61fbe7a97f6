"""Write the README's headline, a table and a picture, from the published records.

What stands between the two markers is made here and nowhere else; a test fails when it is out of date.
"""

import re
from typing import Any

import numpy as np

from mlpkit import plots, results

README = results.ROOT / "README.md"
PICTURE = results.FOLDER / "headline.png"
MARKED = re.compile(r"(?<=<!-- headline -->\n).*?(?=<!-- /headline -->)", re.DOTALL)
NAMES = {
    "numba_step": "Numba, a whole step",
    "numba_hybrid": "NumPy's products, Numba between",
    "numpy_baseline": "NumPy, this workbook",
    "plain_numpy": "NumPy, one plain script",
    "pytorch": "PyTorch",
    "pytorch_compiled": "PyTorch, compiled",
    "scikit_learn": "scikit-learn",
    "numba_blocked": "Numba loops, blocked product",
    "numba_parallel": "Numba loops, parallel",
    "numba_fastmath": "Numba loops, parallel, fastmath",
    "numba_serial": "Numba loops",
    "python_lists": "Python lists",
    "python_loops": "Python loops over arrays",
}
BASELINE = "numpy_baseline"
COLUMNS: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "batch_size": 128},
    {"optimizer": "adam", "batch_size": 64},
)
ALT = "Bars of microseconds a training step, on a logarithmic scale, for what the table above lists, in its order."


def medians(experiment: str, **wanted: object) -> dict[str, float]:
    """Return the median microseconds a step of each engine in a record, of the runs with the wanted recipe."""
    runs = results.published(experiment)["runs"]
    found = [run for run in runs if wanted.items() <= run.get("recipe", wanted).items() and run["samples_us"]]
    return {run["engine"]: float(np.median(run["samples_us"])) for run in found}


def measured() -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return the times at COLUMNS[0], fastest first, how many times NumPy's each is, and the times at COLUMNS[1].

    Each ratio has both of its times from one record: where an engine is in both records, that of the peers counts.
    """
    times: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for experiment in ("engines", "peers"):
        found = medians(experiment, **COLUMNS[0])
        times |= found
        ratios |= {name: time / found[BASELINE] for name, time in found.items()}
    return dict(sorted(times.items(), key=lambda item: item[1])), ratios, medians("peers", **COLUMNS[1])


def headline() -> str:
    """Return what stands between the markers: the sentence, the table and the picture, as Markdown."""
    record = results.published("peers")
    recipe = record["runs"][0]["recipe"]
    times, ratios, others = measured()
    rows = [
        f"| {NAMES[name]} | {time:,.0f} | {_ratio(ratios[name])} | {f'{others[name]:,.0f}' if name in others else ''} |"
        for name, time in times.items()
    ]
    first, second = (f"{_title(column['optimizer'])}, batch {column['batch_size']}" for column in COLUMNS)
    return "\n".join(
        [
            f"Microseconds a training step ({'-'.join(map(str, recipe['sizes']))}, {recipe['dtype']}), medians, on "
            f"{results.caption(record)}, {record['machine']['blas']['threads']} threads:",
            "",
            f"| | {first} | times NumPy's | {second} |",
            "|---|---:|---:|---:|",
            *rows,
            "",
            f"![{ALT}]({PICTURE.relative_to(results.ROOT).as_posix()})",
            "",
        ]
    )


def _title(optimizer: str) -> str:
    return {"sgd": "SGD", "adam": "Adam"}[optimizer]


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def main() -> None:
    times = {NAMES[name]: time for name, time in measured()[0].items()}
    PICTURE.write_bytes(plots.png(plots.bars(times, "microseconds a step, SGD, batch 128", log=True)))
    text = README.read_text(encoding="utf-8")
    README.write_text(MARKED.sub(lambda _: headline(), text), encoding="utf-8")


if __name__ == "__main__":
    main()
