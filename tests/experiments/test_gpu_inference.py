"""The record of answers on a GPU: what it says is derived from one that is made up; peers get the same layers."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from experiments import gpu_image_inference
from experiments.lab.peers import predicting
from mlpkit.engines import numpy_baseline
from mlpkit.nn.models import MODELS
from mlpkit.nn.network import Network

ABOUT = {"model": "lenet5", "n": 8, "difference": 1e-3, "equal": 1.0, "why_not": None}


def run(engine, way, device, waited, **more):
    about = {"engine": engine, "precision": "bf16", "way": way, "device_us": device, "waited_us": waited}
    return ABOUT | about | more


RECORD = {
    "experiment": "gpu_image_inference",
    "settings": {"sizes": [1, 8]},
    "runs": [
        run("engine:cuda_conv_graph_bf16", "graph", [5, 4, 6], [20, 22, 21]),
        run("pytorch", "graph", [30, 30], [41, 43]),
        run("pytorch", "compiled, graph", [25, 25], [50, 50]),
        run("jax", None, [], [], n=None, why_not="there is no such library"),
    ],
}


def test_the_fastest_variant_of_a_peer_counts():
    def found(engine, n=8, **more):
        return gpu_image_inference.us(RECORD, engine, "bf16", "lenet5", n, **more)

    assert found("engine:cuda_conv_graph_bf16") == 5
    assert found("pytorch") == 25
    assert found("pytorch", clock="waited_us") == 42
    assert found("pytorch", n=1) is None
    assert found("jax") is None


def test_who_says_float32_and_multiplies_fewer_digits_does_not_count():
    def found(precision, difference):
        record = RECORD | {"runs": [RECORD["runs"][0] | {"precision": precision, "difference": difference}]}
        us = gpu_image_inference.us(record, "engine:cuda_conv_graph_bf16", precision, "lenet5", 8)
        assert ("too much for" in gpu_image_inference.table(record)) == (us is None)
        return us

    assert found("float32", 5e-7) == found("tf32", 3e-4) == 5
    assert found("float32", 3e-4) is None
    assert found("bf16", float("nan")) is None


def test_who_is_more_exact_may_take_part():
    def found(precision, ours=False, **more):
        return gpu_image_inference.fastest(record, ours, precision, "lenet5", 8, **more)

    runs = [("float32", 20, 60, 1e-6), ("tf32", 30, 50, 1e-4), ("fp16", 28, 70, 1e-3)]
    runs = [run("pytorch", "graph", [us], [waited], precision=p, difference=d) for p, us, waited, d in runs]
    record = RECORD | {"runs": [*RECORD["runs"], *runs]}
    assert found("float32") == found("tf32") == found("fp16") == found("bf16") == (20, "pytorch, float32")
    assert found("bf16", clock="waited_us") == (42, "pytorch, bf16")
    assert found("fp16", clock="waited_us") == (50, "pytorch, tf32")
    assert found("bf16", ours=True) == (5, "cuda_conv_graph_bf16, bf16")
    assert found("fp16", ours=True) == (None, None)


def test_the_table_has_a_line_each_and_the_reason():
    title, ours, theirs, absent, *_, reason = gpu_image_inference.table(RECORD).splitlines()
    assert title.split() == ["lenet5,", "us", "on", "the", "GPU", "1", "8"]
    assert ours.split() == ["cuda_conv_graph_bf16,", "bf16", "-", "5.0"]
    assert theirs.split() == ["pytorch,", "bf16", "-", "25.0"]
    assert absent.split() == ["jax,", "bf16", "-", "-"]
    assert reason == "not run: jax: there is no such library"


OPERATIONS = SimpleNamespace(
    Conv=lambda at, x: numpy_baseline.conv(x, at.W, getattr(at, "b", None), at.layer.stride, at.layer.padding),
    Linear=lambda at, x: numpy_baseline.linear(x, at.W, at.b),
    ReLU=lambda at, x: numpy_baseline.relu(x),
    MaxPool=lambda at, x: numpy_baseline.max_pool(x, at.layer.size, at.layer.stride or at.layer.size)[0],
    Flatten=lambda at, x: np.moveaxis(x, 1, -1).reshape(len(x), -1) if x.ndim == 4 else x,
)


@pytest.mark.parametrize("name", ["lenet5", "fashion_cnn", "residual"])
def test_peers_get_folded_layers_for_channels_last(name, tmp_path):
    network, rng = Network(model=MODELS[name]), np.random.default_rng(0)
    network.statistics[:] += rng.uniform(0.1, 1, network.statistics.shape).astype("f4")
    network.save(tmp_path / "network.npz")
    x = rng.integers(0, 256, (3, *network.model.input)).astype(np.uint8)
    task = predicting.Task(str(tmp_path / "network.npz"), x, network.forward(x))
    found = predicting.through(task.bound_layers(), OPERATIONS, x / np.float32(255))
    assert_allclose(found, task.wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["lenet5", "residual"])
def test_pytorchs_operations_are_the_layers(name, tmp_path):
    torch = pytest.importorskip("torch")
    from experiments.lab.peers.predicting import pytorch

    network = Network(model=MODELS[name])
    network.save(tmp_path / "network.npz")
    x = np.random.default_rng(0).integers(0, 256, (3, *network.model.input)).astype(np.uint8)
    task = predicting.Task(str(tmp_path / "network.npz"), x, network.forward(x))
    bound_layers = task.bound_layers()
    predicting.each_array(bound_layers, torch.from_numpy)
    found = predicting.through(bound_layers, pytorch.OPERATIONS, torch.from_numpy(x) / 255)
    assert_allclose(found.numpy(), task.wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["lenet5", "residual"])
def test_jaxs_predictions_are_the_networks(name, tmp_path, monkeypatch):
    pytest.importorskip("jax")
    from experiments.lab.peers.predicting import jax

    monkeypatch.setattr(jax, "SIDE", 64)
    monkeypatch.setattr(jax, "FEW", 0)  # a long loop takes a CPU minutes
    network = Network(model=MODELS[name])
    network.save(tmp_path / "network.npz")
    x = np.random.default_rng(0).integers(0, 256, (3, *network.model.input)).astype(np.uint8)
    task = predicting.Task(str(tmp_path / "network.npz"), x, network.forward(x))
    (way,) = jax.variants(task, 3, "float32")
    assert_allclose(way.predict(x), task.wanted, rtol=1e-3, atol=1e-4)
    assert way.device_us(predicting.TIMES) > 0


def test_a_clock_is_read_when_all_is_warm(tmp_path, monkeypatch):
    network, asked = Network(model=MODELS["lenet5"]), []
    network.save(tmp_path / "network.npz")
    x = np.random.default_rng(0).integers(0, 256, (4, *network.model.input)).astype(np.uint8)
    task = predicting.Task(str(tmp_path / "network.npz"), x, network.forward(x))

    def predict(x):
        asked.append(len(x))
        return network.forward(x)

    peer = SimpleNamespace(
        variants=lambda task, n, precision: [predicting.Variant("way", lambda times: times, predict)]
    )
    monkeypatch.setattr(predicting, "import_module", lambda name: peer)
    (found,) = predicting.prepared("peer", task, (3,), "float32")()
    assert (found["n"], len(found["waited_us"]), found["equal"]) == (3, predicting.WAITS, 1)
    assert found["device_us"] == [predicting.TIMES] * predicting.SAMPLES
    assert asked == [3] * (2 + predicting.WARM + predicting.WAITS)


@pytest.mark.gpu
def test_a_small_run():
    peers = (("engine:cuda_conv_graph_bf16", "bf16"), ("nobody", "bf16"))
    plan = gpu_image_inference.Plan(models=("lenet5",), sizes=(1, 4), peers=peers, steps=3)
    one, four, nobody = gpu_image_inference.measure(lambda record: None, lambda text: None, plan=plan)["runs"]
    assert (one["n"], four["n"], one["why_not"], four["why_not"]) == (1, 4, None, None)
    assert min(one["device_us"] + one["waited_us"]) > 0
    assert "nobody" in nobody["why_not"]
