"""Networks that PyTorch's two exporters wrote are read, and give what onnxruntime gives of the same files."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")

from mlpkit import onnx_io  # noqa: E402

FILES = sorted((Path(__file__).parent / "exported").glob("*.onnx"))
LAYERS = {
    "late-norm-dynamo": "Conv LeakyReLU BatchNorm AvgPool Flatten Linear",
    "lenet-torchscript": "Conv ReLU MaxPool Conv ReLU MaxPool Flatten Linear ReLU Linear",
    "rows-torchscript": "Conv Tanh Flatten Linear Softmax",
    "sharpen-torchscript": "Conv Tanh Conv PixelShuffle",
    "style-torchscript": "Padding Conv InstanceNorm ReLU Upsample Padding Conv Tanh",
    "unet-dynamo": "Conv ReLU Concat Conv ReLU Conv",
}


def test_there_are_ten_small_files_of_both_exporters():
    assert len(FILES) == 10
    assert sum(path.stat().st_size for path in FILES) < 300_000
    assert {path.stem.rpartition("-")[2] for path in FILES} == {"dynamo", "torchscript"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_layers_are_those_that_pytorch_had(path):
    network = onnx_io.read(path)
    found = " ".join(type(layer).__name__ for layer in network.model.layers)
    assert found == LAYERS.get(path.stem, found)
    assert network.model.layout.size > 100


@pytest.mark.peers
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_outputs_are_onnxruntimes(path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    network = onnx_io.read(path)
    x = np.random.default_rng(3).random((5, *network.model.input), np.float32)
    (wanted,) = runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert_allclose(network.forward(x), wanted, rtol=0, atol=1e-5 * max(1, abs(wanted).max()))


GRAPHS = {
    "sizes of a picture, whose batch and channels are asked for": (
        """start = Constant<value_ints = [0]> ()
        end = Constant<value_ints = [2]> ()
        size = Constant<value_ints = [16, 12]> ()
        whole = Shape (x)
        first = Slice (whole, start, end)
        sizes = Concat<axis = 0> (first, size)
        y = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, , , sizes)""",
        "Upsample",
    ),
    "a DenseNet's layers, each of which sees what all before it made": (
        """all0 = Concat<axis = 1> (x)
        one = Tanh (all0)
        all1 = Concat<axis = 1> (x, one)
        two = Sigmoid (all1)
        all2 = Concat<axis = 1> (x, one, two)
        three = Tanh (all2)
        y = Concat<axis = 1> (x, one, two, three)""",
        "Concat Concat Concat",
    ),
    "windows that no edge cuts, rounded up": (
        "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)", "MaxPool"),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_what_exporters_write_gives_what_onnx_says(name, tmp_path):
    import onnx.parser
    from onnx.reference import ReferenceEvaluator

    nodes, layers = GRAPHS[name]
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3, 8, 6] x) => (float[n, c, h, w] y) {{ {nodes} }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "a.onnx")
    network, x = onnx_io.read(tmp_path / "a.onnx"), np.random.default_rng(3).random((2, 3, 8, 6), np.float32)
    assert " ".join(type(layer).__name__ for layer in network.model.layers) == layers
    assert_allclose(network.forward(x), ReferenceEvaluator(str(tmp_path / "a.onnx")).run(None, {"x": x})[0])
