"""A network as an ONNX file: each layer is a node or two, its arrays are constants.

The operators are those of version 17, from 2022, which all that runs ONNX files reads.
"""

import json

import numpy as np

from mlpkit import __version__
from mlpkit.files import write_atomically
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.fold import fold as folded
from mlpkit.nn.layers import Dropout, Flatten, LeakyReLU, Linear, ReLU, Sigmoid, Tanh
from mlpkit.nn.network import check_is_network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Crop, Padding, PixelShuffle, Upsample
from mlpkit.nn.squash import Clip, Softmax

from .loading import need_onnx

OPSET, IR = 17, 8
PADDING = {"reflect": "reflect", "replicate": "edge", "zero": "constant"}
RESIZING = {"nearest": ("nearest", "asymmetric"), "bilinear": ("linear", "half_pixel")}


def write(network, path, fold=True, metadata=()):
    """Write a network to the ONNX file `path`, atomically, as it computes in evaluation.

    It has one input, "input" (n, *model.input), values, not pixels from 0 to 255, and one output, "output"
    (n, *model.output), n being free; a layer's output has its path as a name, such as "3" or "5.1". fold: whether batch
    norms go into the weights before them, and Dropout away; see `nn.fold`. metadata: texts by name to keep in the file.
    Raises ImportError where the package onnx is missing, ValueError for a layer that ONNX has no operator for and for
    more than 2 GB, and OSError where the file can't be written.
    """
    onnx = need_onnx()
    check_is_network(network)
    network = folded(network) if fold else network
    graph = _Graph(onnx, network)
    graph.add("Identity", "output", graph.chain(network.layers, "input"))
    model, about = network.model, dict(producer_name="mlpkit", producer_version=__version__)
    made = graph.whole(model.input, model.output, doc_string=str(model), **about)
    onnx.helper.set_model_props(made, {"loss": json.dumps(model.to_dict()["loss"]), **dict(metadata)})
    try:
        data = made.SerializeToString()
    except Exception as error:  # protobuf's own, of which there are several implementations
        raise ValueError("an ONNX file holds at most 2 GB: choose a smaller model.") from error
    write_atomically(path, data)


class _Graph:
    """Nodes and constants so far."""

    def __init__(self, onnx, network):
        self.onnx, self.to_numpy, self.nodes, self.constants = onnx, network.engine.to_numpy, [], []
        self.dtype = network.dtype
        self.shapes = {path: shape for path, _, shape, _ in network.model.walk}

    def whole(self, input, output, **about):
        """Return the file's contents: from "input" (n, *input) to "output" (n, *output)."""
        helper = self.onnx.helper
        kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        ends = [helper.make_tensor_value_info(name, kind, ["n", *shape])
                for name, shape in (("input", input), ("output", output))]  # fmt: skip
        graph = helper.make_graph(self.nodes, "network", ends[:1], ends[1:], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, **about)

    def chain(self, layers, value):
        """Add what bound layers do to a value, one after another, and return the last one's name."""
        for at in layers:
            if type(at.layer) is GlobalAvgPool:  # rows, and not images of one pixel
                value = self.add("Flatten", at.name, self.add("GlobalAveragePool", f"{at.name} mean", value), axis=1)
            elif at.branches:
                value = self.join(at, [self.chain(branch, value) for branch in at.branches])
            elif type(at.layer) in WRITERS:
                operator, settings = WRITERS[type(at.layer)](at.layer)
                arrays = {name: self.to_numpy(getattr(at, name)) for name in ARRAYS if name in at.lasting}
                if type(at.layer) is InstanceNorm and not arrays:
                    arrays = {"gamma": np.ones(self.shapes[at.path][0], at.mode.dtype)}
                    arrays["beta"] = 0 * arrays["gamma"]
                value = self.add(operator, at.name, value, **arrays, **settings)
            else:
                raise ValueError(f"layer {at.name}, {at.layer!r}, has no operator of ONNX here: make it of others.")
        return value

    def join(self, at, values):
        if type(at.layer) is Residual:
            return self.add("Add", at.name, *values)
        if type(at.layer) is Concat:
            return self.add("Concat", at.name, *values, axis=1)
        raise ValueError(f"layer {at.name}, a {type(at.layer).__name__}, has branches: Residual and Concat may.")

    def add(self, operator, name, *values, **settings):
        """Add a node, and return the name of its output. settings: attributes; arrays are constants that go in, too."""
        arrays = {key: settings.pop(key) for key, value in [*settings.items()] if isinstance(value, np.ndarray)}
        for key, array in arrays.items():
            array = array.astype(self.dtype) if array.dtype == np.float64 else array
            self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(array, order="C"), f"{name}.{key}"))
        values = *values, *(("",) if operator == "Resize" else ()), *(f"{name}.{key}" for key in arrays)
        self.nodes.append(self.onnx.helper.make_node(operator, values, [name], name, **settings))
        return name


def _window(size, stride, padding=None):
    """Return the attributes that layers with windows have in common."""
    return dict(kernel_shape=[size] * 2, strides=[stride] * 2) | ({} if padding is None else {"pads": [padding] * 4})


def _pool(operator):
    return lambda one: (operator, _window(one.size, one.stride or one.size))


def _resize(one):
    mode, coordinates = RESIZING[one.mode]
    how = dict(mode=mode, coordinate_transformation_mode=coordinates, nearest_mode="floor")
    return "Resize", how | {"scales": np.array([1, 1, one.scale, one.scale], np.float32)}


def _pad(size, mode):
    return "Pad", dict(mode=PADDING[mode], pads=np.array([0, 0, size, size] * 2))


def _transposed(one):
    return "ConvTranspose", _window(one.size, one.stride, one.padding) | {"output_padding": [one.output_padding] * 2}


ARRAYS = "W", "b", "gamma", "beta", "mean", "variance"  # as operators take them
WRITERS = {
    Linear: lambda one: ("Gemm", {}),
    ReLU: lambda one: ("Relu", {}),
    LeakyReLU: lambda one: ("LeakyRelu", dict(alpha=one.slope)),
    Sigmoid: lambda one: ("Sigmoid", {}),
    Tanh: lambda one: ("Tanh", {}),
    Clip: lambda one: ("Clip", dict(low=np.array(one.low), high=np.array(one.high))),
    Softmax: lambda one: ("Softmax", dict(axis=1)),
    Flatten: lambda one: ("Flatten", dict(axis=1)),
    Dropout: lambda one: ("Dropout", dict(rate=np.array(one.rate, np.float32))),
    Conv: lambda one: ("Conv", _window(one.size, one.stride, one.padding)),
    ConvTranspose: _transposed,
    MaxPool: _pool("MaxPool"),
    AvgPool: _pool("AveragePool"),
    BatchNorm: lambda one: ("BatchNormalization", dict(epsilon=one.eps, momentum=1 - one.momentum)),
    InstanceNorm: lambda one: ("InstanceNormalization", dict(epsilon=one.eps)),
    Upsample: _resize,
    PixelShuffle: lambda one: ("DepthToSpace", dict(blocksize=one.scale, mode="CRD")),
    Padding: lambda one: _pad(one.size, one.mode),
    Crop: lambda one: _pad(-one.size, "zero"),
}
