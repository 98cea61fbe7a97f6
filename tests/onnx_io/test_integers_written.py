"""A network in integers, written for ONNX Runtime, predicts there what it predicts here."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from test_integers import MODELS, integers_of, rows

onnx = pytest.importorskip("onnx", reason="the package onnx is missing")
from mlpkit.onnx_io.integers import write_integers  # noqa: E402


@pytest.mark.peers
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_computes_the_same(name, signed, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is missing")
    integers, path = integers_of(name), str(tmp_path / "integers.onnx")
    write_integers(integers, path, signed)
    onnx.checker.check_model(path, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found, wanted = session.run(None, {"input": rows(name)})[0], integers(rows(name))
    assert_allclose(found, wanted, atol=0.03 * abs(wanted).max())  # an integer may differ by one
    assert np.isclose(found, wanted, rtol=1e-5, atol=1e-5).mean() > 0.6
