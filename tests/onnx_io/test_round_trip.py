"""Networks go out and come back as they were, and onnxruntime computes what we do."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from random_models import random_network
from shared import engine_like, one_sentence

from mlpkit.nn.layers import Layer, Linear, ReLU
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.models import LENET5, MODELS
from mlpkit.nn.network import Network

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")

from mlpkit import onnx_io  # noqa: E402
from mlpkit.onnx_io.writing import WRITERS  # noqa: E402

FEW = 40  # of the random models that do not take minutes


def inputs(network, n=3):
    rng = np.random.default_rng(7)
    return rng.normal(size=(n, *network.model.input)).astype(network.dtype)


def judged(path, x):
    """Return what onnxruntime makes of a file, which onnx's own checker has looked at, shapes and types too."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    onnx.checker.check_model(str(path), full_check=True)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(["output"], {"input": x})[0]


def check_round_trip(network, folder, fold):
    path, x = folder / "network.onnx", inputs(network)
    onnx_io.write(network, path, fold)
    mine, back = network.forward(x), onnx_io.read(path)
    scale = max(1, abs(mine).max())
    assert_allclose(judged(path, x), mine, rtol=0, atol=1e-5 * scale)
    assert_allclose(back.forward(x), mine, rtol=0, atol=1e-5 * scale)
    return back


@pytest.mark.peers
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_workbook_makes_the_round_trip(name, fold, tmp_path):
    network = Network("numpy_baseline", MODELS[name], seed=3)
    rng = np.random.default_rng(5)
    for array, view in network.model.statistics.views(network.statistics).items():
        view[...] = rng.uniform(0.5, 2, view.shape) if array.endswith("variance") else 0.1 * rng.normal(size=view.shape)
    back = check_round_trip(network, tmp_path, fold)
    if not fold:
        assert back.model == network.model
        assert_array_equal(back.theta, network.theta)
        assert_array_equal(back.statistics, network.statistics)


@pytest.mark.peers
@pytest.mark.parametrize("seeds", [range(FEW), pytest.param(range(FEW, 500), marks=pytest.mark.slow)], ids=str)
def test_random_models_make_the_round_trip(seeds, tmp_path):
    met = set()
    for seed in seeds:
        network = random_network(seed)
        met |= {type(layer) for _, layer, *_ in network.model.walk}
        try:
            check_round_trip(network, tmp_path, fold=bool(seed % 2))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {network.model}") from error
    assert met.issuperset(WRITERS)


def test_without_folding_a_network_comes_back_as_it_was(tmp_path):
    network = random_network(11)
    onnx_io.write(network, tmp_path / "a.onnx", fold=False)
    onnx_io.write(onnx_io.read(tmp_path / "a.onnx"), tmp_path / "b.onnx", fold=False)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_file_says_what_it_is(tmp_path):
    model = Model((6,), (Linear(5), ReLU(), Linear(2)), MeanSquaredError(peak=1.0))
    onnx_io.write(Network(model=model), tmp_path / "a.onnx", metadata={"classes": "left right"})
    found = onnx.load(tmp_path / "a.onnx")
    assert {one.key: one.value for one in found.metadata_props}["classes"] == "left right"
    assert (found.producer_name, found.opset_import[0].version) == ("mlpkit", 17)
    assert [one.dim_param for one in found.graph.input[0].type.tensor_type.shape.dim] == ["n", ""]
    assert onnx_io.read(tmp_path / "a.onnx").model.loss == MeanSquaredError(peak=1.0)


def test_float64_stays_float64(tmp_path):
    network = random_network(4, np.float64)
    onnx_io.write(network, tmp_path / "a.onnx")
    back = onnx_io.read(tmp_path / "a.onnx")
    assert back.dtype == np.float64
    assert_allclose(back.forward(inputs(network)), network.forward(inputs(network)), rtol=0, atol=1e-10)


def test_what_has_no_operator_is_refused(tmp_path):
    class Square(Layer):
        """A reader's own."""

    class Other(ReLU):
        """Looks like a ReLU, and may be none."""

    for layer in (Square(), Other()):
        with pytest.raises(ValueError, match=r"layer 1, \w+\(\)") as caught:
            onnx_io.write(Network(model=Model((6,), (Linear(5), layer, Linear(2)))), tmp_path / "a.onnx")
        one_sentence(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_network_on_another_engine_is_written_from_the_host(tmp_path):
    fetched = []
    engine = engine_like(to_numpy=lambda array: (fetched.append(array.shape), np.asarray(array))[1])
    onnx_io.write(Network(engine, LENET5), tmp_path / "a.onnx", fold=False)
    assert len(fetched) == len(LENET5.layout.shapes)
