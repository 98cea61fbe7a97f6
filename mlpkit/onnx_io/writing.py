"""A network as an ONNX file: each layer is a node or two, its arrays are constants.

The operators are those of opset 17, from 2022: what reads ONNX reads it. They are made by `onnx.helper` alone.
"""

import json
from functools import partial

import numpy as np

from mlpkit import __version__
from mlpkit.files import write_atomically
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.fold import fold as folded
from mlpkit.nn.layers import Dropout, Flatten, LeakyReLU, Linear, ReLU, Sigmoid, Tanh
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Padding, PixelShuffle, Upsample
from mlpkit.nn.squash import Clip, Softmax

from .loading import need_onnx

OPSET, IR = 17, 8
INPUT, OUTPUT = "input", "output"


def write(network, path, fold=True, metadata=()):
    """Write a network to the ONNX file `path`, atomically, as it computes in evaluation.

    The file has one input, "input" (n, *model.input), values, not pixels from 0 to 255, and one output, "output"
    (n, *model.output), n being free; values between layers have the paths of layers as names, such as "3" or "5.1".
    fold: whether batch norms go into the weights before them and Dropout goes away; see `nn.fold`. metadata: texts by
    name that are kept in the file. Raises ImportError where the package onnx is missing, ValueError for a layer that
    ONNX has no operator for, or more than 2 GB, and OSError where the file can't be written.
    """
    onnx = need_onnx()
    network = folded(network) if fold else network
    graph = _Graph(network)
    last = graph.chain(network.layers, INPUT)
    graph.nodes.append(onnx.helper.make_node("Identity", [last], [OUTPUT], "output"))
    kind = onnx.helper.np_dtype_to_tensor_dtype(network.dtype)
    ends = [
        onnx.helper.make_tensor_value_info(name, kind, ["n", *shape])
        for name, shape in ((INPUT, network.model.input), (OUTPUT, network.model.output))
    ]
    made = onnx.helper.make_graph(graph.nodes, "network", ends[:1], ends[1:], graph.constants)
    opset = [onnx.helper.make_opsetid("", OPSET)]
    described = {"producer_name": "mlpkit", "producer_version": __version__, "doc_string": str(network.model)}
    model = onnx.helper.make_model(made, opset_imports=opset, ir_version=IR, **described)
    loss = json.dumps(network.model.to_dict()["loss"])
    onnx.helper.set_model_props(model, {"loss": loss, **dict(metadata)})
    try:
        data = model.SerializeToString()
    except Exception as error:  # protobuf's own
        raise ValueError("an ONNX file holds at most 2 GB: choose a smaller model.") from error
    write_atomically(path, data)


