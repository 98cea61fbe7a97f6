"""An engine that computes something else gets no time, and no measurement is lost to an interruption."""

import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import ENGINES, REASONS, dataset, engine_like, one_sentence
from shared import SMALL as MODEL

from experiments.engines import Plan, measure, table
from experiments.lab import bench, quiet, results
from experiments.lab import clock as clock_module
from experiments.lab.bench import GATE_STEPS, GateError, Timing, gate
from mlpkit import engines, machine
from mlpkit.data import batches, epoch_order
from mlpkit.engines import numpy_baseline
from mlpkit.executors.plain import StepByStep
from mlpkit.nn.models import MLP
from mlpkit.training.recipe import Recipe

DATA = dataset()
RECIPE = Recipe(model=MODEL, batch_size=8, epochs=2, lr=0.05)
QUICK = Timing(warmup=2, steps_a_sample=3, rounds=4)


def after(n, good, bad):
    """Return a function that is `good` for n calls and `bad` from then on."""
    calls = itertools.count()
    return lambda *arguments: (good if next(calls) < n else bad)(*arguments)


def loss_plus(error):
    def function(z, labels):
        loss, dz = numpy_baseline.softmax_cross_entropy(z, labels)
        return loss + np.float32(error), dz

    return function


real_loss = numpy_baseline.softmax_cross_entropy
# name: (the engine, a word from the reason why it gets no time)
WRONG = {
    "wrong_at_once": (dict(softmax_cross_entropy=loss_plus(0.01)), "step 1 "),
    "wrong_at_last": (dict(softmax_cross_entropy=after(19, real_loss, loss_plus(0.01))), "step 20 "),
    "nan": (dict(softmax_cross_entropy=loss_plus(np.nan)), "nan"),
    "nan_at_last": (dict(softmax_cross_entropy=after(19, real_loss, loss_plus(np.nan))), "nan"),
    "infinite": (dict(softmax_cross_entropy=loss_plus(np.inf)), "inf"),
    "no_update": (dict(sgd_update=lambda theta, grad, lr: None), "step 2 "),
    "wrong_rate": (dict(sgd_update=lambda t, g, lr: numpy_baseline.sgd_update(t, g, 1.1 * lr)), "step 2 "),
    "wrong_gradient": (dict(relu_backward=lambda a, da: da), "step 2 "),
}


@pytest.fixture
def register(monkeypatch):
    """Return a function that makes `engines.load` know further engines: modules, or errors to raise."""

    def add(**made):
        load = engines.load

        def load_or_make(name):
            if isinstance(made.get(name), Exception):
                raise made[name]
            return made.get(name) or load(name)

        monkeypatch.setattr(engines, "load", load_or_make)

    return add


def compare(names, timing=QUICK, save=lambda record: None, progress=lambda text: None):
    return measure(save, progress, Plan(timing, RECIPE, tuple(names)), DATA)


# The gate


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_passes_the_gate(name):
    losses = gate(name, RECIPE, DATA.train)
    assert losses.shape == (GATE_STEPS,)
    assert np.isfinite(losses).all()


@pytest.mark.parametrize(("functions", "word"), WRONG.values(), ids=WRONG)
def test_an_engine_that_computes_something_else_does_not_pass(functions, word, register):
    register(wrong=engine_like(**functions))
    with pytest.raises(GateError) as caught:
        gate("wrong", RECIPE, DATA.train)
    one_sentence(caught.value, "wrong", "numpy_baseline", word)


@pytest.mark.parametrize("value", ["nan", "infinite"])
def test_a_baseline_that_diverges_cannot_vouch_for_anybody(value, register):
    """Two NaN, or two infinities, are equal to some comparisons."""
    register(numpy_baseline=engine_like(**WRONG[value][0]), wrong=engine_like(**WRONG[value][0]))
    with pytest.raises(GateError):
        gate("wrong", RECIPE, DATA.train)


def test_an_engine_that_fails_the_gate_has_its_reason_and_no_time(register):
    register(wrong=engine_like(**WRONG["nan"][0]), absent=engines.EngineUnavailable("no GPU here"))
    runs = {run["engine"]: run for run in compare(["numpy_baseline", "wrong", "absent"])["runs"]}
    assert "nan" in runs["wrong"]["why_not"]
    assert runs["absent"]["why_not"] == "no GPU here"
    assert runs["numpy_baseline"]["why_not"] is None
    for name in ("wrong", "absent"):
        assert runs[name]["samples_us"] == []
        assert not {"test_accuracy", "training_seconds", "loss"} & runs[name].keys()


