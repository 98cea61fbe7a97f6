"""Evaluation is pure: nothing of it stays on the network, and several threads may ask at once."""

import gc
import threading
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from mlpkit.nn.bound import backward
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Dropout, Flatten, Linear, ReLU, Tanh
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual
from mlpkit.optim import SGD
from mlpkit.training.fit import fit

MODEL = Model((1, 8, 8), (
    Conv(4, 3, padding=1), BatchNorm(), ReLU(), Residual((Conv(4, 3, padding=1), BatchNorm(), Tanh())),
    Concat((Conv(2, 1),), ()), Dropout(0.4), Flatten(), Linear(3),
))  # fmt: skip


def data(n=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, *MODEL.input)).astype(np.float32), rng.integers(3, size=n)


def test_two_threads_predict_with_one_network_while_a_third_trains_another():
    network, other = Network(model=MODEL, seed=1), Network(model=MODEL, seed=2)
    parts = [data(13 + i, seed=i) for i in range(2)]
    wanted = [(network.predict(X, 5), network.evaluate(X, y, 7), network.forward(X)) for X, y in parts]
    before = [vector.copy() for vector in (network.theta, network.statistics, network.grad)]
    wrong, begin, trained = [], threading.Barrier(3), []

    def ask(part, answers):
        X, y = part
        begin.wait()
        for _ in range(100):
            found = network.predict(X, 5), network.evaluate(X, y, 7), network.forward(X)
            same = [np.array_equal(found[0], answers[0]), found[1] == answers[1], np.array_equal(found[2], answers[2])]
            if not all(same):
                wrong.append(same)

    def train():
        begin.wait()
        trained.append(fit(other, SGD(other, 0.05), data(), epochs=20, batch_size=8).loss)

    threads = [threading.Thread(target=ask, args=each) for each in zip(parts, wanted, strict=True)]
    threads.append(threading.Thread(target=train))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for vector, copy in zip((network.theta, network.statistics, network.grad), before, strict=True):
        assert_array_equal(vector, copy)
    alone = Network(model=MODEL, seed=2)
    assert trained == [fit(alone, SGD(alone, 0.05), data(), epochs=20, batch_size=8).loss]


def bound_to(bound):
    for at in bound:
        yield at
        for branch in at.branches:
            yield from bound_to(branch)


@pytest.mark.parametrize("trained", [False, True], ids=["new", "amid a training"])
def test_nothing_of_an_evaluation_stays(trained):
    network, (X, y) = Network(model=MODEL), data()
    if trained:
        network.loss_and_grad(X, y)
    before = [dict(vars(at)) for at in bound_to(network.layers)]
    network.forward(X), network.forward(X, keep=("3.0", "7")), network.predict(X), network.evaluate(X, y)
    network.loss(X, y), network.gradients(X, y, of=("input", "3"))
    for at, then in zip(bound_to(network.layers), before, strict=True):
        assert vars(at).keys() == then.keys()
        assert all(getattr(at, name) is then[name] for name in then)


def test_a_prediction_amid_a_step_does_not_change_the_step():
    """What the forward pass kept for the backward pass is still there."""
    wanted, network, (X, y) = Network(model=MODEL), Network(model=MODEL), data()
    wanted.forward_backward(X, y, step=3)
    outputs = network.forward(X, training=True, step=3)
    network.predict(X[:7])
    network.gradients(X[:5], y[:5])
    backward(network.layers, network.model.loss(network.at_loss, outputs, y)[1])
    assert_array_equal(network.grad, wanted.grad)


def test_evaluations_take_no_memory_that_stays():
    network, (X, y) = Network(model=MODEL), data()

    def look():
        network.evaluate(X, y), network.predict(X), network.forward(X, keep=("3",)), network.gradients(X, y)

    look()
    gc.collect()
    tracemalloc.start()
    try:
        look()
        gc.collect()
        first, objects = tracemalloc.get_traced_memory()[0], len(gc.get_objects())
        for _ in range(30):
            look()
        gc.collect()
        # Of 30 looks less than two activations, 40 x 4 x 8 x 8 x 4 bytes each: what other tests left at work has some.
        assert tracemalloc.get_traced_memory()[0] - first < 80_000
        assert len(gc.get_objects()) - objects < 50
    finally:
        tracemalloc.stop()


def peak(layers, **options):
    """Return the most bytes that a forward pass has at once."""
    network = Network(model=Model((4, 16, 16), (*layers, Flatten(), Linear(2))))
    x = np.ones((32, 4, 16, 16), np.float32)
    network.forward(x, **options)
    tracemalloc.start()
    try:
        network.forward(x, **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_activations_are_dropped_once_they_are_used():
    """So a deep network needs no more memory than a shallow one, but where a way back is wanted."""
    shallow, deep = ((Conv(4, 3, padding=1), ReLU()) * n for n in (2, 12))
    one = 32 * 4 * 16 * 16 * 4
    assert peak(deep) < peak(shallow) + one
    assert peak(deep, training=True) > peak(shallow, training=True) + 10 * one
    inside = (Residual(shallow),), (Residual(deep),)
    assert peak(inside[1]) < peak(inside[0]) + one
