"""The folder's modules are the executors: each is an engine's, is what the Protocols say, and can be imported."""

import ast
import gc
import inspect
import sys
from pathlib import Path
from unittest.mock import MagicMock

import emulator
import pytest

from mlpkit import engines, executors
from mlpkit.executors import numba_hybrid, plain
from mlpkit.kernels import gpu

api = pytest.importorskip("mypy.api", reason="mypy is not installed")
FOLDER = Path(executors.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*_*.py") if not path.stem.startswith("__"))
HYBRID = inspect.getsource(numba_hybrid)


def test_every_executors_name_is_an_engines():
    assert {"numba_step", "cupy_fused", "cuda_persistent", "cuda_conv_graph_bf16"} < set(NAMES)
    assert set(NAMES) <= set(engines.names())


# What mypy reads

OFFER = """
from typing import Any, Protocol

from mlpkit.executors.protocol import Evaluation as AnyEvaluation
from mlpkit.executors.protocol import Prediction as AnyPrediction
from mlpkit.executors.protocol import Trainer as AnyTrainer


class Executor(Protocol):
    def why_not(self, model: Any, optimizer: Any, batch_size: int) -> str | None: ...
    def Trainer(self, network: Any, optimizer: Any, X: Any, y: Any, batch_size: int) -> AnyTrainer: ...
    def Evaluation(self, network: Any, X: Any, y: Any) -> AnyEvaluation: ...
    def Prediction(self, network: Any, n: Any) -> AnyPrediction: ...


"""


def offer(module, number=0):
    """Return lines that mypy accepts if a module is what the Protocols say."""
    return f"import {module} as module_{number}\noffered_{number}: Executor = module_{number}\n"


@pytest.fixture(scope="module")
def mypy(tmp_path_factory, compile_cache):
    """Return a function that runs mypy over modules given as text by name, and returns its report."""
    folder = tmp_path_factory.mktemp("mypy")
    options = ["--config-file=", "--follow-imports=skip", "--ignore-missing-imports"]
    options.append(f"--cache-dir={compile_cache / 'mypy-executors'}")

    def run(**modules):
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
        files = [*(folder / f"{name}.py" for name in modules), *sorted(FOLDER.rglob("*.py"))]
        report = api.run([*options, *map(str, files)])[0]
        gc.freeze()  # which mypy takes back: see conftest.py
        return report

    return run


def test_every_executor_is_what_the_protocols_say(mypy):
    """Those for a GPU too, where there is none: mypy reads a module and does not import it."""
    lines = [offer(f"mlpkit.executors.{name}", i) for i, name in enumerate(["plain", *NAMES])]
    assert "Success" in (report := mypy(offering=OFFER + "".join(lines))), report


WHOLE = HYBRID.replace("from .", "from mlpkit.executors.")  # it stands in another folder


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
        ("import Evaluation as Evaluation\n", "import Batch as Evaluation\n", "Evaluation"),
        ("from mlpkit.executors.plain import Prediction as Prediction\n", "", "Prediction"),
    ],
    ids=["no reason", "half a reason", "no trainer", "no batch size", "no epoch", "another epoch", "no close",
         "no evaluation", "no prediction"],
)  # fmt: skip
def test_a_wrong_executor_is_rejected(mypy, old, new, named):
    assert WHOLE.count(old) == 1
    for source, said in ((WHOLE, "Success"), (WHOLE.replace(old, new), "Found")):
        report = mypy(fake=source, offering=OFFER + offer("fake"))
        assert said in report
    assert named in report


@pytest.mark.parametrize("name", ["plain", *NAMES])
def test_parameters_have_the_names_that_are_documented(name):
    """mypy sees how many there are, and not in which order. The module is read, for it may need a GPU."""
    found = parameters((FOLDER / f"{name}.py").read_text("utf-8"))
    assert found.get("why_not", WHY) == WHY
    assert found.get("Trainer.__init__", INIT)[: len(INIT)] == INIT  # more must have defaults, as mypy sees
    assert found.get("Trainer.epoch", EPOCH) == EPOCH
    assert found.get("Evaluation", EVALUATION) == found.get("Evaluation.__init__", ["self", *EVALUATION])[1:]
    assert found.get("Prediction.__init__", PREDICTION)[: len(PREDICTION)] == PREDICTION