def test_an_engine_that_refuses_this_gpu_does_not_stop_the_others(register):
    register(refusing=engine_like(why_not=lambda model, optimizer, batch_size: "it needs a newer GPU"))
    runs = {run["engine"]: run for run in compare(["refusing", "numpy_baseline"])["runs"]}
    assert runs["refusing"]["why_not"] == "it needs a newer GPU"
    assert runs["refusing"]["samples_us"] == []
    assert runs["numpy_baseline"]["samples_us"]


# Times


def test_where_nobody_chooses_every_engine_is_gated_timed_and_trained(monkeypatch):
    monkeypatch.setattr(quiet, "settle", lambda call: call())
    runs = measure(lambda record: None, lambda text: None, Plan(QUICK, RECIPE), DATA)["runs"]
    assert [run["engine"] for run in runs] == list(engines.names(MODEL.operations))
    for run in runs:
        if not engines.on_gpu(run["engine"]):
            assert run["why_not"] is None
            assert len(run["samples_us"]) == QUICK.rounds
            assert len(run["loss"]) == RECIPE.epochs * RECIPE.steps_an_epoch(50)
        elif REASONS[run["engine"]]:
            assert run["why_not"] == REASONS[run["engine"]]


def test_rounds_take_a_sample_of_each_engine_in_turn():
    said = []
    compare(["numpy_baseline", "python_loops"], progress=said.append)
    timed = [text.removeprefix("timing ") for text in said if text.startswith("timing ")]
    assert timed == ["numpy_baseline", "python_loops"] * QUICK.rounds


def test_raw_samples_are_kept_with_all_that_they_depend_on():
    record = compare(["numpy_baseline", "python_lists"])
    assert record["settings"] == {"recipe": RECIPE.to_dict(), "timing": vars(QUICK)}
    assert record["machine"].keys() == machine.describe().keys()
    for run in record["runs"]:
        assert len(run["samples_us"]) == QUICK.rounds
        assert run["steps_a_sample"] == QUICK.steps_a_sample
        assert all(sample > 0 for sample in run["samples_us"])
        assert len(run["gate_losses"]) == GATE_STEPS
        assert len(run["loss"]) == RECIPE.epochs * RECIPE.steps_an_epoch(50)
        assert 0 <= run["test_accuracy"] <= 1
    one, other = record["runs"]
    assert_allclose(one["loss"], other["loss"], rtol=1e-4)
    assert results.median_us(one) == np.median(one["samples_us"])


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands still; time passes only where a test says so."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(clock_module, "time", clock)
    return clock


def sluggish(clock, seconds):
    """Return an engine whose every step takes so many seconds of the clock."""

    def sgd_update(theta, grad, lr):
        clock.now += seconds
        numpy_baseline.sgd_update(theta, grad, lr)

    return engine_like(sgd_update=sgd_update)


def test_a_sample_is_the_mean_time_of_its_steps(clock, register):
    register(steady=sluggish(clock, 0.25))
    (run,) = compare(["steady"])["runs"]
    assert run["samples_us"] == [250_000.0] * QUICK.rounds


def test_the_clock_is_read_after_the_engine_is_done(clock, register):
    """An engine that returns before its work is done, as a GPU does, must be waited for."""

    def synchronize():
        clock.now += 0.3

    register(hasty=engine_like(synchronize=synchronize))
    (run,) = compare(["hasty"])["runs"]
    assert_allclose(run["samples_us"], [100_000.0] * QUICK.rounds)


@pytest.mark.parametrize(("seconds", "steps", "samples"), [(1.0, 2, 4), (3.0, 1, 3), (9.0, 1, 1), (100.0, 1, 1)])
def test_a_slow_engine_takes_fewer_steps_and_then_fewer_samples(seconds, steps, samples, clock, register):
    register(slow=sluggish(clock, seconds), steady=sluggish(clock, 0.001))
    timing = Timing(warmup=2, steps_a_sample=3, rounds=4, patience=10.0)
    slow, steady = compare(["slow", "steady"], timing)["runs"]
    assert slow["steps_a_sample"] == steps
    assert_allclose(slow["samples_us"], [seconds * 1e6] * samples)
    assert (steady["steps_a_sample"], len(steady["samples_us"])) == (3, 4)


def test_an_engine_too_slow_to_train_says_how_long_it_would_take(clock, register):
    register(slow=sluggish(clock, 10.0))
    (run,) = compare(["slow"], Timing(patience=5.0))["runs"]
    assert run["test_accuracy"] is None
    assert run["training_seconds"] == 2 * 7 * 10
    assert "loss" not in run


