"""The experiment on 16-bit numbers: its ways differ in one thing at a time, and its record can be read."""

from importlib.util import find_spec

import pytest

from experiments import mixed_precision
from experiments.lab import results
from experiments.mixed_precision import VARIANTS, Plan

SMALL = Plan(seeds=2, epochs=1, sizes=((16, 32),), samples=2, steps=2)


def test_the_table_shows_a_record_that_has_only_begun():
    runs = [{"kind": "accuracy", "way": "TF32", "epochs": 5, "test_accuracy": [0.97, 0.98], "train_loss": [0.1, 0.1]}]
    assert mixed_precision.table({"runs": runs}).endswith("97.50% +- 0.71% of the test images after 5 epochs")
    runs.append({"kind": "step", "way": "TF32", "width": 128, "batch_size": 64, "samples_us": [20.0, 30.0, 25.0]})
    assert "width   128, batch    64:       25 us a step" in mixed_precision.table({"runs": runs})
    assert mixed_precision.step_us({"runs": runs}, "TF32", 128) == 25.0


@pytest.mark.gpu
def test_a_small_record_is_whole(tmp_path):
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    record = mixed_precision.measure(lambda found: None, lambda text: None, SMALL)
    for way in VARIANTS:
        accuracy, loss = mixed_precision.accuracies(record, way)
        assert min(accuracy) > 0.8
        assert max(loss) < 1
        assert 5 < mixed_precision.step_us(record, way, 16) < 1e5
    again = results.load(results.save(record, folder=tmp_path))
    assert mixed_precision.table(again) == mixed_precision.table(record)