class _Graph:
    """Nodes and constants so far."""

    def __init__(self, network):
        self.nodes, self.constants, self.to_numpy = [], [], network.engine.to_numpy
        self.shapes = {path: shape for path, _, shape, _ in network.model.walk}

    def chain(self, layers, value):
        """Add what bound layers do to a value, one after another, and return the last one's name."""
        for at in layers:
            writer = WRITERS.get(type(at.layer))
            if writer is None:
                known = ", ".join(each.__name__ for each in WRITERS)
                raise ValueError(f"layer {at.name}, {at.layer!r}, has no operator of ONNX here: there are {known}.")
            value = writer(self, at, value)
        return value

    def add(self, operator, path, *values, name=None, **settings):
        """Add a node and return its output's name. settings: attributes, and arrays, the constants behind the values."""
        onnx, name = need_onnx(), name or path
        arrays = {key: value for key, value in settings.items() if isinstance(value, np.ndarray)}
        attributes = {key: value for key, value in settings.items() if key not in arrays and value is not None}
        for key, array in arrays.items():
            self.constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), f"{name}.{key}"))
        inputs = [*values, *(f"{name}.{key}" for key in arrays)]
        self.nodes.append(onnx.helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def arrays(self, at, *names):
        return {name: self.to_numpy(getattr(at, name)) for name in names if name in at.lasting}


def _plain(operator, graph, at, x, **attributes):
    return graph.add(operator, at.name, x, **attributes)


def _linear(graph, at, x):
    return graph.add("Gemm", at.name, x, **graph.arrays(at, "W", "b"))


def _leaky(graph, at, x):
    return graph.add("LeakyRelu", at.name, x, alpha=at.layer.slope)


def _clip(graph, at, x):
    bounds = {name: np.array(getattr(at.layer, name), at.mode.dtype) for name in ("low", "high")}
    return graph.add("Clip", at.name, x, **bounds)


def _dropout(graph, at, x):
    return graph.add("Dropout", at.name, x, rate=np.array(at.layer.rate, np.float32))


def _window(layer):
    """Return the attributes that convolutions have in common."""
    size, stride, padding = [layer.size] * 2, [layer.stride] * 2, [layer.padding] * 4
    return dict(kernel_shape=size, strides=stride, pads=padding)


def _conv(graph, at, x):
    return graph.add("Conv", at.name, x, **graph.arrays(at, "W", "b"), **_window(at.layer))


def _conv_transpose(graph, at, x):
    added = [at.layer.output_padding] * 2
    arrays = graph.arrays(at, "W", "b")
    return graph.add("ConvTranspose", at.name, x, **arrays, **_window(at.layer), output_padding=added)


def _pool(operator, graph, at, x):
    size, stride = [at.layer.size] * 2, [at.layer.stride or at.layer.size] * 2
    return graph.add(operator, at.name, x, kernel_shape=size, strides=stride)


def _batch_norm(graph, at, x):
    arrays = graph.arrays(at, "gamma", "beta", "mean", "variance")
    return graph.add("BatchNormalization", at.name, x, **arrays, epsilon=at.layer.eps, momentum=1 - at.layer.momentum)


def _instance_norm(graph, at, x):
    level = np.ones(graph.shapes[at.path][0], at.mode.dtype)
    arrays = graph.arrays(at, "gamma", "beta") or {"gamma": level, "beta": 0 * level}
    return graph.add("InstanceNormalization", at.name, x, **arrays, epsilon=at.layer.eps)


def _mean(graph, at, x):
    pooled = graph.add("GlobalAveragePool", at.name, x, name=f"{at.name} mean")
    return graph.add("Flatten", at.name, pooled, axis=1)


def _residual(graph, at, x):
    return graph.add("Add", at.name, *(graph.chain(branch, x) for branch in at.branches))


def _concat(graph, at, x):
    return graph.add("Concat", at.name, *(graph.chain(branch, x) for branch in at.branches), axis=1)


def _upsample(graph, at, x):
    scales = np.array([1, 1, at.layer.scale, at.layer.scale], np.float32)
    how = {"nearest": ("nearest", "asymmetric"), "bilinear": ("linear", "half_pixel")}[at.layer.mode]
    attributes = dict(mode=how[0], coordinate_transformation_mode=how[1], nearest_mode="floor")
    return graph.add("Resize", at.name, x, "", scales=scales, **attributes)


def _shuffle(graph, at, x):
    return graph.add("DepthToSpace", at.name, x, blocksize=at.layer.scale, mode="CRD")


def _padding(graph, at, x):
    edge = [0, 0, at.layer.size, at.layer.size]
    mode = {"reflect": "reflect", "replicate": "edge", "zero": "constant"}[at.layer.mode]
    return graph.add("Pad", at.name, x, pads=np.array(edge * 2, np.int64), mode=mode)


WRITERS = {
    Linear: _linear,
    ReLU: partial(_plain, "Relu"),
    LeakyReLU: _leaky,
    Sigmoid: partial(_plain, "Sigmoid"),
    Tanh: partial(_plain, "Tanh"),
    Clip: _clip,
    Softmax: partial(_plain, "Softmax", axis=1),
    Flatten: partial(_plain, "Flatten", axis=1),
    Dropout: _dropout,
    Conv: _conv,
    ConvTranspose: _conv_transpose,
    MaxPool: partial(_pool, "MaxPool"),
    AvgPool: partial(_pool, "AveragePool"),
    GlobalAvgPool: _mean,
    BatchNorm: _batch_norm,
    InstanceNorm: _instance_norm,
    Residual: _residual,
    Concat: _concat,
    Upsample: _upsample,
    PixelShuffle: _shuffle,
    Padding: _padding,
}
