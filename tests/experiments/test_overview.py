"""What is known of a machine's engines comes from whatever records there are; nothing breaks where there are none."""

import json
import random
import runpy
from itertools import combinations

import numpy as np
import pytest
import test_odd_records as odd
from matplotlib.text import Text
from shared import one_sentence

from experiments.lab import overview, results
from mlpkit import engines, plots
from mlpkit.training.recipe import Recipe

FACTS = {"name": "m", "cpu": "A CPU", "cores": 2, "gpu": {"found": False, "why_not": ""}, "blas": {"threads": 2}}
FACTS |= {"libraries": {"numpy": "2.4"}}
WITH_GPU = FACTS | {"cpu": "Another", "gpu": {"found": True, "name": "A GPU"}}
SGD, ADAM = (Recipe(optimizer=name).to_dict() for name in ("sgd", "adam"))


def put(folder, machine, experiment, runs, facts=FACTS, **settings):
    """Write a small record."""
    fields = dict(schema=1, date="2026-11-21T10:00:00+00:00", commit="", dirty=False, version="")
    record = fields | dict(experiment=experiment, machine=facts, settings=settings, runs=runs)
    path = folder / machine / f"{experiment}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record))


def step(engine, *samples, **more):
    return {"engine": engine, "why_not": None, "samples_us": list(samples)} | more


@pytest.fixture
def folder(tmp_path):
    """A machine with everything, one with a GPU and little, and the reader's own."""
    runs = [step("numpy_baseline", 90.0, 100.0, 300.0), step("numba_step", 25.0), step("cuda_graph")]
    put(tmp_path, "small", "engines", runs, recipe=SGD)
    runs = [step("numpy_baseline", 200.0, recipe=SGD), step("pytorch", 300.0, recipe=SGD, start_seconds=[2.5, 1.0])]
    runs += [step("numpy_baseline", 400.0, recipe=ADAM), step("pytorch", 1.0, recipe=ADAM)]
    put(tmp_path, "small", "peers", runs, libraries={"torch": "2.13", "jax": None})
    put(tmp_path, "big", "engines", [step("cuda_new", 5.0), step("numpy_baseline", 50.0)], WITH_GPU, recipe=SGD)
    put(tmp_path, results.MINE, "engines", [step("numpy_baseline", 1.0)], recipe=SGD)
    waits = [
        {"engine": "numba_step", "cache": cache, "samples_s": [{"import": 0.5, "prepare": 0.25, "first": first}]}
        for cache, first in (("empty", 9.0), ("filled", 0.25))
    ]
    put(tmp_path, "small", "compile", waits)
    trained = {"steps": 1000, "why_not": None, "samples_us": [900.0], "test_accuracy": [0.98]}
    seconds = {"python_lists": ([], []), "numba_step": ([0.5], [0.75]), "cuda_graph": ([], [])}
    cases = [
        trained
        | {"engine": name, "goal": percent, "seconds": found, "why_not": "no GPU" if name == "cuda_graph" else None}
        for name, both in seconds.items()
        for percent, found in zip((97, 98), both, strict=True)
    ]
    put(tmp_path, "small", "goal", cases)
    found = (0.9, 1e-6), (0.8, 1e-3)
    accuracies = [{"engine": "numba_step", "test_accuracy": a, "max_loss_error": error} for a, error in found]
    put(tmp_path, "small", "agreement", accuracies)
    return tmp_path


def test_machines_are_those_with_published_times_gpus_last(folder):
    assert overview.machines(folder) == ["small", "big"]
    assert overview.caption("small", folder) == "A CPU, 2 cores, 2026-11-21"
    assert overview.caption("big", folder) == "A GPU with Another, 2 cores, 2026-11-21"
    assert overview.title("big", folder) == "A GPU"


def test_a_broken_record_of_the_readers_own_hides_no_machine(folder):
    (folder / results.MINE / "engines.json").write_text('{"schema": 1, "experi')
    assert overview.machines(folder) == ["small", "big"]


@pytest.mark.parametrize("experiment", ["engines", "peers", "compile", "goal", "agreement"])
def test_odd_records_of_a_machine_are_shown_or_refused_in_a_sentence(experiment, folder):
    path, choice = folder / "small" / f"{experiment}.json", random.Random(experiment)
    text, refused = path.read_text(), 0
    everywhere = [found for found in odd.places(json.loads(text)) if found[0] in ("runs", "settings", "machine")]
    names = "caption title step_us times_numpy recipes goals waits starts accuracies loss_errors break_even table"
    for _ in range(12):
        record = json.loads(text)
        odd.put(record, choice.choice(everywhere), choice.choice(odd.ODD))
        path.write_text(json.dumps(record))
        overview._load.cache_clear()  # two files of the same moment are one to it
        for name in names.split():
            try:
                getattr(overview, name)("small", folder=folder)
            except results.RecordError as error:
                one_sentence(error, "small")
                refused += 1
    assert refused


