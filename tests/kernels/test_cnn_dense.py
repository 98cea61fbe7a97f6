"""The end of a network in three kernels gives what the layers give one by one: here by the emulator, with no GPU."""

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shared import needs_hopper, sweep

sys.path.append(str(Path(__file__).parents[1] / "engines"))

import emulator

from experiments.lab import ptxas
from mlpkit.kernels.cnn import dense
from mlpkit.nn.models import mlp
from mlpkit.nn.network import Network

needs_compiler = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")
ERRORS = {"float32": 1e-6, "tf32": 4e-2}  # a unit near 0 may fall on the other side
EDGES = [  # of tiles, slices, units and layers
    (5, (70, 10)), (70, (150, 64, 10)), (2, (40, 160, 110, 5)), (3, (33, 20, 7, 3)), (2, (64, 300, 10)), (66, (40, 5)),
    (1, (3, 2, 2)), (2, (600, 10)), (2, (1100, 6)), (140, (20, 40, 10)),
]  # fmt: skip
CASES = [(precision, *of) for precision in ERRORS for of in EDGES]  # each of them is compiled for itself


def gradient(sizes, n, precision, x, labels, network, wants_dx):
    """Return the loss, the gradients as a vector, and dx."""
    found = np.full(network.theta.size, np.nan, np.float32)
    arrays = {name: a.view(emulator.Array) for name, a in network.views(network.theta.astype("f4")).items()}
    into = {name: a.view(emulator.Array) for name, a in network.views(found).items()}
    names = sorted({name.partition(".")[0] for name in arrays}, key=int)
    layers = [(arrays[f"{i}.W"], arrays[f"{i}.b"], into[f"{i}.W"], into[f"{i}.b"]) for i in names]
    about = dense.Sizes(n, sizes)
    losses, counter = np.full(3, np.nan, "f4").view(emulator.Array), np.ones(1, np.int32).view(emulator.Array)
    parts, step = dense.forward(about, layers, x.view(emulator.Array), precision)
    largest = np.full(1, 7, np.uint32).view(emulator.Array)
    row_losses = dense.examples(step, parts, labels.view(emulator.Array), precision, largest)
    dx = dense.gradients(step, row_losses, losses, counter, wants_dx, precision, largest)
    assert largest.view(np.float32)[0] == (0 if dx is None else np.abs(dx).max())
    assert counter[0] == 2
    assert np.isnan(losses[[0, 2]]).all()
    return losses[1], found, dx


@needs_compiler
@pytest.mark.parametrize(("precision", "n", "sizes"), sweep(CASES, *CASES[: len(EDGES) + 3], CASES[-1]))
def test_it_is_what_the_layers_are(n, sizes, precision, folder):
    rng = np.random.default_rng(0)
    network = Network("numpy_baseline", mlp(*sizes), dtype=np.float64)
    network.theta[:] += rng.normal(0, 0.01, network.theta.shape)
    network.theta[:] = network.theta.astype("f4")
    x, labels = rng.normal(size=(n, sizes[0])).astype("f4"), rng.integers(0, sizes[-1], n)
    wanted = network.loss_and_grad(x.astype("f8"), labels)
    dense._kernel.cache_clear()
    with emulator.with_cupy(folder):
        loss, found, dx = gradient(sizes, n, precision, x, labels, network, n != 3)
    dense._kernel.cache_clear()
    error = ERRORS[precision]
    assert_allclose(loss, wanted, rtol=error)
    assert np.linalg.norm(found - network.grad) <= error * np.linalg.norm(network.grad)
    assert (dx is None) == (n == 3)
    if dx is not None:
        assert dx.shape == x.shape
        assert np.isfinite(dx).all()
        step = 1e-5 * rng.normal(size=x.shape)
        rise = network.loss(x + step, labels) - network.loss(x - step, labels)
        assert_allclose((2 * dx * step).sum(), rise, rtol=0.02, atol=1e-9)


def input_gradient(network, x, labels):
    """Return the gradient of the mean loss by x, from the formulas."""
    arrays, ys = network.views(network.theta), [x.astype("f8")]
    names = sorted({name.partition(".")[0] for name in arrays}, key=int)
    for name in names:
        ys.append(np.maximum(ys[-1] @ arrays[f"{name}.W"] + arrays[f"{name}.b"], 0 if name != names[-1] else -np.inf))
    dz = np.exp(ys[-1] - ys[-1].max(1, keepdims=True))
    dz /= dz.sum(1, keepdims=True)
    dz[range(len(x)), labels] -= 1
    for name, y in zip(reversed(names), reversed(ys[:-1]), strict=True):
        dz = dz @ arrays[f"{name}.W"].T * ((y > 0) | (name == names[0]))
    return dz / len(x)


