"""mypy holds every engine to the Protocol: a module with a function missing, or with other parameters, is rejected."""

import gc
import inspect
from pathlib import Path

import pytest

from mlpkit import engines
from mlpkit.engines import numpy_baseline

api = pytest.importorskip("mypy.api", reason="mypy is not installed")
FOLDER = Path(engines.__file__).parent
BASELINE = inspect.getsource(numpy_baseline)
OFFER = "from mlpkit.engines.protocol import Engine\n\n"


def offer(engine, number=0):
    """Return lines that mypy accepts if the module `engine` is what the Protocol says."""
    return f"import {engine} as engine_{number}\noffered_{number}: Engine = engine_{number}\n"


@pytest.fixture(scope="module")
def mypy(tmp_path_factory, compile_cache):
    """Return a function that runs mypy over modules given as text by name, and returns its report."""
    folder = tmp_path_factory.mktemp("mypy")
    # With imports from elsewhere not followed, numpy's types are not read: a run takes a second instead of twenty. An
    # engine that changes a few functions of another defines them a second time.
    options = ["--config-file=", "--follow-imports=skip", "--ignore-missing-imports", "--disable-error-code=no-redef"]
    options.append(f"--cache-dir={compile_cache / 'mypy-engines'}")

    def run(**modules):
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
        files = [*(folder / f"{name}.py" for name in modules), *sorted(FOLDER.glob("*.py"))]
        report = api.run([*options, *map(str, files)])[0]
        gc.freeze()  # which mypy takes back: see conftest.py
        return report

    return run


@pytest.fixture(scope="module")
def check(mypy):
    """Return a function that offers a module, given as text, and returns mypy's report."""
    return lambda source: mypy(fake=source, offering=OFFER + offer("fake"))


def changed(old, new):
    assert BASELINE.count(old) == 1
    return BASELINE.replace(old, new)


def test_every_engine_in_the_folder_is_one(mypy):
    """Those for a GPU too, where there is none: mypy reads a module and does not import it."""
    assert len(engines.names()) > 10
    lines = [offer(f"mlpkit.engines.{name}", i) for i, name in enumerate(engines.names())]
    assert "Success" in (report := mypy(offering=OFFER + "".join(lines))), report


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