def test_another_experiments_record_is_not_taken_for_one(folder):
    """As of a copy that was renamed, or of a link."""
    (folder / "small" / "peers.json").write_bytes((folder / "small" / "goal.json").read_bytes())
    for ask in (lambda: results.published("peers", folder), lambda: overview.record("peers", "small", folder)):
        with pytest.raises(results.RecordError) as caught:
            ask()
        one_sentence(caught.value, "peers.json", "'goal'")


def test_steps_are_medians_and_the_peers_record_has_the_last_word(folder):
    assert overview.step_us("small", folder=folder) == {"numba_step": 25.0, "numpy_baseline": 200.0, "pytorch": 300.0}
    assert overview.step_us("small", "adam", folder=folder) == {"pytorch": 1.0, "numpy_baseline": 400.0}
    assert overview.step_us("absent", folder=folder) == {}
    assert overview.recipes("small", folder) == [("sgd", 128), ("adam", 128)]
    assert overview.recipes("big", folder) == [("sgd", 128)]


def test_both_times_of_a_ratio_are_from_one_record(folder):
    assert overview.times_numpy("small", folder=folder) == {"numpy_baseline": 1.0, "numba_step": 0.25, "pytorch": 1.5}


def test_waiting_is_paid_back_by_what_a_step_saves(folder):
    assert overview.waits("small", folder) == {"numba_step": (9.75, 1.0)}
    assert overview.break_even("small", folder) == {"numba_step": pytest.approx(9.75 / 75e-6)}
    assert overview.starts("small", folder) == {"pytorch": 2.5}
    assert overview.waits("big", folder) == overview.starts("big", folder) == {}


def test_goals_say_what_is_an_estimate_and_leave_out_what_can_t_run(folder):
    found = overview.goals("small", folder)
    estimate = pytest.approx(0.9), True
    assert found == {"numba_step": {97: (0.5, False), 98: (0.75, False)}, "python_lists": {97: estimate, 98: estimate}}
    assert list(found) == ["numba_step", "python_lists"]  # the quickest first
    assert overview.goals("big", folder) == {}


def test_a_goal_that_was_not_reached_leaves_the_others_markers_as_they_are(folder):
    runs = results.load(folder / "small" / "goal.json")["runs"]
    runs = [run | {"why_not": "no"} if run["goal"] == 97 and run["engine"] == "numba_step" else run for run in runs]
    put(folder, "small", "goal", runs)
    lines = overview.goal_figure("small", folder).axes[0].lines
    drawn = [(line.get_marker(), x) for line in lines for x in line.get_xdata() if np.isfinite(x)]
    estimate = pytest.approx(0.9)
    assert [x for marker, x in drawn if marker == "o"] == [estimate]
    assert [x for marker, x in drawn if marker == "s"] == [0.75, estimate]


def test_agreement_is_told_by_engine(folder):
    assert overview.accuracies("small", folder) == {"numba_step": [0.9, 0.8]}
    assert overview.loss_errors("small", folder) == {"numba_step": 1e-3}
    assert overview.accuracies("big", folder) == overview.loss_errors("big", folder) == {}


def test_a_record_made_again_is_read_again(folder):
    assert overview.step_us("big", folder=folder)["cuda_new"] == 5.0
    put(folder, "big", "engines", [step("cuda_new", 6.0)], WITH_GPU, recipe=SGD)
    assert overview.step_us("big", folder=folder) == {"cuda_new": 6.0}


def test_the_table_has_a_row_an_engine_with_what_is_known(folder):
    head, numba, numpy, torch = overview.table("small", folder).splitlines()
    assert head.split()[:3] == ["us", "a", "step"]
    lines = str(overview.lines.of("numba_step"))
    assert numba.split()[4:] == ["25", "0.5", "0.75", "9.8", lines, "85.00", "+-", "7.07"]
    assert numpy.split()[-2:] == ["200", "0"]
    assert torch.startswith("PyTorch ")


def test_an_engine_that_this_version_lacks_has_no_lines(folder):
    new, numpy = overview.table("big", folder).splitlines()[1:]
    assert new.split() == ["cuda", "new", "5.0"]
    assert numpy.split()[-2:] == ["50", "0"]
    drawn = {text.get_text() for text in overview.lines_figure("big", folder).findobj(Text)}
    assert "1 NumPy, this workbook" in drawn
    assert not [text for text in drawn if "cuda new" in text]


@pytest.mark.parametrize("figure", ["goal_figure", "wait_figure", "lines_figure", "accuracy_figure"])
def test_a_machine_without_times_has_no_figure_and_a_sentence(figure, folder):
    with pytest.raises(FileNotFoundError) as caught:
        getattr(overview, figure)("nobody", folder=folder)
    one_sentence(caught.value, folder / "nobody", "python -m mlpkit bench")