WHY, INIT = ["model", "optimizer", "batch_size"], ["self", "network", "optimizer", "X", "y", "batch_size"]
EPOCH, EVALUATION, PREDICTION = ["self", "order"], ["network", "X", "y"], ["self", "network", "n"]


def parameters(source):
    """Return the names of the parameters of each function, and of each class's methods."""
    found = {}
    for node in ast.parse(source).body:
        for each in getattr(node, "body", []) if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(each, ast.FunctionDef):
                name = each.name if each is node else f"{node.name}.{each.name}"
                found[name] = [argument.arg for argument in each.args.args]
    return found


# What Python reads: all of them, with no GPU, beside a CuPy that is none


@pytest.fixture
def beside_cupy(monkeypatch, tmp_path):
    """Let `import cupy` bring a stand-in, and every module of `engines` and `executors` be imported anew beside it."""
    cupy = emulator._replace_cupy(monkeypatch, tmp_path, 0)
    for name in ("ElementwiseKernel", "ReductionKernel", "RawKernel", "RawModule"):
        setattr(cupy, name, MagicMock())
    for module in ("cupy", "cupyx"):
        monkeypatch.setattr(sys.modules[module], "__getattr__", lambda name: MagicMock(), raising=False)
    monkeypatch.setattr(gpu, "require", lambda: None)
    monkeypatch.setattr(gpu, "require_capability", lambda least, alone=False: None)
    ours = {name: module for name, module in sys.modules.items() if name.startswith("mlpkit.")}
    places = [(sys.modules[package], last) for package, _, last in (name.rpartition(".") for name in ours)]
    before = [(package, last, vars(package)[last]) for package, last in places if last in vars(package)]
    for name in ours:
        knows = name.startswith(("mlpkit.engines.", "mlpkit.executors."))
        if knows and not name.startswith(("mlpkit.engines.loops", "mlpkit.engines.num")):  # these know no CuPy
            monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in sys.modules if name.startswith("mlpkit.") and name not in ours]:
        forget(name)  # nobody else is to find what knows the stand-in
    for package, last, found in before:  # a module, or a function of its name, as `data.batches`
        setattr(package, last, found)


def forget(name):
    package, _, last = name.rpartition(".")
    del sys.modules[name]
    if hasattr(sys.modules.get(package), last):
        delattr(sys.modules[package], last)


GPUS = [name for name in engines.names() if engines.on_gpu(name) and name != "cuda_cudnn"]  # which needs cuDNN


@pytest.mark.usefixtures("beside_cupy")
def test_every_engine_for_a_gpu_and_every_executor_can_be_imported():
    for name in GPUS:
        engine = emulator.own(f"engines.{name}")
        assert callable(engine.linear)
        if name in NAMES:
            executor = emulator.own(f"executors.{name}")
            assert all(callable(getattr(executor, each)) for each in ("why_not", "Trainer", "Evaluation", "Prediction"))


@pytest.mark.usefixtures("beside_cupy")
def test_what_has_a_faster_way_is_what_its_name_says():
    """A class of the same name that was imported later would hide it."""
    graph = emulator.own("executors.cuda_conv_graph")
    for name in ("cuda_conv_graph", "cuda_conv_graph_tf32", "cuda_conv_graph_bf16"):
        executor = emulator.own(f"executors.{name}")
        bases = [f"{base.__module__}.{base.__qualname__}" for base in executor.Prediction.__mro__]
        assert "mlpkit.executors.cuda.prediction.Prediction" in bases
        assert "mlpkit.executors.cuda.plan.PlannedTrainer" in [
            f"{base.__module__}.{base.__qualname__}" for base in executor.Trainer.__mro__
        ]
        assert executor.Evaluation.__qualname__ == plain.Evaluation.__qualname__
    assert graph.Prediction.precision == "float32"
    for name in ("cuda_graph", "cuda_graph_cublas", "cuda_graph_epoch", "cuda_persistent", "cuda_cluster"):
        assert emulator.own(f"executors.{name}").Evaluation.__module__ == "mlpkit.executors.cupy_fused"