def test_steps_go_round_the_training_set_in_the_first_epochs_order():
    stepper = bench.Stepper("numpy_baseline", RECIPE, DATA.train)
    seen = []
    watch = lambda order: seen.extend(DATA.train.X[index] for index in batches(order, 8)) or [0.0]  # noqa: E731
    stepper.trainer = SimpleNamespace(epoch=watch)
    stepper.take(13)
    order = epoch_order(50, RECIPE.seed, 0)
    full = [DATA.train.X[order[i : i + 8]] for i in range(0, 48, 8)]  # the short last batch would be quicker
    assert_array_equal(seen, [*full, *full, full[0]])


def stepping(look):
    """Return an engine with a step of its own, which shows the labels of each."""

    class Trainer(StepByStep):
        def step(self, x, labels):
            look(labels)
            return super().step(x, labels)

    return engine_like(Trainer=Trainer)


def test_before_each_sample_the_threads_of_the_engine_before_come_to_rest(monkeypatch, register):
    log = []

    def step(name):
        return stepping(lambda labels: log.append(name))

    monkeypatch.setattr(quiet, "settle", lambda call: log.append("settled"))
    register(a=step("a"), b=step("b"))
    compare(["a", "b"], Timing(warmup=1, steps_a_sample=2, rounds=2))
    assert "settled a a settled b b settled a a settled b b a" in " ".join(log)


def test_an_engines_own_step_is_what_is_timed(register, monkeypatch):
    calls = []
    monkeypatch.setattr(quiet, "settle", lambda call: call())

    register(fused=stepping(lambda labels: calls.append(len(labels))))
    compare(["fused"])
    assert len(calls) == GATE_STEPS + 1 + QUICK.warmup + QUICK.rounds * (1 + QUICK.steps_a_sample) + 2 * 7


# Interruptions


class Interrupting:
    """Saves a record as JSON, and is interrupted by Ctrl-C when the given text is shown for the nth time."""

    def __init__(self, folder, text, time):
        self.folder, self.text, self.left = folder, text, time

    def save(self, record):
        results.save(record, folder=self.folder)

    def progress(self, text):
        self.left -= text == self.text
        if not self.left:
            raise KeyboardInterrupt

    def record(self):
        with pytest.raises(KeyboardInterrupt):
            compare(["numpy_baseline", "python_loops"], QUICK, self.save, self.progress)
        return results.load(self.folder / results.MINE / "engines.json")


@pytest.mark.parametrize(
    ("text", "time", "samples"),
    [
        ("checking python_loops", 1, [0]),
        ("timing numpy_baseline", 1, [0, 0]),
        ("timing numpy_baseline", 2, [1, 1]),
        ("timing python_loops", 2, [2, 1]),  # amid a round
        ("training with numpy_baseline", 1, [4, 4]),
        ("training with python_loops", 1, [4, 4]),
    ],
)
def test_an_interrupted_bench_loses_nothing_measured(text, time, samples, tmp_path):
    record = Interrupting(tmp_path, text, time).record()
    assert [len(run["samples_us"]) for run in record["runs"]] == samples
    assert ("test_accuracy" in record["runs"][0]) == (text == "training with python_loops")
    assert "numpy_baseline" in table(record)  # even this can be shown


# The table


def run_of(engine, samples=(), **values):
    return {"engine": engine, "why_not": None, "samples_us": list(samples), **values}


def test_the_table_shows_medians_speed_ups_and_reasons():
    runs = [
        run_of("numpy_baseline", [400.0, 600.0, 9000.0], test_accuracy=0.97654, training_seconds=1.0),
        run_of("fast", [100.0, 150.0, 200.0], test_accuracy=0.97, training_seconds=1.0),
        run_of("slow", [1.8e9], test_accuracy=None, training_seconds=7200.0),
        run_of("absent") | {"why_not": "engine absent can't run on this machine: no GPU here"},
        run_of("unfinished"),
        run_of("absent too") | {"why_not": "engine absent too can't run on this machine: no GPU here"},
        run_of("untrained", [300.0]),
        run_of("minutes", [300.0], test_accuracy=None, training_seconds=90.0),
    ]
    lines = table({"runs": runs}).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["numpy_baseline", "600", "1x", "97.65%"],
        ["fast", "150", "4x", "97.00%"],
        ["slow", "1,800,000,000", "3.33e-07x", "(2.0", "h", "to", "train)"],
    ]
    assert lines[4].split() == ["untrained", "300", "2x", "-"]
    assert lines[5].split() == ["minutes", "300", "2x", "(1.5", "min", "to", "train)"]
    assert lines[6:] == [
        "not run: absent, absent too: no GPU here",  # a reason is told once
        "not run: unfinished: interrupted before its turn",
    ]
    for word in ("engine", "us a step", "speed-up", "test accuracy"):
        assert word in lines[0]


