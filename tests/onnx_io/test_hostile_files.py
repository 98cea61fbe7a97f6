"""A file may come from anywhere: what promises more than it has is refused in one sentence, with nothing allocated."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared import damaged, one_sentence

from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.residual import Residual

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")

from mlpkit import onnx_io  # noqa: E402
from mlpkit.onnx_io.loading import MOST_NODES  # noqa: E402

TensorProto, helper = onnx.TensorProto, onnx.helper
SMALL = Model((2, 6, 5), (Conv(3, 3, padding=1), ReLU(), Residual((Conv(3, 1),)), MaxPool(2), Flatten(), Linear(2)))


def tensor(name, shape, kind=TensorProto.FLOAT, raw=None, **fields):
    """Return a tensor that promises a shape, and holds what it is given."""
    return TensorProto(name=name, dims=shape, data_type=kind, **({} if raw is None else {"raw_data": raw}), **fields)


def weights(*shape):
    return onnx.numpy_helper.from_array(np.ones(shape, np.float32), "W")


def file(nodes, constants=(), shape=("n", 3, 8, 8), inputs=("x",), output="y", version=17, **fields):
    """Return a model of nodes, each (operator, inputs, outputs, attributes), as bytes."""
    made = [helper.make_node(op, ins.split(","), outs.split(","), **settings) for op, ins, outs, settings in nodes]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs]
    out = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    graph = helper.make_graph(made, "g", ends, [out], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], **fields).SerializeToString()


CONV, RELU = ("Conv", "x,W", "y", {}), ("Relu", "x", "y", {})
NOTHING = helper.make_graph([], "nothing", [], [])
BRANCHES = [("If", "x", "y", dict(then_branch=NOTHING, else_branch=NOTHING))]
DEEP = [("Relu", "x", "v0", {})]
for _i in range(60):
    DEEP += [("Relu", f"v{_i}", f"v{_i + 1}", {})]
DEEP += [("Add", f"v{60 - _i if _i == 0 else 100 + _i},v{59 - _i}", f"v{101 + _i}", {}) for _i in range(59)]
DOUBLING = [("Constant", "", "c0", {"value_ints": [1, 2]})]
DOUBLING += [("Concat", f"c{i},c{i}", f"c{i + 1}", {"axis": 0}) for i in range(40)]
POOLED = ("GlobalAveragePool", "x", "g", {})  # (n, 3, 1, 1) there
COPIES = [("Identity", "W", "c0", {}), *[("Identity", f"c{i}", f"c{i + 1}", {}) for i in range(400)]]
MINUS = ("Constant", "", "m", {"value_ints": [-1]})
FROM_A_SHAPE = [("Constant", "", "z", {"value_ints": [0]}), ("Gather", "s,z", "q", {}), MINUS,
                ("Concat", "q,m", "t", {"axis": 0}), ("Reshape", "x,t", "y", {})]  # fmt: skip
T = 10**12
FILES = {
    "no file of ONNX": (b"PK\x03\x04 not at all", "no ONNX file"),
    "nothing": (b"", "version 0"),
    "a version to come": (file([RELU], version=999), "999"),
    "terabytes of raw bytes": (file([CONV], [tensor("W", [T, 3, 3, 3], raw=bytes(2**20))]), "promises"),
    "terabytes of floats": (file([CONV], [tensor("W", [8, 3, T], float_data=[1.0] * 9)]), "promises"),
    "terabytes of nothing": (file([CONV], [tensor("W", [T, T])]), "promises"),
    "a shape below zero": (file([CONV], [tensor("W", [-1, 3, 3, 3], raw=bytes(108))]), "shape"),
    "bytes that are no floats": (file([CONV], [tensor("W", [1, 3, 3, 3], raw=bytes(109))]), "promises"),
    "a type of 4 bits": (file([CONV], [tensor("W", [2], TensorProto.INT4, raw=bytes(1))]), "type"),
    "weights that are no numbers": (
        file([CONV], [onnx.numpy_helper.from_array(np.full((4, 3, 3, 3), np.nan, np.float32), "W")]),
        "finite",
    ),
    "a cycle": (file([("Relu", "b", "a", {}), ("Relu", "a", "b", {})], output="b"), "cycle"),
    "a value made twice": (file([RELU, RELU]), "already"),
    "an output that nobody makes": (file([RELU], output="z"), "output"),
    "an output beside the input": (file([("Identity", "W", "y", {})], [weights(2)]), "does not depend"),
    "two inputs": (file([("Add", "x,z", "y", {})], inputs=("x", "z")), "2 inputs"),
    "an open size": (file([RELU], shape=("n", 3, "h", "w")), "shape=(3, 64, 64)"),
    "no batch": (file([RELU], shape=()), "batch"),
    "a size of zero": (file([RELU], shape=("n", 0, 8, 8)), "at least 1"),
    "weights for other channels": (file([CONV], [weights(4, 2, 3, 3)]), "shape"),
    "weights that are a vector": (file([CONV], [weights(4)]), "windows"),
    "a matrix for images": (file([("MatMul", "x,W", "y", {})], [weights(8, 2)]), "rows"),
    "a matrix of another size": (file([("MatMul", "x,W", "y", {})], [weights(8, 2)], shape=("n", 7)), "shape"),
    "an operator that we lack": (file([("LSTM", "x", "y", {})]), "LSTM"),
    "an operator of somebody's": (file([("Relu", "x", "y", {"domain": "com.some"})]), "com.some.Relu"),
    "an attribute that we lack": (file([("Conv", "x,W", "y", {"group": 3})], [weights(3, 1, 3, 3)]), "group 1, not 3"),
    "an attribute that nobody knows": (file([("Relu", "x", "y", {"shape": 3})]), "no shape"),
    "an addition of nothing": (
        file([("Conv", "x,W", "t", {}), ("Add", "t,", "y", {})], [weights(3, 3, 3, 3)]), "one number"),
    "pads by another name": (file([("Conv", "x,W", "y", {"auto_pad": "SAME"})], [weights(3, 3, 3, 3)]), "auto_pad"),
    "pads for a row": (file([("Conv", "x,W", "y", {"pads": [1, 1]})], [weights(3, 3, 3, 3)]), "four pads"),
    "a window along a row": (file([("MaxPool", "x", "y", {"kernel_shape": [3]})], shape=("n", 3, 8)), "kernel_shape"),
    "half a window": (
        file([("MaxPool", "x", "y", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1})]), "over the edge"),
    "a row that does not fit": (
        file([("Gemm", "x,W,b", "y", {})], [weights(8, 2), tensor("b", [3], raw=bytes(12))], shape=("n", 8)),
        "not of the kind that ONNX asks for",
    ),
    "weights too large for float32": (
        file([("Gemm", "x,W", "y", {})], [onnx.numpy_helper.from_array(np.full((8, 2), 1e300), "W")], shape=("n", 8)),
        "finite",
    ),
    "channels that are resized": (
        file([("Resize", "x,,,s", "y", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"})],
             [onnx.numpy_helper.from_array(np.array([0, 1, 16, 16]), "s")]),
        "whole number",
    ),
    "pads as a text": (file([("Conv", "x,W", "y", {"pads": "all"})], [weights(3, 3, 3, 3)]), "node 0, Conv"),
    "a size as a text": (file([("MaxPool", "x", "y", {"kernel_shape": 3})]), "not of the kind that ONNX asks for"),
    "strides of zero": (
        file([("Conv", "x,W", "y", {"strides": [0, 0], "auto_pad": "SAME_UPPER"})], [weights(3, 3, 3, 3)]),
        "node 0",
    ),
    "a window as large as a house": (
        file([("Conv", "x,W", "y", {"dilations": [T, T], "pads": [T] * 4})], [weights(3, 3, 3, 3)]),
        "zeros",
    ),
    "an image as large as a house": (
        file([("Resize", "x,,s", "y", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"})],
             [onnx.numpy_helper.from_array(np.array([1, 1, 1e6, 1e6], np.float32), "s")]),
        "268,435,456",
    ),
    "a border as wide as a house": (
        file([("Pad", "x,p", "y", {})], [onnx.numpy_helper.from_array(np.array([0, 0, T, T] * 2), "p")]),
        "268,435,456",
    ),
    "sizes that double": (file([*DOUBLING, ("Reshape", "x,c40", "y", {})]), "64 numbers"),
    "a constant of a size": (
        file([("Constant", "", "s", {"value_ints": [T]}), ("ConstantOfShape", "s", "c", {}), ("Add", "x,c", "y", {})]),
        "64 numbers",
    ),
    "branches in time": (file(BRANCHES), "graph in it"),
    "too many nodes": (
        file([("Relu", f"v{i}" if i else "x", f"v{i + 1}", {}) for i in range(MOST_NODES + 1)], output="v9"), "5,000"),
    "a tangle": (
        file([("Relu", "x", "a", {}), ("Tanh", "a", "b", {}), ("Sigmoid", "a", "c", {}), ("Add", "b,c", "d", {}),
              ("Add", "b,d", "y", {})]),
        "several ways",
    ),
    "a product of two branches": (file([("Relu", "x", "a", {}), ("Mul", "x,a", "y", {})]), "as only Add and Concat do"),
    "an axis of length 1, from the end": (file([POOLED, ("Softmax", "g", "y", {"axis": -1})]), "axis 1, not 3"),
    "branches along an axis of length 1": (
        file([POOLED, ("Relu", "g", "a", {}), ("Tanh", "g", "b", {}), ("Concat", "a,b", "y", {"axis": -1})]),
        "axis 1, not 3",
    ),
    "a row of pixels from the end": (file([POOLED, ("Flatten", "g", "y", {"axis": -1})]), "axis 1, not 3"),
    "where the largest were": (file([("MaxPool", "x", "p,y", {"kernel_shape": [2, 2]})]), "first output"),
    "a mask": (file([("Dropout", "x", "p,m", {}), ("Relu", "m", "y", {})], version=9), "first output"),
    "rows of as many as channels": (file([("Shape", "x", "s", {"start": 1}), *FROM_A_SHAPE]), "rows of examples"),
    "rows of as many as weights": (file([("Shape", "W", "s", {}), *FROM_A_SHAPE], [weights(3, 2)]), "rows of examples"),
    "data in a constant's place": (
        file([("Resize", "W,x,s", "y", {})],
             [weights(1, 3, 8, 8), onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")]),
        "every place but the first",
    ),
    "a variance below zero": (
        file([("BatchNormalization", "x,W,W,W,v", "y", {})],
             [weights(3), onnx.numpy_helper.from_array(-np.ones(3, np.float32), "v")]),
        "variance",
    ),
    "copies of copies": (
        file([*COPIES, ("Gemm", "x,c400", "y", {})], [weights(64, 2048)], shape=("n", 64)), "32 times"),
    "a reflection of more than there is": (
        file([("Pad", "x,p", "y", {"mode": "reflect"})],
             [onnx.numpy_helper.from_array(np.array([0, 0, 9, 9] * 2), "p")]),
        "no 9 pixels to reflect",
    ),
    "a constant that is added to pixels": (file([("Add", "x,W", "y", {})], [weights(8, 8)]), "weights right before"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_promises_wrong_is_refused_in_a_sentence(name, tmp_path):
    data, words = FILES[name]
    (tmp_path / "a.onnx").write_bytes(data)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(ValueError, match=r"a\.onnx can't be read: ") as caught:
            onnx_io.read(tmp_path / "a.onnx")
        assert tracemalloc.get_traced_memory()[1] < 40 * len(data) + 2**23
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 10
    one_sentence(caught.value, words)
    assert len(str(caught.value)) < 620


def test_an_axis_counts_as_many_as_the_file_has(tmp_path):
    rows = [("Shape", "x", "s", {"start": 0, "end": 1}), MINUS, ("Concat", "s,m", "t", {"axis": 0})]
    (tmp_path / "a.onnx").write_bytes(file([*rows, ("Reshape", "x,t", "r", {}), ("Softmax", "r", "y", {"axis": -1})]))
    assert str(onnx_io.read(tmp_path / "a.onnx").model) == "3x8x8, Flatten(), Softmax()"
    gone = [("ReduceMean", "x", "g", {"axes": [-1, -2], "keepdims": 0}), ("Softmax", "g", "y", {"axis": -1})]
    for nodes, version in ((gone, 17), ([POOLED, ("Softmax", "g", "y", {})], 12)):
        (tmp_path / "a.onnx").write_bytes(file(nodes, version=version))
        assert str(onnx_io.read(tmp_path / "a.onnx").model) == "3x8x8, GlobalAvgPool(), Softmax()"


def external(location, **more):
    """Return a file whose weights are in another one, 108 bytes of it."""
    found = tensor("W", [1, 3, 3, 3])
    found.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        found.external_data.add(key=key, value=str(value))
    return file([CONV], [found])


def test_weights_in_a_file_beside_the_model_are_read(tmp_path):
    W = np.arange(27, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(bytes(4) + W.tobytes())
    (tmp_path / "a.onnx").write_bytes(external("w.bin", offset=4, length=108))
    assert onnx_io.read(tmp_path / "a.onnx").theta.tolist() == W.tolist()


@pytest.mark.parametrize(
    ("location", "more"),
    [
        *[("../w.bin", {}), ("sub/../../w.bin", {}), ("/etc/passwd", {}), ("", {}), (".", {}), ("link.bin", {})],
        *[("missing.bin", {}), ("ours.bin", {"offset": 8}), ("ours.bin", {"offset": "-1"})],
        ("ours.bin", {"offset": "x"}),
        *[("ours.bin", {"length": 10**12}), ("ours.bin", {"offset": 10**30})],
    ],
)
def test_weights_elsewhere_or_of_another_size_are_not_read(location, more, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (tmp_path / "w.bin", folder / "ours.bin"):
        path.write_bytes(bytes(108))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "a.onnx").write_bytes(external(location, **more))
    with pytest.raises(ValueError, match="can't be read") as caught:
        onnx_io.read(folder / "a.onnx")
    one_sentence(caught.value)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        onnx_io.read(tmp_path / "none.onnx")
    with pytest.raises(OSError, match="folder"):
        onnx_io.read(tmp_path)


def test_branches_in_branches_end_somewhere(tmp_path):
    (tmp_path / "a.onnx").write_bytes(file(DEEP, output=DEEP[-1][2]))
    with pytest.raises(ValueError, match="can't be read") as caught:
        onnx_io.read(tmp_path / "a.onnx")
    one_sentence(caught.value)


@given(st.data())
def test_a_damaged_file_is_read_or_refused(data):
    path = FOLDER / "small.onnx"
    path.write_bytes(damaged(CONTENT, data.draw))
    try:
        network = onnx_io.read(path)
    except ValueError as error:
        one_sentence(error)
    else:
        assert np.isfinite(network.theta).all()


@pytest.fixture(autouse=True, scope="module")
def _small(tmp_path_factory):
    global FOLDER, CONTENT
    FOLDER = tmp_path_factory.mktemp("damaged")
    onnx_io.write(Network(model=SMALL), FOLDER / "small.onnx", fold=False)
    CONTENT = (FOLDER / "small.onnx").read_bytes()


def test_a_file_says_in_a_sentence_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    for ask in (lambda: onnx_io.write(Network(model=SMALL), tmp_path / "a.onnx"), lambda: onnx_io.read("a.onnx")):
        with pytest.raises(ImportError, match=r'pip install "mlpkit\[onnx\]"'):
            ask()


@pytest.mark.parametrize("fold", [True, False])
def test_a_model_is_no_network_to_write(fold, tmp_path):
    with pytest.raises(TypeError, match="network must be a Network") as caught:
        onnx_io.write(SMALL, tmp_path / "a.onnx", fold)
    one_sentence(caught.value, "not Model")
