"""The record of integers on a GPU: what it says is derived from one that is made up; other bits have no times."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from experiments import gpu_int8

RUN = {
    "model": "lenet5",
    "n": 8,
    "changed": 0,
    "why_not": None,
    "us": {"int8": [2.0, 4.0, 3.0], "bf16": [6.0, 4.0, 12.0]},
}
WRONG = {"model": "lenet5", "n": 64, "changed": 3, "us": {}, "why_not": "7 outputs in int8 are not nn.quantize's"}
RECORD = {"experiment": "gpu_int8", "settings": {}, "runs": [RUN, WRONG]}


def test_ratios_are_of_the_same_round():
    assert gpu_int8.us(RECORD, "lenet5", 8, "int8") == 3
    assert gpu_int8.us(RECORD, "lenet5", 8, "bf16") == 6
    assert gpu_int8.ratio(RECORD, "lenet5", 8) == 3  # of 3, 1 and 4
    assert gpu_int8.ratio(RECORD, "lenet5", 64) is gpu_int8.us(RECORD, "lenet5", 64, "int8") is None
    assert gpu_int8.ratio(RECORD, "lenet5", 1) is None


def test_the_table_says_who_has_no_times():
    lines = gpu_int8.table(RECORD).splitlines()
    assert lines[1].split() == ["lenet5", "8", "3.00", "6.00", "3.00"]
    assert lines[2].endswith("are not nn.quantize's")


class Given:
    """A prediction that gives what it is told."""

    def __init__(self, outputs):
        self.outputs, self.filled = outputs, None

    def __call__(self, x):
        return np.resize(self.outputs, (len(x), 2))

    def batch(self, dtype):
        assert dtype == np.uint8
        return SimpleNamespace(fill=lambda x: setattr(self, "filled", x), replay=self)


@pytest.fixture
def compare(monkeypatch):
    monkeypatch.setattr(gpu_int8, "device_us", lambda call, times: float(times))
    x, wanted = np.arange(6, dtype=np.uint8).reshape(3, 2), np.float32([[1, 0], [0, 9], [3, 1]])

    def compared(n=7, **outputs):
        predictions = {name: Given(outputs.get(name, wanted)) for name in ("int8", "bf16")}
        found = gpu_int8.compared(predictions, x, dict.fromkeys(predictions, wanted), n, rounds=4)
        return found, predictions

    return compared


def test_equal_bits_have_times(compare):
    found, predictions = compare()
    assert found == {"changed": 0, "why_not": None, "us": {"int8": [50.0] * 4, "bf16": [50.0] * 4}}
    for predict in predictions.values():
        assert_array_equal(predict.filled[3:6], [[0, 1], [2, 3], [4, 5]])  # images begin again
        assert len(predict.filled) == 7


def test_other_bits_have_none(compare):
    found, _ = compare(int8=np.float32([[1, 0], [0, np.nextafter(np.float32(9), 10)], [3, 1]]))
    assert found["us"] == {}
    assert found["why_not"].startswith("2 outputs in int8")
    found, _ = compare(bf16=np.float32([[1, 0], [0, 9], [1, 3]]))
    assert (found["us"], found["changed"]) == ({}, 2)
    assert "too much for bf16" in found["why_not"]


@pytest.mark.gpu
def test_on_a_gpu_both_answer():
    plan = gpu_int8.Plan(models=("lenet5",), sizes=(1, 600), rounds=3, steps=20, images=50)
    record = gpu_int8.measure(lambda record: None, lambda text: None, plan)
    assert [run["why_not"] for run in record["runs"]] == [None, None]
    assert all(len(samples) == 3 for run in record["runs"] for samples in run["us"].values())