def test_many_engines_that_share_a_reason_are_counted():
    def missing(name, reason):
        return run_of(name) | {"why_not": f"engine {name} can't run on this machine: {reason}"}

    gpu = [missing(name, "there is no NVIDIA driver") for name in engines.names() if engines.on_gpu(name)]
    assert len(gpu) > 2
    others = [missing(name, "a broken library") for name in ("numba_serial", "numba_step", "python_lists")]
    assert results.not_run(gpu + others) == [
        f"not run: {len(gpu)} GPU engines: there is no NVIDIA driver",
        "not run: 3 engines: a broken library",
    ]


def test_steps_can_be_asked_for_without_waiting():
    stepper = bench.Stepper("numpy_baseline", RECIPE, DATA.train)
    parts = stepper.ask(7)
    assert [len(part) for part in parts] == [6, 1]  # an epoch has six full batches
    assert_array_equal(np.concatenate(parts), bench.Stepper("numpy_baseline", RECIPE, DATA.train).take(7)[1])


def test_without_the_baseline_there_is_no_speed_up():
    (line,) = table({"runs": [run_of("fast", [100.0], test_accuracy=0.9)]}).splitlines()[1:]
    assert line.split() == ["fast", "100", "-", "90.00%"]


# Records


@pytest.fixture
def record():
    return results.new("engines", recipe={"lr": 0.1}) | {"runs": [run_of("numpy_baseline", [1.5])]}


def test_a_record_comes_back_as_it_was(record, tmp_path):
    path = results.save(record, "some-machine", tmp_path)
    assert path == tmp_path / "some-machine" / "engines.json"
    assert results.load(path) == record
    assert json.loads(path.read_text()) == record