@needs_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize(("n", "sizes", "far"), [
    (128, (3200, 256, 10), 1), (64, (3200, 256, 10), 1), (128, (1056, 64, 7), 1), (64, (2080, 128, 64, 10), 1),
    (128, (3200, 256, 10), 1e6), (128, (1024, 128), 1),
])  # fmt: skip
def test_a_wide_first_layer_by_wgmma_is_what_the_layers_are(n, sizes, far, precision):
    """far: how much larger the values of some examples, and some inputs' weights, are: rows are held one by one."""
    import cupy as cp

    rng = np.random.default_rng(0)
    network = Network("numpy_baseline", mlp(*sizes), dtype=np.float64)
    network.theta[:] += rng.normal(0, 0.01, network.theta.shape)
    x, labels = rng.normal(size=(n, sizes[0])), rng.integers(0, sizes[-1], n)
    W = network.views(network.theta)["0.W"]
    W[5:7] /= far
    x[:, 5:7] *= far
    network.theta[:], x = network.theta.astype("f4"), x.astype("f4")
    wanted, exact_dx = network.loss_and_grad(x.astype("f8"), labels), input_gradient(network, x, labels)
    theta, found = cp.asarray(network.theta, np.float32), cp.full(network.theta.size, cp.nan, np.float32)
    arrays, into = network.views(theta), network.views(found)
    names = sorted({name.partition(".")[0] for name in arrays}, key=int)
    layers = [(arrays[f"{i}.W"], arrays[f"{i}.b"], into[f"{i}.W"], into[f"{i}.b"]) for i in names]
    about, losses, largest = dense.Sizes(n, sizes, wgmma=True), cp.zeros(1, np.float32), cp.full(1, 7, np.uint32)
    assert about.wide
    parts, step = dense.forward(about, layers, cp.asarray(x), precision)
    row_losses = dense.examples(step, parts, cp.asarray(labels), precision, largest)
    dx = dense.gradients(step, row_losses, losses, None, True, precision, largest)
    error = {"float32": 2e-6, "tf32": 4e-2}[precision]
    assert_allclose(losses.get()[0], wanted, rtol=error)
    assert largest.get().view(np.float32)[0] == abs(dx).max().get()
    grads, exact = network.views(found.get()), network.views(network.grad)
    for name in exact:
        rows = (1, -1) if exact[name].ndim == 1 else (len(exact[name]), -1)
        off = np.linalg.norm((grads[name] - exact[name]).reshape(rows), axis=1)
        assert (off <= 4 * error * np.linalg.norm(exact[name].reshape(rows), axis=1) + 1e-12).all(), name
    off = np.linalg.norm(dx.get() - exact_dx, axis=1)
    assert (off <= 4 * error * np.linalg.norm(exact_dx, axis=1)).all()


def test_what_it_is_not_for_is_said():
    assert dense.why_not((3200, 256, 10)) is None
    assert dense.why_not((400, 120, 84, 10)) is None
    assert "1024 units" in dense.why_not((10, 2000, 10))
    assert "reads all weights" in dense.why_not((10, 1000, 1000, 10))


def test_nothing_is_spilled_and_tiles_fit():
    for macros in ({"PRODUCTS": 1}, {"PRODUCTS": 3}, {"PRODUCTS": 3, "SLICES": 25, "WGMMA": 1, "TOP": 10}):
        for found in ptxas.resources("dense", **macros).values():
            assert found.spilled_bytes == 0
            assert found.registers <= 168
    for mode in (2, 3):
        assert all(found.spilled_bytes == 0 for found in ptxas.resources("dense_wgmma", MODE=mode).values())
    assert dense.Sizes(128, (3200, 256, 10)).slices * 8 <= dense.BLOCKS
    assert dense.Sizes(128, (3200, 256, 10), wgmma=True).slices == 25
    assert max(dense.Sizes(128, (3200, 256, 10), wgmma=True).wide_shared("float32")) <= 200 << 10
    assert dense.Sizes(128, (3200, 256, 10)).shared <= 64 << 10
    assert dense.Sizes(1, (5, 1024, 16)).shared <= 100 << 10
    assert dense.Sizes(128, (400, 120, 84, 10)).resident == 120 * 84
    assert [dense.Sizes(n, (400, 120, 84, 10)).slices for n in (32, 64, 128)] == [7, 7, 13]
    assert dense.Sizes(128, (784, 128, 10)).slices == 25
    for n, sizes in ((128, (3200, 256, 10)), (1, (5, 10)), (64, (400, 120, 84, 10)), (1000, (784, 1024, 10))):
        found = dense.Sizes(n, sizes)
        assert found.slice % dense.DEPTH == 0
        assert (found.slices - 1) * found.slice < sizes[0] <= found.slices * found.slice
