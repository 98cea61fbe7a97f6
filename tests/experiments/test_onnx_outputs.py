"""Networks in files put out what they do here: the record says so, and a small one can be made."""

import pytest

from experiments import onnx_outputs
from experiments.lab import results


def test_the_record_holds_all_networks_and_no_difference_that_counts():
    record = results.published("onnx_outputs")
    assert [run["written"] for run in record["runs"] if "written" in run] == [
        name for name in ("mlp", "lenet5", "fashion_cnn", "residual") for _ in (True, False)
    ]
    assert sum("read" in run for run in record["runs"]) == 10
    for run in record["runs"]:
        assert run["apart"] <= 1e-5 * max(1, run["largest"])
        assert run["changed"] == 0
    assert onnx_outputs.table(record).count("\n") == 18


@pytest.mark.peers
def test_a_small_record_can_be_made():
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    record = onnx_outputs.measure(lambda record: None, lambda text: None, ("mlp",), 20)
    assert [run["rows"] for run in record["runs"][:2]] == [20, 20]
    assert all(run["apart"] < 1e-5 for run in record["runs"])
