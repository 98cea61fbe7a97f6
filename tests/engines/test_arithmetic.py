"""An engine is arithmetic on arrays: what knows networks and optimizers stands above it, and no layer is a text."""

import ast
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

from mlpkit import engines, executors, nn
from mlpkit.nn.layers import Layer
from mlpkit.nn.losses import Loss

FOLDERS = {package.__name__.rpartition(".")[2]: Path(package.__file__).parent for package in (engines, executors)}
OF_EXECUTORS = {"Trainer", "why_not", "Evaluation", "Prediction"}
ABOVE = {"nn", "optim", "training", "executors"}
KINDS = {name for module in pkgutil.iter_modules(nn.__path__, "mlpkit.nn.")
         for name, kind in vars(import_module(module.name)).items()
         if isinstance(kind, type) and issubclass(kind, Layer | Loss)}  # fmt: skip


def faults(source):
    """Yield what in an engine's source speaks of networks and optimizers."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in OF_EXECUTORS:
            yield node.name
        if isinstance(node, ast.Name | ast.arg | ast.Attribute):
            name = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "attr", None)
            if name in ("network", "optimizer"):
                yield ast.unparse(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            if ABOVE & {part for module in modules for part in module.split(".")}:
                yield ast.unparse(node)


def named(source):
    """Return the layers and losses that stand in a source as texts."""
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {text for text in texts if isinstance(text, str) and text in KINDS}


@pytest.mark.parametrize("path", sorted(FOLDERS["engines"].rglob("*.py")), ids=lambda path: path.stem)
def test_an_engine_knows_arrays_and_neither_networks_nor_optimizers(path):
    assert not list(faults(path.read_text("utf-8")))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_layer_and_no_loss_is_known_by_its_name(folder):
    """`type(layer) is Conv` follows whoever renames Conv; a text does not."""
    paths = list(FOLDERS[folder].rglob("*.py"))
    assert len(paths) > 20
    assert not {path.name: found for path in paths if (found := named(path.read_text("utf-8")))}


@pytest.mark.parametrize(
    "source",
    ["class Trainer: ...", "def why_not(model): ...", "network.theta", "def step(optimizer): ...",
     "self.network = None", "from mlpkit.nn.layers import ReLU", "from ..executors import plain"],
)  # fmt: skip
def test_what_an_engine_may_not_say_is_seen(source):
    assert list(faults(source))


def test_a_layer_known_by_its_name_is_seen():
    assert named("if layer.kind == 'Conv' or loss == 'Hinge': ...") == {"Conv", "Hinge"}