def test_what_has_no_place_on_the_scale_has_no_dot():
    odd_ones = {"jax_epoch": np.nan, "jax_step": np.inf, "numba_step": 0.0, "pytorch_cuda": None}
    figure = overview.dots({"some": {"pytorch": 5.0, **odd_ones}, "none": odd_ones, "empty": {}}, "us")
    drawn = " ".join(text.get_text() for text in figure.findobj(Text))
    assert overview.label("pytorch") in drawn
    assert not [name for name in ("none", "empty", *map(overview.label, odd_ones)) if name in drawn]
    for panels in ({}, {"empty": {}}, {"none": odd_ones}):
        with pytest.raises(ValueError, match="no times to show") as caught:
            overview.dots(panels, "us")
        one_sentence(caught.value)


@pytest.mark.parametrize("name", [None, 10**400, "", "x" * 5000, "../lab/lines", "/tmp/x", "\0", "\ud800"])
def test_no_file_is_looked_for_by_what_is_no_name(name):
    assert overview.lines.place(name) is None


def test_names_that_no_file_has_are_shown_as_they_are():
    assert overview.label("cuda_new") == "cuda new"
    assert overview.label("numpy_baseline") == "NumPy, this workbook"
    assert [overview.group(name) for name in ("numba_step", "pytorch", "cuda_graph", "jax_epoch")] == list(
        overview.GROUPS
    )
    assert overview.group("pytorch_cuda_graph_bf16") == "others, GPU"  # trains networks that see alone


def test_each_figure_of_a_machine_shows_its_engines(folder):
    def labels(figure):
        return [text.get_text() for text in figure.axes[0].get_yticklabels()]

    assert labels(overview.goal_figure("small", folder)) == ["Numba, a whole step", "Python lists"]
    assert labels(overview.wait_figure("small", folder)) == ["Numba, a whole step"]
    assert labels(overview.accuracy_figure("small", folder)) == ["Numba, a whole step"]
    named = overview.lines_figure("small", folder).legends[0].get_texts()
    assert [text.get_text() for text in named] == ["1 Numba, a whole step", "2 NumPy, this workbook", "3 PyTorch"]


def test_every_engine_and_peer_has_a_label_of_its_own():
    names = (*engines.names(), *overview.peers.USUAL.others, *overview.gpu_peers.PLAN.others)
    labels = [overview.label(name) for name in names]
    assert [label for label in labels if len(label) > 34 or "\n" in label or "_" in label] == []
    assert len(set(labels)) == len(names)
    assert overview.label("pytorch_cuda_graph_tf32") == "PyTorch, CUDA graph, TF32"
    assert overview.label("numba_step") == "Numba, a whole step"


def test_figures_have_a_dot_a_label_and_room_for_its_number():
    figure = overview.dots({"one": {"numba_step": 20.0, "pytorch": 40.0}, "two": {"jax_epoch": 3.0}}, "us")
    assert [len(place.lines) for place in figure.axes] == [2, 1]
    assert figure.axes[0].get_xlim() == (1.0, 240.0)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours, CPU", "others, CPU", "others, GPU"]


def test_spans_join_two_values_and_mark_estimates():
    figure = plots.spans({"a": (1.0, 2.0), "b": (3.0, 4.0)}, "s", ("first", "second"), hollow=[("b", 1)])
    joined, *_ = figure.axes[0].lines
    assert list(joined.get_xdata()) == [1.0, 2.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["first", "second", "hollow: estimated"]


def test_points_are_named_in_the_legend():
    figure = plots.named_points({"a": (0, 10.0), "b": (5, 1.0)}, {"a": "x", "b": "y"}, "lines", "us")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1 a", "2 b"]


def test_the_numbers_of_points_that_lie_together_can_be_told_apart():
    points = {name: (100 + i // 2, 10.0) for i, name in enumerate("abcdefgh")}
    figure = plots.named_points(points, dict.fromkeys(points, "x"), "lines", "us")
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 8
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_the_long_tables_have_one_for_each_machine_with_records(folder, monkeypatch):
    tool = runpy.run_path(str(results.ROOT / "tools" / "update_readme.py"))
    record, machines = overview.record, overview.machines(folder)
    monkeypatch.setattr(overview, "record", lambda experiment, machine, _=None: record(experiment, machine, folder))
    monkeypatch.setattr(overview, "machines", lambda: machines)
    columns, told = (("sgd", 128), ("adam", 128)), ("numpy_baseline", "numba_step", "", "pytorch", "")
    parts = tuple(tool["Part"](machine, columns, told) for machine in ("small", "big", "absent"))
    monkeypatch.setitem(tool["tables"].__globals__, "PARTS", parts)
    text, short = tool["tables"](), tool["story"]()
    assert "A CPU, 2 cores, 2026-11-21, NumPy 2.4 with 2 threads, PyTorch 2.13" in text
    assert "| Numba, a whole step | `numba_step` | 25 | 0.25 \\* |  |" in text
    assert r"\* From another record, in which NumPy took 100." in text
    assert "| PyTorch | `pytorch` | 300 | 1.50 | 1.0 |" in text
    assert "| cuda new | `cuda_new` | 5.0 | 0.10 |  |" in text
    assert "absent" not in text + short
    assert "| Numba, a whole step | 25 |  |" in short
    assert "cuda_new" not in short  # it is not what the story is about
