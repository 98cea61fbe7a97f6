"""The experiment on whole epochs beside float64: what its record says, when a loss left, and a small one."""

import numpy as np
import pytest
from shared import one_sentence

from experiments import gpu_image_epochs as epochs
from experiments.gpu_image_limit import VARIANTS
from experiments.lab import results
from mlpkit.engines import names

RUN = {"model": "lenet5", "way": "graph", "dtype": "float32", "batch_size": 128, "steps": 3}


@pytest.fixture
def record():
    found = results.new("gpu_image_epochs", seeds=2, numpy_steps=2)
    errors = ([1e-7, 3e-3, 2e-4], [1e-7, 2e-7, 4e-7])
    found["runs"] = [RUN | {"seed": seed, "loss_errors": of_seed} for seed, of_seed in enumerate(errors)]
    return found


def test_the_plan_names_variants_and_networks_that_there_are():
    engines = {VARIANTS[way][0] for _, variants in epochs.USUAL.epochs for way in variants}
    assert engines <= {*names()}
    assert [epochs.MODEL_NAMES[recipe.model] for recipe, _ in epochs.USUAL.epochs] == [
        *("lenet5", "fashion_cnn", "residual")
    ]


def test_errors_have_a_row_for_each_seed_and_say_when_a_loss_left(record):
    far = epochs.errors(record, "lenet5", "graph")
    assert far.shape == (2, 3)
    np.testing.assert_array_equal(epochs.beyond(far), [2, 0])
    np.testing.assert_array_equal(epochs.beyond(far, 0), [1, 1])


def test_what_a_record_lacks_is_said(record):
    with pytest.raises(LookupError) as caught:
        epochs.errors(record, "lenet5", "other")
    one_sentence(caught.value.args[0], "'lenet5'", "'other'", "'float32'")


def test_the_table_has_medians_over_seeds(record):
    lines = epochs.table(record).splitlines()
    assert lines[1].split() == ["lenet5,", "graph,", "float32", "3", "2", "3.0e-07", "3.0e-07", "3.0e-03"]
    record["runs"] = []
    assert len(epochs.table(record).splitlines()) == 1


@pytest.mark.parametrize("odd", [None, "x", [], [None]])
def test_an_odd_record_is_refused_in_a_sentence(odd, record):
    record["runs"] = [RUN | {"loss_errors": odd}]
    with pytest.raises(results.RecordError, match="can't be read"):
        epochs.table(record)


@pytest.mark.gpu
def test_a_small_record_is_whole_and_can_be_read_back(tmp_path):
    variants = (epochs.BASELINE, "graph")
    plan = epochs.Plan(((epochs.LENET, ("one kernel",)), (epochs.DEEP, variants)), seeds=2, numpy_steps=2)
    rng = np.random.default_rng(0)
    train = rng.integers(256, size=(2000, 1, 28, 28)).astype(np.uint8), rng.integers(10, size=2000)
    record = epochs.measure(lambda found: None, lambda text: None, plan, train)
    assert [(run["way"], run["seed"]) for run in record["runs"]] == [
        *(("one kernel", 0), (epochs.NUMPY, 0), (epochs.NUMPY, 0), ("one kernel", 1)),
        *((way, seed) for seed in (0, 1) for way in variants),
    ]
    assert epochs.errors(record, "lenet5", "one kernel").max() < 1e-3
    assert epochs.errors(record, "lenet5", epochs.NUMPY, "float64").max() < 1e-9
    assert epochs.errors(record, "residual", "graph")[:, :3].max() < 1e-4
    assert epochs.table(results.load(results.save(record, folder=tmp_path))) == epochs.table(record)
