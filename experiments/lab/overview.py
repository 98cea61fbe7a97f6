"""Every engine and every peer of a machine, from whatever records there are of it.

Each function takes the name of a machine, which is that of its folder in `results/`, and returns a dict by the name of
the engine or peer. What no record holds is not in it: a machine without a GPU has no GPU engines, an engine that was
written later than a record was made appears when the record is made again.
"""

import ast
from functools import lru_cache, wraps
from pathlib import Path

import numpy as np

from experiments import agreement, goal, gpu_image_peers, gpu_peers, peers
from experiments import compile as compiling
from mlpkit import engines, plots
from mlpkit.engines import BASELINE
from mlpkit.plots.charts import group_styles, whole_decade
from mlpkit.training.recipe import Recipe
from mlpkit.words import counted

from . import lines, results
from .results import brief, median_us

STEPS = ("engines", "peers", "gpu_peers")  # the records with times of steps, the last word last
GROUPS = ("ours, CPU", "others, CPU", "ours, GPU", "others, GPU")
# What products are made of, in a network without convolutions: there both of ours multiply TF32.
TF32 = (
    *("pytorch_cuda_graph_tf32", "pytorch_cuda_streams_tf32", "jax_epoch_default"),
    *("cuda_conv_graph_tf32", "cuda_conv_graph_bf16"),
)
BF16 = ("pytorch_cuda_streams_bf16", "pytorch_cuda_graph_bf16", "jax_epoch_bf16")
LESS_PRECISE = TF32 + BF16
TITLES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


def _reads(function):
    """Have a function of a machine raise RecordError, in one sentence that names it, where its records are odd."""
    read = results.reads(function)

    @wraps(function)
    def read_of(machine, *arguments, **options):
        try:
            return read(machine, *arguments, **options)
        except results.RecordError as error:
            if machine in str(error):  # or the file is named
                raise
            raise results.RecordError(f"of {machine}: {error}") from error

    return read_of


def label(name):
    """Return an engine's or a peer's name in words: its docstring up to the first colon. Nothing is imported."""
    if name in engines.names():
        return engines.label(name)
    path = lines.place(name)
    text = path and ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return text.partition(":")[0] if text else name.replace("_", " ")


def group(name):
    """Return the one of GROUPS that an engine or a peer belongs to."""
    ours = name in engines.names()
    on_gpu = engines.on_gpu(name) if ours else name in gpu_peers.PLAN.others + gpu_image_peers.PLAN.others
    return f"{'ours' if ours else 'others'}, {'GPU' if on_gpu else 'CPU'}"


def machines(folder=results.FOLDER):
    """Return the names of the machines with published times of engines or peers, those without a GPU first."""
    paths = [path for name in STEPS for path in Path(folder).glob(f"*/{name}.json")]
    published = sorted(path for path in paths if path.parent.name != results.MINE)
    names = {path.parent.name: results.load_of(path.stem, path)["machine"]["gpu"]["found"] for path in published}
    return sorted(names, key=lambda name: (names[name], name))


def record(experiment, machine, folder=results.FOLDER):
    """Return a machine's record of an experiment, None where there is none."""
    path = Path(folder) / machine / f"{experiment}.json"
    return _load(path, path.stat().st_mtime_ns) if path.exists() else None


@lru_cache(maxsize=32)
def _load(path, written_ns):
    return results.load_of(path.stem, path)


@_reads
def caption(machine, folder=results.FOLDER):
    """Return what the machine is and the dates of its records of engines and peers, in one line."""
    found = of_steps(machine, folder)
    facts, dates = found[0]["machine"], sorted({entry["date"][:10] for entry in found})
    what = f"{facts['gpu']['name']} with " if facts["gpu"]["found"] else ""
    when = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    return f"{what}{facts['cpu']}, {counted(facts['cores'], 'core')}, {when}"


