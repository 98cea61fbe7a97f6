"""What crosses to the GPU for an epoch, with memory that is a processor's."""

import emulator
import numpy as np
import pytest


@pytest.mark.parametrize("beside", [True, False])
def test_vectors_have_what_was_sent_last(beside, tmp_path):
    with emulator.with_cupy(tmp_path):
        feed = emulator.own("executors.cuda.transfers").Feed(beside, rates=(3, np.float64), order=(5, np.int32))
        for epoch in range(3):
            feed.send(rates=np.full(2, epoch), order=np.arange(5) + epoch)
            assert feed["rates"][:2].tolist() == [epoch] * 2
            assert feed["order"].tolist() == [*range(epoch, epoch + 5)]
    assert (feed.there is not None) == beside  # twice the memory
