"""Whole steps of compiled code: what they refuse before they read a number, what they keep, and that they are right."""

import gc
import os
import platform
import subprocess
import sys
import weakref

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shared import SMALL, blobs, one_sentence, sweep

from mlpkit import engines, executors
from mlpkit.executors import numba_conv, trainer_of
from mlpkit.executors.plain import StepByStep
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU, Tanh
from mlpkit.nn.losses import MeanSquaredError, SoftmaxCrossEntropy
from mlpkit.nn.model import Model
from mlpkit.nn.models import FASHION_CNN, LENET5, MLP, mlp
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.optim import SGD
from mlpkit.training.fit import fit

# Bad input


NUMBA = [name for name in engines.names(MLP.operations) if engines.library(name) == "numba"]


def made(name, X, labels):
    """Return a trainer on such examples, and a copy of what it is to train."""
    network = Network(name, SMALL)
    trainer = executors.of(network.engine).Trainer(network, SGD(network, 0.1), X, labels, 5)
    return trainer, network.theta.copy()


# A compiled loop does not look where it reads and writes: what is wrong must be found before.


@pytest.mark.parametrize("shape", [(5, 8), (5, 3), (0, 6), (5,)], ids=str)
@pytest.mark.parametrize("name", NUMBA)
def test_examples_that_do_not_fit_are_refused(name, shape):
    with pytest.raises(ValueError, match="inputs must have shape") as caught:
        made(name, np.ones(shape, np.float32), np.zeros(shape[0], int))
    one_sentence(caught.value, shape)


@pytest.mark.parametrize(
    ("labels", "error"),
    [([0, 1], ValueError), ([0, 1, 2, 3, 0], IndexError), ([0, 1, 2, -1, 0], IndexError)],
    ids=["too few", "too large", "negative"],
)
@pytest.mark.parametrize("name", NUMBA)
def test_labels_that_do_not_fit_are_refused(name, labels, error):
    trainer, before = made(name, *blobs(5))
    with pytest.raises(error) as caught:
        trainer.step(np.ones((5, 6), np.float32), np.array(labels))
    one_sentence(caught.value)
    assert_array_equal(trainer.network.theta, before)


def test_a_trainers_buffers_are_made_once_and_go_with_it():
    """Whatever the sizes of the batches: nothing is kept for each of them, and nothing in the module."""
    network = Network("numba_step", SMALL)
    trainer = trainer_of(network, SGD(network, 0.1), *blobs(20), 20)
    buffers = [trainer.x, *trainer.outputs, *trainer.gradients]
    assert [len(array) for array in buffers] == [20] * 5
    for n in range(1, 20):
        trainer.epoch(np.arange(n))
    assert [*map(id, [trainer.x, *trainer.outputs, *trainer.gradients])] == [*map(id, buffers)]
    gone = weakref.ref(trainer), *map(weakref.ref, buffers)
    trainer.close()
    del trainer, buffers
    gc.collect()
    assert [reference() for reference in gone] == [None] * 6


# Whole steps: plain multilayer perceptrons only


@pytest.mark.parametrize("name", ["numba_hybrid", "numba_step"])
def test_images_as_bytes_train_as_their_rows_do(name):
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(256, size=(20, 1, 28, 28), dtype=np.uint8), rng.integers(10, size=20)
    rows = pixels.reshape(20, 784)
    thetas = []
    for X in (pixels, rows, rows / np.float32(255)):
        network = Network(name, mlp(784, 16, 10))
        history = fit(network, SGD(network, 0.1), (X, labels), (X, labels), epochs=2, batch_size=8)
        assert history.loss[-1] < history.loss[0]
        thetas.append(network.theta)
    assert_array_equal(thetas[0], thetas[1])
    assert_array_equal(thetas[0], thetas[2])


@pytest.mark.parametrize(
    "model",
    [LENET5, Model((6,), (Linear(5), Tanh(), Linear(3))), Model((6,), (Linear(3),), loss=MeanSquaredError())],
    ids=["LeNet-5", "tanh", "another loss"],
)
@pytest.mark.parametrize("name", ["numba_hybrid", "numba_step"])
def test_another_model_is_refused_before_a_trainer_is_made(name, model):
    why_not = executors.of(engines.load(name)).why_not
    one_sentence(why_not(model, None, 8), name, "multilayer perceptrons only")
    assert why_not(SMALL, None, 8) is None
    assert why_not(mlp(6, 3), None, 8) is None


class Halved(SoftmaxCrossEntropy):
    """A reader's own loss: half of the usual one."""

    def of_rows(self, engine, z, labels):
        loss, dz = super().of_rows(engine, z, labels)
        return loss / 2, dz / 2


@pytest.mark.parametrize("name", ["numba_hybrid", "numba_step"])
def test_a_loss_that_is_made_of_the_usual_one_is_another(name):
    model = Model((6,), (Linear(5), ReLU(), Linear(3)), Halved())
    one_sentence(executors.of(engines.load(name)).why_not(model, None, 8), name)
    chain = Model((1, 12, 12), (Conv(3, 3), Flatten(), Linear(4)))
    assert numba_conv.pipeline_of(chain)
    assert numba_conv.pipeline_of(Model(chain.input, chain.layers, Halved())) is None