@_reads
def title(machine, folder=results.FOLDER):
    """Return the machine in a few words: its GPU, or its processor and cores."""
    facts = of_steps(machine, folder)[0]["machine"]
    return facts["gpu"]["name"] if facts["gpu"]["found"] else f"{facts['cpu']}, {counted(facts['cores'], 'core')}"


def of_steps(machine, folder=results.FOLDER):
    """Return a machine's records with times of steps. Raises FileNotFoundError where there is none."""
    if found := _records(machine, folder, *STEPS):
        return found
    raise FileNotFoundError(f"no record of {' or '.join(STEPS)} in {Path(folder) / machine}: run one of them there.")


def _records(machine, folder, *experiments):
    """Return those of a machine's records that there are, in the order of their names here."""
    return [found for name in experiments if (found := record(name, machine, folder))]


def _runs(machine, folder, *experiments):
    """Return the runs of all of a machine's records with these names."""
    return [run for found in _records(machine, folder, *experiments) for run in found["runs"]]


@_reads
def step_us(machine, optimizer="sgd", batch_size=128, folder=results.FOLDER):
    """Return medians, in microseconds a step, fastest first. Where an engine is in two records, its peers' counts."""
    found: dict[str, float] = {}
    for times in _by_record(machine, optimizer, batch_size, folder):
        found |= times
    return dict(sorted(found.items(), key=lambda item: item[1]))


@_reads
def times_numpy(machine, optimizer="sgd", batch_size=128, folder=results.FOLDER):
    """Return how many times NumPy's each time of `step_us` is. Both times of a ratio are from one record."""
    found: dict[str, float] = {}
    for times in _by_record(machine, optimizer, batch_size, folder):
        if BASELINE in times:
            found |= {name: us / times[BASELINE] for name, us in times.items()}
    return found


def _by_record(machine, optimizer, batch_size, folder):
    """Yield for each record of steps the medians of the runs with a recipe."""
    for kept in _records(machine, folder, *STEPS):
        pairs = [(run.get("recipe") or kept["settings"]["recipe"], run) for run in kept["runs"] if run["samples_us"]]
        wanted = optimizer, batch_size
        yield {run["engine"]: median_us(run) for r, run in pairs if (r["optimizer"], r["batch_size"]) == wanted}


@_reads
def recipes(machine, folder=results.FOLDER):
    """Return the recipes with which steps were timed, as pairs (optimizer, batch size), the workbook's usual first."""
    wanted = [(recipe.optimizer, recipe.batch_size) for recipe in (Recipe(), *peers.RECIPES)]
    return [pair for pair in dict.fromkeys(wanted) if len(step_us(machine, *pair, folder)) > 1]


@_reads
def goals(machine, folder=results.FOLDER):
    """Return by engine a dict of (seconds, is it an estimate?) by percent, the quickest to the last goal first."""
    found: dict[str, dict[int, tuple[float, bool]]] = {}
    for case in _runs(machine, folder, "goal"):
        if not case["why_not"]:
            found.setdefault(case["engine"], {})[case["goal"]] = goal.seconds(case), goal.is_estimate(case)
    return dict(sorted(found.items(), key=lambda item: [seconds for seconds, _ in reversed(item[1].values())]))


@_reads
def waits(machine, folder=results.FOLDER):
    """Return by engine the seconds until its first step is done, (with empty caches, with filled ones)."""
    found: dict[str, tuple[float, float]] = {}
    for kept in _records(machine, folder, "compile", "gpu_compile"):
        for name in dict.fromkeys(case["engine"] for case in kept["runs"] if case["samples_s"]):
            empty, filled = (compiling.wait_s(kept, name, cache) for cache in compiling.CACHES)
            found[name] = empty, filled
    return found


@_reads
def starts(machine, folder=results.FOLDER):
    """Return by peer the seconds that its first process took to import, compile and take 20 steps; caches as found."""
    found: dict[str, float] = {}
    for run in _runs(machine, folder, "peers", "gpu_peers"):
        if run.get("start_seconds") and run["engine"] not in engines.names():
            found.setdefault(run["engine"], run["start_seconds"][0])  # of the first recipe: it imports
    return found


