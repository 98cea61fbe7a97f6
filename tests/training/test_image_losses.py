"""Networks whose targets are images: two convolutions learn to leave an image as it is, on each engine alike."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shared import REASONS

from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.optim import Adam
from mlpkit.training.fit import fit

IDENTITY = Model((1, 8, 8), (Conv(8, 3, padding=1), Conv(1, 3, padding=1)), MeanSquaredError(peak=1.0))
ON_CPU = "numpy_baseline", "numba_conv"
ON_GPU = "cupy_conv", "cuda_conv", "cuda_conv_graph"


def pixels(n=64):
    """Return images of bytes, each of which is smooth."""
    steps = np.random.default_rng(0).normal(size=(n, 1, 8, 8)).cumsum(axis=2).cumsum(axis=3)
    low, high = (f(steps, axis=(2, 3), keepdims=True) for f in (np.min, np.max))
    return (255 * (steps - low) / (high - low)).astype(np.uint8)


def learned(engine, X, targets, epochs=30):
    network = Network(engine, IDENTITY, seed=1)
    return fit(network, Adam(network, 0.01), (X, targets), (X, targets), epochs=epochs, batch_size=16)


@pytest.mark.parametrize("engine", ON_CPU)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_identity_is_learned(engine, dtype):
    X = pixels()
    targets = X if dtype == np.uint8 else X / np.float32(255)
    history = learned(engine, X, targets)
    assert np.mean(history.loss[-4:]) < history.loss[0] / 10
    assert_allclose(history.loss, learned("numpy_baseline", X, X / np.float32(255)).loss, rtol=1e-3, atol=1e-6)
    assert [*history.validation] == ["loss", "psnr"]
    first, *_, last = history.validation["psnr"]
    assert last > first + 5


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ON_GPU)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_identity_is_learned_on_a_gpu(engine, dtype):
    X = pixels()
    targets = X if dtype == np.uint8 else X / np.float32(255)
    found, wanted = learned(engine, X, targets), learned("numpy_baseline", X, targets)
    assert np.mean(found.loss[-4:]) < found.loss[0] / 10
    assert_allclose(found.loss, wanted.loss, rtol=1e-2, atol=1e-5)
    assert_allclose(found.loss[:10], wanted.loss[:10], rtol=1e-4)
    for name in ("loss", "psnr"):
        assert_allclose(found.validation[name], wanted.validation[name], rtol=2e-2)


IN_SHORT = {
    "a perceptron": Model((64,), (Linear(16), ReLU(), Linear(16), ReLU(), Linear(16), ReLU(), Linear(4))),
    "a convolution": Model((1, 8, 8), (Conv(4, 3), ReLU(), Flatten(), Linear(4))),
}
GPU_ENGINES = [name for name in REASONS if name.startswith(("cupy_", "cuda_"))]


@pytest.mark.gpu
@pytest.mark.parametrize("engine", GPU_ENGINES)
@pytest.mark.parametrize("model", IN_SHORT.values(), ids=IN_SHORT)
def test_labels_of_any_integers_are_the_same_labels_on_a_gpu(model, engine):
    if REASONS[engine]:
        pytest.skip(REASONS[engine])
    X = pixels().reshape(64, *model.input)
    labels, losses = np.arange(64) % 4, []
    for dtype in (np.int64, np.int32, np.uint8):
        try:
            network = Network(engine, model, seed=1)
            optimizer = Adam(network, 0.01)
            y = labels.astype(dtype)
            history = fit(network, optimizer, (X, y), (X, y), epochs=2, batch_size=32)
        except ValueError as error:  # another model, or another shape, is its
            pytest.skip(str(error))
        losses.append((history.loss, history.validation["loss"], history.validation["accuracy"]))
    assert losses[0] == losses[1] == losses[2]