# Chains of convolutions

ODD = Model((2, 9, 11), (
    Conv(5, 3, padding=1), ReLU(), Conv(11, 2, stride=2, bias=False), MaxPool(3, 1), ReLU(), Conv(3, 1), Flatten(),
    Linear(7),
))  # fmt: skip
PIPELINES = {"LeNet-5": LENET5, "Fashion": FASHION_CNN, "odd": ODD}


def steps(name, model, dtype, batches=(21, 10, 1, 16, 17, 21), base=None):
    """Return the losses of a few steps on batches of such sizes, and the parameters after them."""
    rng = np.random.default_rng(0)
    X, y = rng.random((21, *model.input)).astype(dtype), rng.integers(model.output[0], size=21)
    network = Network(name, model, dtype=dtype)
    trainer = (base or numba_conv.Trainer)(network, SGD(network, 0.002), X, y, 21)
    losses = [float(trainer.step(X[:n], y[:n])) for n in batches]
    return losses, network.theta


@pytest.mark.parametrize("dtype", sweep([np.float32, np.float64], np.float32), ids=["float32", "float64"])
@pytest.mark.parametrize("model", PIPELINES.values(), ids=PIPELINES)
def test_a_whole_step_is_the_baselines(model, dtype):
    assert numba_conv.pipeline_of(model)
    (losses, theta), (wanted, wanted_theta) = (
        steps("numba_conv", model, dtype), steps("numpy_baseline", model, dtype, base=StepByStep)
    )  # fmt: skip
    tolerance = {np.float32: 3e-4, np.float64: 1e-10}[dtype]
    assert_allclose(losses, wanted, rtol=tolerance)
    assert_allclose(theta, wanted_theta, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "layers",
    [(Conv(3, 3), BatchNorm(), ReLU(), Flatten(), Linear(4)), (Conv(3, 3), AvgPool(2), Flatten(), Linear(4)),
     (Conv(3, 3), ReLU(), MaxPool(1, 2), MaxPool(2), Flatten(), Linear(4)), (Flatten(), Linear(4)),
     (Conv(3, 3), Flatten(), Linear(4), ReLU(), Linear(4), ReLU()), (Conv(3, 3), Flatten(), Linear(4), Linear(4))],
    ids=["norm", "mean", "two pools", "no convolution", "ReLU at the end", "no ReLU"],
)  # fmt: skip
def test_what_is_no_chain_is_trained_an_operation_at_a_time(layers):
    model = Model((1, 12, 12), layers)
    assert numba_conv.pipeline_of(model) is None
    found, wanted = steps("numba_conv", model, np.float64), steps("numpy_baseline", model, np.float64, base=StepByStep)
    for one, other in zip(found, wanted, strict=True):
        assert_allclose(one, other, rtol=1e-9, atol=1e-10)


def test_a_batch_that_does_not_fit_is_refused_before_anything_is_read():
    x, y = np.zeros((5, 1, 28, 28), np.float32), np.zeros(5, int)
    network = Network("numba_conv", LENET5)
    trainer, before = numba_conv.Trainer(network, SGD(network, 0.1), x, y, 5), network.theta.copy()
    for images, labels, error in ((np.zeros((6, 1, 28, 28), np.float32), np.zeros(6, int), ValueError),
                                  (x[:, :, 1:], y, ValueError), (x, y[1:], ValueError), (x, y + 10, IndexError),
                                  (x, y - 1, IndexError)):  # fmt: skip
        with pytest.raises(error):
            trainer.step(images, labels)
    assert_array_equal(network.theta, before)


@pytest.mark.parametrize("model", [LENET5, FASHION_CNN], ids=["LeNet-5", "Fashion"])
def test_a_trainers_workspace_is_smaller_than_the_activations(model):
    """Those are what an operation at a time keeps: an array for each layer's output."""
    most = 4096
    network = Network("numba_conv", model)
    X, y = np.zeros((most, *model.input), np.float32), np.zeros(most, int)
    trainer = numba_conv.Trainer(network, SGD(network, 0.1), X, y, most)
    activations = 4 * most * sum(int(np.prod(shape)) for _, _, shape, _ in model.walk)
    assert sum(array.nbytes for array in trainer.arrays.values()) < activations


PAGES = """
import resource
import numpy as np
from mlpkit.executors.numba_conv import Trainer
from mlpkit.nn.enlarging import enlarger
from mlpkit.nn.network import Network
from mlpkit.optim import Adam

network = Network("numba_conv", enlarger(38, 2))
x, y = np.zeros((16, 1, 38, 38), np.float32), np.zeros((16, 1, 48, 48), np.float32)
trainer, pages = Trainer(network, Adam(network, 1e-3), x, y, 16), []
for _ in range(8):
    trainer.step(x, y)
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print((pages[-1] - pages[2]) // 5)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_a_step_an_operation_at_a_time_asks_for_few_new_pages():
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", PAGES], env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000  # of 4 KiB each; without `keep_memory` more than 5,000
