"""mypy holds every engine to the Protocol: a module with a function missing, or with other parameters, is rejected."""

import ast
import inspect
from pathlib import Path

import pytest

from mlpkit import engines
from mlpkit.engines import numpy_baseline

api = pytest.importorskip("mypy.api", reason="mypy is not installed")
BASELINE = inspect.getsource(numpy_baseline)


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """Return a function that runs mypy over a module given as text, offered as an Engine, and returns its report."""
    folder = tmp_path_factory.mktemp("mypy")
    (folder / "offer.py").write_text("import fake\nfrom mlpkit.engines import Engine\n\nengine: Engine = fake\n")
    package = Path(engines.__file__).parent
    # With its imports not followed, numpy's types are not read, and a run takes a second instead of twenty.
    options = ["--config-file=", "--follow-imports=skip", "--ignore-missing-imports", f"--cache-dir={folder / 'cache'}"]

    def run(source):
        (folder / "fake.py").write_text(source)
        files = [folder / "offer.py", folder / "fake.py", package / "__init__.py"]
        return api.run([*options, *map(str, files)])[0]

    return run


def changed(old, new):
    assert BASELINE.count(old) == 1
    return BASELINE.replace(old, new)


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
    ],
    ids=["missing", "one more", "one less", "another order", "another result", "no function"],
)
def test_a_wrong_engine_is_rejected(check, source, named):
    report = check(source)
    assert "Found" in report
    assert named in report


def test_every_engine_is_shown_to_mypy():
    """`load` knows `NAMES`; the tuple `_engines` at the end of the module is what mypy checks."""
    tree = ast.parse(inspect.getsource(engines))
    (shown,) = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", None) == "_engines"
    )
    assert sorted(name.id for name in shown.elts) == sorted(engines.NAMES)
