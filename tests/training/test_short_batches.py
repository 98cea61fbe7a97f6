"""A short last batch of one row is refused where a batch normalization would see it, before the first step."""

import numpy as np
import pytest
from shared import one_sentence

from mlpkit.nn.layers import Linear
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.optim import SGD
from mlpkit.training.fit import fit


@pytest.mark.parametrize("engine", ["numpy_baseline", "numba_conv"])
def test_a_last_batch_of_one_row_is_refused_with_what_to_do(engine):
    network = Network(engine, Model((6,), (Linear(4), BatchNorm(), Linear(3))))
    before = network.theta.copy()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(33, 6)).astype(np.float32), rng.integers(3, size=33)
    with pytest.raises(ValueError, match="33 examples in batches of 8") as caught:
        fit(network, SGD(network, 0.1), (X, y), epochs=1, batch_size=8)
    one_sentence(caught.value, "BatchNorm", "batch_size")
    assert (network.theta == before).all()
    assert len(fit(network, SGD(network, 0.1), (X, y), epochs=1, batch_size=7).loss) == 5