def trainings(machine, folder=results.FOLDER):
    """Return the runs of whole trainings with the usual recipe, of all engines from all seeds."""
    return _runs(machine, folder, "agreement", "gpu_agreement")


@_reads
def accuracies(machine, folder=results.FOLDER):
    """Return by engine the test accuracies of its trainings with the usual recipe, one a seed."""
    return agreement.accuracies({"runs": trainings(machine, folder)})


@_reads
def loss_errors(machine, folder=results.FOLDER):
    """Return by engine the largest relative difference of a first loss from the baseline's, over all seeds."""
    found: dict[str, float] = {}
    for run in trainings(machine, folder):
        found[run["engine"]] = max(found.get(run["engine"], 0.0), run["max_loss_error"])
    return found


@_reads
def break_even(machine, folder=results.FOLDER):
    """Return by engine the number of steps after which its wait with empty caches is paid back, against NumPy.

    Infinite for an engine whose steps take longer than NumPy's.
    """
    times, ratios = step_us(machine, folder=folder), times_numpy(machine, folder=folder)
    saved_us = {name: us * (1 / ratios[name] - 1) for name, us in times.items() if name in ratios}
    return {
        name: empty / (saved_us[name] / 1e6) if saved_us[name] > 0 else np.inf
        for name, (empty, _) in waits(machine, folder).items()
        if name in saved_us
    }


def groups(names):
    """Return the group of each name by its label, in the order of GROUPS."""
    return {label(name): group(name) for name in sorted(names, key=lambda name: GROUPS.index(group(name)))}


def dots(panels, xlabel, note=brief, **options):
    """Return a figure of dots: panels[title] has values by the names of engines and peers.

    What is not finite and above 0 has no place on the scale, and no dot. Raises ValueError where no dot is left.
    """
    panels = {title: {name: x for name, x in found.items() if _has_a_place(x)} for title, found in panels.items()}
    panels = {title: found for title, found in panels.items() if found}
    if not panels:
        raise ValueError("there are no times to show: no record has one that is finite and above 0.")
    named = {title: {label(name): value for name, value in values.items()} for title, values in panels.items()}
    names = [name for values in panels.values() for name in values]
    return _dot_panels(named, groups(names), xlabel, note, **options)


