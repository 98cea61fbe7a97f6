"""A network that knows digits well enough to be served: trained once a run of the tests, in seconds."""

import pytest

from mlpkit import data
from mlpkit.nn.models import LENET5
from mlpkit.training.recipe import Recipe


@pytest.fixture(scope="session")
def digits():
    return data.load()


@pytest.fixture(scope="session")
def network(digits):
    few = digits._replace(train=data.Split(digits.train.X[:6000], digits.train.y[:6000]))
    few = few._replace(validation=data.Split(digits.validation.X[:500], digits.validation.y[:500]))
    return Recipe(model=LENET5, optimizer="adam", lr=3e-3, batch_size=32, epochs=2).train(few, engine="numba_conv")[0]


@pytest.fixture(scope="session")
def network_file(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("network") / "lenet5.npz"
    network.save(path)
    return path