@pytest.mark.parametrize("name", results.FIELDS)
def test_a_record_that_lacks_a_field_is_refused(name, record, tmp_path):
    path = tmp_path / "broken.json"
    for broken in ({key: record[key] for key in record if key != name}, record | {name: None}):
        path.write_text(json.dumps(broken))
        with pytest.raises(results.RecordError) as caught:
            results.load(path)
        one_sentence(caught.value, path, name)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "JSON"),
        ("{'single': 'quotes'}", "JSON"),
        ('{"schema": 1, "experiment": "engi', "JSON"),
        ("[]", "schema"),
        ("3", "schema"),
        ("null", "schema"),
        ("{}", "schema"),
        (b"\xff\xfe\x00", "JSON"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_what_is_no_record_is_refused(text, word, tmp_path):
    path = tmp_path / "other.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(results.RecordError) as caught:
        results.load(path)
    one_sentence(caught.value, path, word)


@pytest.mark.parametrize("schema", [0, 2, "1", None])
def test_a_record_of_another_schema_is_refused(schema, record, tmp_path):
    path = results.save(record | {"schema": schema}, folder=tmp_path)
    with pytest.raises(results.RecordError, match=f"schema {schema}; this version reads schema 1") as caught:
        results.load(path)
    one_sentence(caught.value, path)


@pytest.mark.parametrize("there", ["results", "mine"])
def test_in_a_workbook_of_somebody_else_a_readers_records_go_to_their_own_folder(there, record, tmp_path, monkeypatch):
    """Such as one in /opt, which belongs to root."""
    shared = tmp_path / "workbook" / "results"
    (shared / "mine" if there == "mine" else shared).mkdir(parents=True)
    monkeypatch.setattr(results.platformdirs, "user_data_path", lambda name, **options: tmp_path / "home" / name)
    monkeypatch.setattr(os, "access", lambda path, mode: not Path(path).is_relative_to(shared))
    path = results.save(record, folder=shared)
    assert path == tmp_path / "home" / "mlpkit" / "results" / f"{record['experiment']}.json"
    assert results.load(path) == json.loads(json.dumps(record))
    assert results.shown(path) == str(path)
    assert results.save_part(record, folder=shared).parent == path.parent
    assert results.folder_of("nvidia-h200", shared) == shared / "nvidia-h200"  # to publish is another matter
    assert results.shown(results.FOLDER / "mine" / "a.json") == "results/mine/a.json"


def test_a_record_that_cannot_be_written_leaves_the_old_one(record, tmp_path, monkeypatch):
    path = results.save(record, folder=tmp_path)

    def full(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        results.save(record | {"date": "later"}, folder=tmp_path)
    assert results.load(path) == record
    assert list(path.parent.iterdir()) == [path]


def test_what_is_collected_before_an_interruption_is_saved(record):
    def measured():
        yield dict(n=1)
        yield dict(n=2)
        raise KeyboardInterrupt

    saved = []
    with pytest.raises(KeyboardInterrupt):
        results.collect(record | {"runs": []}, measured(), lambda found: saved.append(len(found["runs"])))
    assert saved == [1, 2]


@pytest.mark.parametrize(("fractions", "wanted"), [([0.97, 0.98], "97.50% +- 0.71%"), ([0.5], "50.00%")])
def test_a_mean_has_its_spread(fractions, wanted):
    assert results.mean_and_spread(fractions) == wanted


@pytest.mark.parametrize(("losses", "error"), [([2.0, 1.0], 0.0), ([2.0, 1.5], 0.5), ([np.nan, 1.0], np.nan)])
def test_a_loss_that_is_no_number_is_never_close(losses, error):
    np.testing.assert_equal(bench.relative_error(np.array(losses), np.array([2.0, 1.0])), error)


def test_published_gives_what_came_with_the_workbook(record, tmp_path):
    results.save(record | {"commit": "mine"}, "mine", tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        results.published("engines", tmp_path)
    one_sentence(caught.value, "engines", "python -m mlpkit bench engines")
    results.save(record | {"commit": "zebra"}, "zebra", tmp_path)
    assert results.published("engines", tmp_path)["commit"] == "zebra"
    results.save(record | {"commit": "theirs"}, results.CHAPTERS[-1], tmp_path)
    results.save(record | {"commit": "another"}, "a machine", tmp_path)
    assert results.published("engines", tmp_path)["commit"] == "theirs"  # whatever else is published beside it


def test_runs_are_selected_by_what_they_have(record):
    record["runs"] = [dict(engine="a", n=1), dict(engine="a", n=2), dict(engine="b")]
    assert results.runs(record, engine="a", n=2) == [dict(engine="a", n=2)]
    assert results.runs(record, n=None) == [dict(engine="b")]
    assert results.runs(record) == record["runs"]


def test_a_caption_says_where_and_when(record):
    caption = results.caption(record)
    assert record["machine"]["cpu"] in caption
    assert record["date"][:10] in caption


def test_models_of_version_0_2_are_read_as_they_are_written_now(record, tmp_path):
    model = MLP.to_dict()
    old, other = model | {"loss": "softmax_cross_entropy"}, {"loss": "softmax_cross_entropy", "layers": 3}
    record["settings"] = {"recipes": [{"model": old}], "peak": other}
    record["runs"] = [{"engine": "one", "recipe": {"model": old}}, {"engine": "two", "recipe": {"model": model}}]
    found = results.load(results.save(record, folder=tmp_path))
    assert [run["recipe"]["model"] for run in found["runs"]] == [model, model]
    assert found["settings"] == {"recipes": [{"model": model}], "peak": other}


def test_every_record_in_the_repository_can_be_read():
    paths = sorted(results.FOLDER.glob("*/*.json"))
    for path in paths:
        found = results.load(path)
        assert path.name == f"{found['experiment']}.json"


@pytest.mark.parametrize("change", [{"machine": {}}, {"machine": {"cpu": "", "cores": 2, "gpu": {}}}, {"runs": [1]}])
def test_a_record_that_lacks_what_tables_and_captions_need_is_refused(change, record, tmp_path):
    path = results.save(record | change, folder=tmp_path)
    with pytest.raises(results.RecordError) as caught:
        results.load(path)
    one_sentence(caught.value, path, *(["cpu"] if "machine" in change else ["run"]))


def test_a_copy_inside_another_repository_does_not_take_its_commit(monkeypatch, tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b"]
    if not shutil.which("git"):
        pytest.skip("no git here")
    (tmp_path / ".gitignore").write_text("workbook\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "mine"]):
        subprocess.run([*git, *arguments], check=True)
    (tmp_path / "workbook" / "mlpkit").mkdir(parents=True)
    (tmp_path / "workbook" / "mlpkit" / "__init__.py").write_text("")
    monkeypatch.delenv("MLPKIT_COMMIT", raising=False)
    monkeypatch.setattr(results, "ROOT", tmp_path / "workbook")
    assert results._commit() == ("unknown", True)
    subprocess.run([*git, "add", "--force", "workbook"], check=True)  # who keeps the package there has its commit
    subprocess.run([*git, "commit", "-q", "-m", "a copy"], check=True)
    assert results._commit() == (results._git("rev-parse", "HEAD"), False)


def test_outside_of_a_checkout_the_commit_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = results.new("engines")
    assert (found["commit"], found["dirty"]) == ("unknown", True)