def _dot_panels(panels, groups, xlabel, note, xlim=None):
    """Return panels of dots, one above the other, on one logarithmic axis; first label on top.

    panels[title]: values by label. groups[label]: the one of GROUPS that a label is of; the dots of a group have the
    same colour and shape. note: writes a value beside its dot.
    """
    counts = [len(values) for values in panels.values()]
    height = 0.9 + 0.27 * sum(counts) + 0.45 * len(counts)
    figure, places = plots.axes(6, height, len(counts), squeeze=False, sharex=True, height_ratios=counts)
    styles, legend = group_styles(groups.values(), GROUPS), {}
    for place, (title, values) in zip(places[:, 0], panels.items(), strict=True):
        for row, (name, value) in enumerate(values.items()):
            colour, shape = styles[groups[name]]
            (legend[groups[name]],) = place.plot(value, row, shape, color=colour, markersize=7)
            place.annotate(note(value), (value, row), (8, 0), textcoords="offset points", va="center", fontsize=9)
        place.set(xscale="log", ylim=(len(values) - 0.4, -0.6), yticks=range(len(values)), yticklabels=list(values))
        place.set_title(title, fontsize=10, loc="left")
        place.tick_params(axis="y", labelsize=9)
    places[-1, 0].set(xlabel=xlabel, xlim=xlim or whole_decade([v for p in panels.values() for v in p.values()]))
    named = {group: legend[group] for group in styles}
    figure.legend(named.values(), named, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def _has_a_place(value):
    return value is not None and 0 < value < np.inf


def _some(rows, machine, folder, *experiments):
    """Return what there is to show. Raises FileNotFoundError where a machine has no record of it."""
    if rows:
        return rows
    raise FileNotFoundError(
        f"no times of {' or '.join(experiments)} in {Path(folder) / machine}: run `python -m mlpkit bench "
        f"{experiments[0]}` there."
    )


def goal_figure(machine, folder=results.FOLDER):
    """Return a figure of the seconds to each of the two goals. Raises FileNotFoundError where there are none."""
    reached, absent = goals(machine, folder).items(), (np.nan, False)
    found = {label(name): [both.get(percent, absent) for percent in goal.GOALS] for name, both in reached}
    rows = {name: [seconds for seconds, _ in both] for name, both in found.items()}
    hollow = [(name, index) for name, both in found.items() for index, (_, guess) in enumerate(both) if guess]
    names = [f"to {percent} %" for percent in goal.GOALS]
    return plots.spans(_some(rows, machine, folder, "goal"), "seconds of training", names, hollow)


def wait_figure(machine, folder=results.FOLDER):
    """Return a figure of the seconds until the first step, the shortest with empty caches first.

    Raises FileNotFoundError where there are none.
    """
    rows = {label(name): pair for name, pair in sorted(waits(machine, folder).items(), key=lambda item: item[1])}
    names = [f"cache {cache}" for cache in compiling.CACHES]
    rows = _some(rows, machine, folder, "compile", "gpu_compile")
    return plots.spans(rows, "seconds until the first step is done", names)


def lines_figure(machine, folder=results.FOLDER):
    """Return a figure of microseconds a step by lines of code. Raises FileNotFoundError where there are none."""
    times = _some(step_us(machine, folder=folder), machine, folder, *STEPS)
    points = {label(name): (lines.of(name), us) for name, us in times.items() if lines.place(name)}
    xlabel = "lines of code beyond the baseline's"
    return plots.named_points(points, groups(times), xlabel, "microseconds a step", order=GROUPS)


def accuracy_figure(machine, folder=results.FOLDER):
    """Return a figure of the test accuracies of each engine's trainings. FileNotFoundError where there are none."""
    rows = {label(name): [100 * a for a in found] for name, found in accuracies(machine, folder).items()}
    rows = _some(rows, machine, folder, "agreement", "gpu_agreement")
    return plots.seeds(rows, "test accuracy (%), and its mean")


@_reads
def table(machine, folder=results.FOLDER):
    """Return everything about a machine as a table: a row an engine or peer, fastest first; ~ marks an estimate."""
    rows = [_row("", ("us a step", "97 % s", "98 % s", "wait s", "lines", "accuracy %"))]
    reached, waited, learned = goals(machine, folder), waits(machine, folder), accuracies(machine, folder)
    for name, us in step_us(machine, folder=folder).items():
        cells = [brief(us), *(in_seconds(reached.get(name, {}).get(percent)) for percent in goal.GOALS)]
        cells += [f"{waited[name][0]:.1f}" if name in waited else "", _lines(name), _spread(learned.get(name))]
        rows.append(_row(label(name), cells))
    return "\n".join(rows)


def _row(name, cells):
    return f"{name:<34}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


_WIDTHS = (10, 9, 8, 7, 6, 14)  # with the name's, no more than a page is wide


def in_seconds(entry):
    """Return an entry of `goals`, (seconds, is it an estimate?), in three digits; ~ marks an estimate."""
    if not entry:
        return ""
    seconds, is_estimate = entry
    return ("~" if is_estimate else "") + (f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}")


def _lines(name):
    """Return how many lines an engine or a peer has, as text; "" of one that only a record's version has."""
    return str(lines.of(name)) if lines.place(name) else ""


def _spread(found):
    if not found or len(found) < 2:
        return ""
    return f"{100 * np.mean(found):.2f} +- {100 * np.std(found, ddof=1):.2f}"
