"""mypy holds every engine to the Protocol: a module with a function missing, or with other parameters, is rejected."""

import ast
import inspect
from pathlib import Path

import pytest

from mlpkit import engines
from mlpkit.engines import numba_hybrid, numpy_baseline

api = pytest.importorskip("mypy.api", reason="mypy is not installed")
FOLDER = Path(engines.__file__).parent
BASELINE, HYBRID = map(inspect.getsource, (numpy_baseline, numba_hybrid))


def with_class(name):
    """Return the names of the engines whose modules define a class of that name."""
    return [engine for engine in engines.names() if f"\nclass {name}" in (FOLDER / f"{engine}.py").read_text("utf-8")]


TRAINS_EPOCHS = with_class("Trainer")

OFFER = """
from typing import Any, Protocol

from mlpkit.engines import Engine
from mlpkit.engines.protocol import Evaluation as AnyEvaluation
from mlpkit.engines.protocol import Prediction as AnyPrediction
from mlpkit.engines.protocol import Trainer as AnyTrainer


class TrainsEpochs(Engine, Protocol):
    def why_not(self, model: Any, optimizer: Any, batch_size: int) -> str | None: ...
    def Trainer(self, network: Any, optimizer: Any, X: Any, y: Any, batch_size: int) -> AnyTrainer: ...


class Judges(Engine, Protocol):
    def Evaluation(self, network: Any, X: Any, y: Any) -> AnyEvaluation: ...


class Answers(Engine, Protocol):
    def Prediction(self, network: Any, n: Any) -> AnyPrediction: ...


"""


def offer(engine, kind, number=0):
    """Return lines that mypy accepts if the module `engine` is what the Protocol `kind` says."""
    return f"import {engine} as engine_{number}\noffered_{number}: {kind} = engine_{number}\n"


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """Return a function that runs mypy over modules given as text by name, and returns its report."""
    folder = tmp_path_factory.mktemp("mypy")
    # With imports from elsewhere not followed, numpy's types are not read: a run takes a second instead of twenty. An
    # engine that changes a few functions of another defines them a second time.
    options = ["--config-file=", "--follow-imports=skip", "--ignore-missing-imports", "--disable-error-code=no-redef"]
    options.append(f"--cache-dir={folder / 'cache'}")

    def run(**modules):
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
        files = [*(folder / f"{name}.py" for name in modules), *sorted(FOLDER.glob("*.py"))]
        return api.run([*options, *map(str, files)])[0]

    return run


@pytest.fixture(scope="module")
def check(mypy):
    """Return a function that offers a module, given as text, and returns mypy's report."""
    return lambda source, kind="Engine": mypy(fake=source, offering=OFFER + offer("fake", kind))


def changed(old, new, source=BASELINE):
    assert source.count(old) == 1
    return source.replace(old, new)


def test_every_engine_in_the_folder_is_one(mypy):
    """Those for a GPU too, where there is none: mypy reads a module and does not import it."""
    assert len(engines.names()) > 10
    lines = [offer(f"mlpkit.engines.{name}", "Engine", i) for i, name in enumerate(engines.names())]
    assert "Success" in (report := mypy(offering=OFFER + "".join(lines))), report


def test_every_engine_that_trains_epochs_can_be_asked_why_not(mypy):
    assert {"numba_hybrid", "numba_step", "cuda_persistent"} <= set(TRAINS_EPOCHS)
    lines = [offer(f"mlpkit.engines.{name}", "TrainsEpochs", i) for i, name in enumerate(TRAINS_EPOCHS)]
    assert "Success" in (report := mypy(offering=OFFER + "".join(lines))), report


def test_every_engine_that_evaluates_is_made_as_all_are(mypy):
    lines = [offer(f"mlpkit.engines.{name}", "Judges", i) for i, name in enumerate(with_class("Evaluation"))]
    assert "Success" in (report := mypy(offering=OFFER + "".join(lines))), report


def test_every_engine_that_compiles_answers_is_made_as_all_are(mypy):
    names = with_class("Prediction")
    assert "cuda_conv_graph_bf16" in names
    lines = [offer(f"mlpkit.engines.{name}", "Answers", i) for i, name in enumerate(names)]
    assert "Success" in (report := mypy(offering=OFFER + "".join(lines))), report


@pytest.mark.parametrize("name", TRAINS_EPOCHS)
def test_parameters_have_the_names_that_are_documented(name):
    """mypy sees how many there are, and not in which order. The module is read, for it may need a GPU."""
    found = parameters((FOLDER / f"{name}.py").read_text("utf-8"))
    assert found["why_not"] == ["model", "optimizer", "batch_size"]
    assert found.get("Trainer.__init__", INIT)[: len(INIT)] == INIT  # more must have defaults, as mypy sees
    assert found.get("Trainer.epoch", EPOCH) == EPOCH


INIT, EPOCH = ["self", "network", "optimizer", "X", "y", "batch_size"], ["self", "order"]


def parameters(source):
    """Return the names of the parameters of each function, and of each class's methods."""
    found = {}
    for node in ast.parse(source).body:
        for each in getattr(node, "body", []) if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef):
                name = each.name if each is node else f"{node.name}.{each.name}"
                found[name] = [argument.arg for argument in each.args.args]
    return found


def test_the_baseline_is_accepted(check):
    assert "Success" in check(BASELINE)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (changed("def adam_update", "def adam"), "adam_update"),
        (changed("def relu(z)", "def relu(z, slope)"), "relu"),
        (changed("def argmax(z)", "def argmax()"), "argmax"),
        (changed("def axpy(alpha, x, y)", "def axpy(x, alpha, y)"), "axpy"),
        (changed("def synchronize():", "def synchronize() -> int:"), "synchronize"),
        (changed("def gather(X, index):\n    return X[index]", "gather = 3"), "gather"),
        (changed("def all_finite(array)", "def finite(array)"), "all_finite"),
        (changed("def now()", "def now(clock)"), "now"),
    ],
    ids=["missing", "one more", "one less", "another order", "another result", "no function", "not finite", "a clock"],
)
def test_a_wrong_engine_is_rejected(check, source, named):
    report = check(source)
    assert "Found" in report
    assert named in report


WHOLE = HYBRID.replace("from .", "from mlpkit.engines.")  # it stands in another folder


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("def why_not(model, optimizer, batch_size)", "def why(model, optimizer, batch_size)", "why_not"),
        ("def why_not(model, optimizer, batch_size)", "def why_not(model, optimizer)", "why_not"),
        ("class Trainer(StepByStep)", "class Trains(StepByStep)", "Trainer"),
        ("X, y, batch_size):\n", "X, y):\n", "Trainer"),
        ("class Trainer(StepByStep)", "class Trainer", "Trainer"),
        ("    def step(self, x, labels)", "    def epoch(self, order, why)", "Trainer"),
        ("    def step(self, x, labels)", "    close = None\n\n    def step(self, x, labels)", "Trainer"),
    ],
    ids=["no reason", "half a reason", "no trainer", "no batch size", "no epoch", "another epoch", "no close"],
)
def test_a_wrong_trainer_is_rejected(check, old, new, named):
    assert "Success" in check(WHOLE, "TrainsEpochs")
    report = check(changed(old, new, WHOLE), "TrainsEpochs")
    assert "Found" in report
    assert named in report
