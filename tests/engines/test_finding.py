"""The folder is the list of engines: a file in it is found, named, labelled and loaded, and nobody keeps a list."""

import inspect
import sys

import numpy as np
import pytest
from shared import REASONS, one_sentence
from test_engines import ARGUMENTS, Case

from mlpkit import engines
from mlpkit.engines import numpy_baseline
from mlpkit.nn.models import LENET5, MLP


def test_engines_come_by_library_in_the_order_of_the_chapters():
    names = engines.names()
    libraries = [engines.library(name) for name in names]
    assert list(dict.fromkeys(libraries)) == ["numpy", "python", "numba", "cupy", "cuda"]
    assert libraries == sorted(libraries, key=engines.LIBRARIES.index)
    for library in engines.LIBRARIES:
        same = [name for name in names if engines.library(name) == library]
        assert same == sorted(same)
    assert names[0] == engines.BASELINE
    assert not {"protocol", "threads", "loops", "cuda"} & set(names)


def test_what_an_engine_stands_on_is_in_its_name():
    assert [name for name in engines.names() if engines.interpreted(name)] == ["python_lists", "python_loops"]
    on_gpu = [name for name in engines.names() if engines.on_gpu(name)]
    assert {engines.library(name) for name in on_gpu} == {"cupy", "cuda"}


def test_every_engine_has_a_label_of_its_own():
    labels = [engines.label(name) for name in engines.names()]
    assert len(set(labels)) == len(labels)
    for label in labels:
        assert 0 < len(label) <= 60
        assert not set("\n.:") & set(label)
    assert engines.label("numba_parallel") == "Numba loops, parallel"


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Return a folder whose files are engines too."""
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("mlpkit.engines."):
            del sys.modules[name]
            vars(engines).pop(name.rpartition(".")[2], None)


def test_an_engine_in_the_folder_is_found(folder):
    (folder / "numpy_abacus.py").write_text('"""NumPy, on beads: as it was.\n"""\n\nfrom .numpy_baseline import *\n')
    (folder / "tpu_clouds.py").write_text('"""A library that nobody knows"""\n')
    (folder / "plain.py").write_text("raise AssertionError('this is no engine')\n")
    (folder / "not_an_engine").mkdir()
    (folder / "not_an_engine" / "__init__.py").write_text("")
    names = engines.names()
    assert names[:2] == ("numpy_abacus", "numpy_baseline")
    assert names[-1] == "tpu_clouds"
    assert not {"plain", "not_an_engine"} & set(names)
    assert engines.label("numpy_abacus") == "NumPy, on beads"
    assert engines.label("tpu_clouds") == "A library that nobody knows"
    assert engines.load("numpy_abacus").relu is engines.load("numpy_baseline").relu
    assert "numpy_abacus" not in engines.LIBRARIES


def test_a_label_is_read_without_running_the_engine(folder):
    (folder / "cuda_boom.py").write_text('"""CUDA, boom: never run."""\n\nraise AssertionError("it was run")\n')
    assert engines.label("cuda_boom") == "CUDA, boom"
    (folder / "numpy_bare.py").write_text("x = 3\n")
    assert engines.label("numpy_bare") == "numpy_bare"
    assert engines.label("numpy_nowhere") == "numpy nowhere"


@pytest.mark.parametrize("content", [b"def relu(z:\n", b"\xff\xfe", b"x = '\0'\n", b"  indented\n", b"("])
def test_an_engine_that_is_no_python_stands_in_nobodys_way(content, folder):
    (folder / "numpy_broken.py").write_bytes(content)
    labels = {name: engines.label(name) for name in engines.names()}
    assert labels["numpy_broken"] == "numpy_broken"
    assert labels[engines.BASELINE].startswith("NumPy")
    assert "numpy_broken" in engines.available()["numpy_broken"]
    with pytest.raises(engines.EngineUnavailable) as caught:
        engines.load("numpy_broken")
    one_sentence(caught.value, "numpy_broken")


def test_engines_that_take_all_that_a_model_needs_from_another_can_be_left_out(folder):
    head = '"""NumPy, odd: never run."""\n\nraise AssertionError("it was run")\n'
    (folder / "numpy_odd.py").write_text(head + 'OWN = ("conv", "conv_backward_input")\n')
    (folder / "numpy_even.py").write_text(head + 'OWN = ("relu",)\n')
    (folder / "numpy_any.py").write_text(head + "OWN = tuple(sorted(dir()))\n")
    assert engines.own_operations("numpy_odd") == {"conv", "conv_backward_input"}
    assert engines.own_operations("numpy_any") is None
    assert engines.own_operations(engines.BASELINE) is None
    everywhere, dense = set(engines.names()), set(engines.names(MLP.operations))
    assert {"numpy_odd", "numpy_even", "numpy_any"} < everywhere
    assert dense & {"numpy_odd", "numpy_even", "numpy_any"} == {"numpy_even", "numpy_any"}
    assert "numpy_odd" in engines.names(LENET5.operations)
    assert engines.BASELINE in dense


@pytest.mark.parametrize("name", [name for name in engines.names() if engines.own_operations(name)])
def test_an_engine_that_names_its_own_operations_takes_all_others(name):
    """Or it would be left out of what it does in its own way."""
    if reason := REASONS[name]:
        pytest.skip(reason)
    engine, own = engines.load(name), engines.own_operations(name)
    others = [other for other in engines.names() if other != name and engines.on_gpu(other) == engines.on_gpu(name)]
    here = [engines.load(other) for other in others if not REASONS[other]]
    operations = {each for each, function in vars(numpy_baseline).items() if inspect.isfunction(function)}
    operations = {each for each in operations if each[0] != "_" and hasattr(engine, each)}
    assert own <= operations
    for each in operations - own:
        same = any(getattr(other, each, None) is getattr(engine, each) for other in here)
        assert same or any(computes_the_same(engine, other, each) for other in here), each


def computes_the_same(one, other, operation):
    """Say whether two engines compute the same bits: one may call the other, as with images for rows."""
    found = []
    for engine in (one, other):
        plain = dict.fromkeys(ARGUMENTS, "contiguous")
        case = Case(operation, engine, np.float32, plain, dict(n=3, k=4, m=5, p=6), np.random.default_rng(0), np.int64)
        returned = case.run()
        arrays = returned if isinstance(returned, tuple) else (returned,)
        found.append([np.array(array).tolist() for array in (*arrays, *case.views.values())])
    return found[0] == found[1]


def test_a_name_that_no_file_has_is_refused():
    for name in ("numpi", "protocol", "threads", "loops", "numpy_baseline.relu", "..checks", ""):
        with pytest.raises(ValueError, match="there is no engine") as caught:
            engines.load(name)
        one_sentence(caught.value, *engines.names())
    with pytest.raises(TypeError, match="by its name, a text, not by 3"):
        engines.load(3)
