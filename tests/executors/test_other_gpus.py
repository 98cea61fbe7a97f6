"""Kernels that stay for an epoch add up gradients with other GPUs' kernels: here with a mirror of what they send."""

from types import SimpleNamespace

import emulator
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from test_emulated import changed, images, needs_compiler
from test_persistent import make, train

from mlpkit.nn.models import LENET5, MLP

KERNELS = {"conv_fused": ("limit", LENET5, 8), "persistent": ("persistent", MLP, 32)}


class Mirror:
    """A `reduce` between two GPUs, of which the other one sends whatever this one does: each counts half."""

    ranks, weight = 2, 0.5

    def __init__(self, rank=0):
        self.rank = rank

    def mailboxes(self, size):
        """Return memory in which what is sent to the other GPU lies where what comes from it is looked for."""
        self.memory = np.zeros(size, np.uint8)
        there, apart = self.memory.ctypes.data, size // (2 * self.ranks)  # of two steps, one of the ranks'
        addresses = [there, there]
        addresses[1 - self.rank] += apart if self.rank == 0 else -apart
        return SimpleNamespace(addresses=np.array(addresses, np.uint64))


def with_reduce(reduce, optimizer):
    def takes(network):
        found = optimizer(network)
        found.reduce = reduce
        return found

    return takes


def engine_of(name, folder, monkeypatch, source=None, seed=0):
    if name == "conv_fused":
        monkeypatch.setitem(emulator.H100, "MultiProcessorCount", 8)
    return emulator.engine(name, folder, seed, source or changed(KERNELS[name][0]))


def trained(name, engine, reduce, optimizer="sgd", epochs=2):
    """Return (losses, theta) of two epochs of two batches, the second one short."""
    _, model, batch_size = KERNELS[name]
    n = batch_size + 3
    takes = with_reduce(reduce, make(optimizer))
    return train(engine, images(n, model), np.arange(n), batch_size, takes, model=model, epochs=epochs)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("name", "optimizer", "rank"), [("conv_fused", "adam", 0), ("persistent", "sgd", 1)])
def test_two_gpus_that_send_the_same_train_what_one_does_to_the_bit(name, optimizer, rank, folder, monkeypatch):
    engine = engine_of(name, folder, monkeypatch)
    alone = trained(name, engine, None, optimizer)
    for one, other in zip(trained(name, engine, Mirror(rank), optimizer), alone, strict=True):
        assert_array_equal(one, other)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", KERNELS)
def test_several_launches_have_tags_of_their_own(name, folder, monkeypatch):
    engine = engine_of(name, folder, monkeypatch)
    engine.executor.WaitingTrainer.epoch.__globals__["MOST_STEPS"] = 1
    alone = trained(name, engine, None)
    for one, other in zip(trained(name, engine, Mirror()), alone, strict=True):
        assert_array_equal(one, other)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_does_not_wait_for_others_is_seen(name, folder, monkeypatch):
    source = changed(KERNELS[name][0], ("if (!all && give_up(turns, OTHER_GPUS, step)) break;", "break;"))
    alone = trained(name, engine_of(name, folder, monkeypatch), None)
    found = trained(name, engine_of(name, folder, monkeypatch, source), Mirror())
    assert (found[1] != alone[1]).any()


@needs_compiler
def test_a_gpu_that_never_comes_is_a_deadlock(folder, monkeypatch):
    class Nobody(Mirror):
        def mailboxes(self, size):
            self.memory = np.zeros(2 * size, np.uint8)
            return SimpleNamespace(addresses=self.memory.ctypes.data + np.array([0, size], np.uint64))

    with pytest.raises(emulator.Failed, match="look for what never comes"):
        trained("persistent", engine_of("persistent", folder, monkeypatch), Nobody())
