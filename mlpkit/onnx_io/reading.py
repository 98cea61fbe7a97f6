"""A network of our layers from somebody else's ONNX file: each node is a layer or two, each constant an array of theirs."""

from dataclasses import replace
from math import prod

import numpy as np

from mlpkit import engines
from mlpkit.checks import check_finite, check_sizes
from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.layers import Dropout, Flatten, LeakyReLU, Linear, ReLU, Sigmoid, Tanh
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Padding, PixelShuffle, Upsample
from mlpkit.nn.squash import Clip, Softmax
from mlpkit.words import short_sentences

from .chains import steps_of
from .loading import array_of, load
from .operators import Setting, why_not

MOST_VALUES = 2**28  # between two layers, for an example; and in a window with zeros in it


@short_sentences()
def read(path, engine=engines.BASELINE, shape=None):
    """Return the network in the ONNX file `path`, on an engine: it computes what the file says, in evaluation.

    shape: of an example, such as (3, 224, 224), where the file leaves sizes open. The loss is that of the file's
    metadata, where `write` made it, else softmax cross-entropy. Raises FileNotFoundError where there is no file,
    ImportError where the package onnx is missing, and ValueError, in one sentence, for what is no network of layers:
    see the table in `operators`. Nothing that the file promises is allocated before it is there.
    """
    try:
        graph = load(path)
        network = network_of(graph, engine, shape)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path} can't be read: {str(error).rstrip('.')}.") from error
    return network


def network_of(graph, engine, shape=None):
    """Return the network that a `Graph` describes. Raises ValueError or TypeError where there is none."""
    shape = _input(graph, shape)
    made, _ = _Reader(graph).chain(steps_of(graph), shape)
    model = Model(shape, tuple(layer for layer, _ in made), _loss(graph.metadata))
    if max(prod(each) for _, _, each, _ in model.walk + ((0, 0, model.output, 0),)) > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES:,} values between two layers, of one example")
    arrays = {f"{number}.{name}": array for number, (_, own) in enumerate(made) for name, array in own.items()}
    for layout in (model.layout, model.statistics):
        for name, declared in layout.shapes.items():  # before a network is made, which allocates them
            if arrays[name].shape != tuple(declared):
                raise ValueError(f"an array of layer {name} has the shape {arrays[name].shape}, not {declared}")
            check_finite("weights", arrays[name])
    network = Network(engine, model, dtype=graph.dtype)
    views = {**network.views(network.theta), **model.statistics.views(network.statistics)}
    for name, view in views.items():
        view[...] = network.engine.asarray(arrays[name].astype(graph.dtype))
    return network


def _input(graph, shape):
    if shape is None and None in graph.shape:
        raise ValueError(f"its input has the shape {graph.shape}, which is open: say it, as in read(path, shape=(3, 64, 64))")
    shape = check_sizes(graph.shape if shape is None else shape, least=1)
    if len(shape) != len(graph.shape) or any(b not in (None, a) for a, b in zip(shape, graph.shape, strict=True)):
        raise ValueError(f"its input has the shape {graph.shape}, not {shape}")
    return shape


def _loss(metadata):
    """Return the loss that a file names, which runs no code, or the usual one."""
    try:
        return Model.from_dict({"input": [1], "layers": [], "loss": metadata["loss"].strip('"')}).loss
    except (KeyError, ValueError):
        return Model((1,), ()).loss


class _Reader:
    """Makes layers of steps. `made` are pairs: a layer, and its arrays by name."""

    def __init__(self, graph):
        self.graph, self.constants = graph, {}
        for node in graph.nodes:
            inputs = [*map(self.constant, node.inputs)]
            if node.operator in FOLDS and (node.operator == "Shape" or not any(map(_missing, inputs, node.inputs))):
                self.constants[node.outputs[0]] = _checked(node, lambda: FOLDS[node.operator](node, *inputs))

    def constant(self, name):
        """Return a constant as an array; None for what is none."""
        found = self.constants.get(name)
        return self.graph.constant(name) if found is None and name in self.graph.tensors else found

    def chain(self, steps, shape):
        """Return what is made of a sequence of steps, a list, and the shape that comes out."""
        made = []
        for step in steps:
            branches = [self.chain(branch, shape)[0] for branch in step.branches]
            shape = _checked(step.node, lambda: self.step(step.node, shape, branches, made))  # noqa: B023 (at once)
        return made, shape

    def step(self, node, shape, branches, made):
        """Append what a node becomes to `made`, and return the shape that comes out."""
        of = Setting(node, shape, tuple(map(self.constant, node.inputs)), self.graph.batch, self.graph.version)
        if reason := why_not(of):
            raise ValueError(reason)
        before = len(made)
        if branches:
            made.append(joined(of, branches))
        else:
            LAYERS[node.operator](of, made)
        for layer, _ in made[before:]:
            shape = layer.output(shape)
        return shape


def _checked(node, function):
    """Return what a function returns. Raises ValueError that names the node where its inputs are not as they should be."""
    try:
        return function()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{node}, is not read: {error}") from error


def _missing(array, name):
    return array is None and name != ""


def joined(of, branches):
    """Return the layer that joins branches, lists as `made` is, and its arrays by name."""
    chains = [tuple(layer for layer, _ in branch) for branch in branches]
    if of.node.operator == "Concat":
        layer, order = Concat(*chains), branches
    elif of.node.operator == "Add":
        order = branches if chains[0] else branches[::-1]
        layer = Residual(*(chains if chains[0] else chains[::-1]))
    else:
        raise ValueError("it gets several values that depend on the input: only sums and concatenations do")
    inner = [arrays for branch in order for _, arrays in branch]
    return layer, {f"{i}.{name}": array for i, arrays in enumerate(inner) for name, array in arrays.items()}


def number(value):
    """Return a float32 as the decimal number that was meant: 0.1, and not 0.10000000149011612."""
    return float(str(np.float32(value)))


def _folded_shape(node, x):
    return np.array([0] + [-2] * 7)  # as a Reshape has it: 0 is the batch; -2, which is nothing, stands for the others


def _small(array):
    if array.size > 64:  # of sizes: what doubles again and again would fill the memory
        raise ValueError("sizes are computed from more than 64 numbers")
    return array


def _constant(node):
    kinds = {"value": array_of, "value_float": np.float32, "value_int": np.int64}
    kinds |= {"value_floats": np.float32, "value_ints": np.int64}
    ((name, value),) = node.attributes.items()
    return array_of(value, None) if name == "value" else np.array(value, kinds[name])


def _dequantized(node, x, scale, zero=None):
    if node.attributes.get("block_size") or scale.ndim > 1:
        raise ValueError("blocks of weights with scales of their own are not read")
    along = [-1 if axis == node.attributes.get("axis", 1) % max(x.ndim, 1) else 1 for axis in range(x.ndim)]
    scale, zero = (one if one.ndim == 0 or one.size == 1 else one.reshape(along) for one in (scale, zero if zero is not None else 0 * x.flat[0]))
    return (x.astype(np.int32) - zero.astype(np.int32)).astype(scale.dtype) * scale


# What is computed from constants alone, or from sizes
FOLDS = {
    "Cast": lambda node, x: _small(x),
    "Concat": lambda node, *parts: _small(np.concatenate([_small(part).reshape(-1) for part in parts])),
    "Constant": _constant,
    "DequantizeLinear": _dequantized,
    "Gather": lambda node, x, index: _small(_small(x).reshape(-1)[_small(index)]),
    "Identity": lambda node, x: x,
    "Shape": _folded_shape,
    "Unsqueeze": lambda node, x, *axes: _small(x).reshape(-1),
}


def _gemm(of, made):
    W = of.constant(1).T if of.get("transB", 0) else of.constant(1)
    b = np.broadcast_to(of.constant(2, np.zeros(1)).reshape(-1), W.shape[1:])
    made.append((Linear(W.shape[1]), {"W": W * of.get("alpha", 1.0), "b": b * of.get("beta", 1.0)}))


def _bias(of, made):
    """Add a constant to the bias of what stands right before."""
    layer, arrays = made[-1] if made else (None, {})
    if not isinstance(layer, Linear | Conv | ConvTranspose):
        raise ValueError("a constant is added, and there are no weights right before it")
    added = next(one for one in of.constants if one is not None)
    units = arrays["W"].shape[0 if type(layer) is Conv else 1]
    wanted = (1, units) + (1,) * (len(of.shape) - 1)
    if added.size not in (1, units) or np.broadcast_shapes(added.shape, wanted) != wanted:
        raise ValueError(f"a constant of the shape {added.shape} is added, which is no bias for {units} channels")
    layer = layer if isinstance(layer, Linear) else replace(layer, bias=True)
    made[-1] = layer, arrays | {"b": arrays.get("b", 0) + np.broadcast_to(added.reshape(-1), units)}


def _with_zeros(of, size, top=0, left=0):
    """Return the weights in square windows of a size, with zeros where dilations and pads leave pixels out."""
    W, gaps = of.constant(1), of.get("dilations", (1, 1))
    if size * size > 64 * prod(W.shape[2:]):
        raise ValueError(f"it would need windows of {size} x {size} for weights of {W.shape[2]} x {W.shape[3]}")
    square = np.zeros((*W.shape[:2], size, size), W.dtype)
    down, across = (slice(at, None, gap) for at, gap in zip((top, left), gaps, strict=True))
    square[:, :, down, across][:, :, : W.shape[2], : W.shape[3]] = W
    return square


def _conv(of, made):
    size, padding, top, left = of.square()
    W, b = _with_zeros(of, size, top, left), of.constant(2)
    layer = Conv(len(W), size, of.get("strides", (1,))[0], padding, bias=b is not None)
    made.append((layer, {"W": W} | ({} if b is None else {"b": b})))


def _conv_transpose(of, made):
    W, b = _with_zeros(of, of.extent(of.constant(1).shape[2:])[0]), of.constant(2)
    steps = of.get("strides", (1,))[0], of.pads((1, 1))[0][0], of.get("output_padding", (0,))[0]
    layer = ConvTranspose(W.shape[1], W.shape[2], *steps, bias=b is not None)
    made.append((layer, {"W": W} | ({} if b is None else {"b": b})))


def _pool(layer, mode):
    def read(of, made):
        size, stride, pads = of.get("kernel_shape"), of.get("strides", (1, 1)), of.pads(of.get("kernel_shape"))
        if pads[0][0]:  # what stands at the edge is as large as what lies beyond, for the largest of a window
            made.append((Padding(pads[0][0], mode), {}))
        made.append((layer(size[0], None if stride == size else stride[0]), {}))

    return read


def _batch_norm(of, made):
    names = "gamma", "beta", "mean", "variance"
    momentum = number(1 - number(of.get("momentum", 0.9)))
    layer = BatchNorm(momentum if 0 <= momentum < 1 else 0.1, number(of.get("epsilon", 1e-5)))
    made.append((layer, dict(zip(names, of.constants[1:5], strict=True))))


def _instance_norm(of, made):
    gamma, beta = of.constants[1:3]
    affine = bool((gamma != 1).any() or beta.any())
    layer = InstanceNorm(number(of.get("epsilon", 1e-5)), affine)
    made.append((layer, {"gamma": gamma, "beta": beta} if affine else {}))


def _clip(of, made):
    most = float(np.finfo(np.float32).max)
    low, high = (of.constant(i, of.get(name)) for i, name in ((1, "min"), (2, "max")))
    bounds = (-most if low is None else np.ravel(low)[0]), (most if high is None else np.ravel(high)[0])
    made.append((Clip(*(number(min(max(bound, -most), most)) for bound in bounds)), {}))


def _flatten(of, made):
    target = of.constant(1)
    if len(of.shape) > 1 and (target is None or target.size == 2):
        made.append((Flatten(), {}))


def _resize(of, made):
    scales, sizes = of.constant(2), of.constant(3)
    scale = scales[2] if scales is not None and scales.size else sizes[2] / of.shape[1]
    made.append((Upsample(int(scale), "bilinear" if of.get("mode") == "linear" else "nearest"), {}))


def _pad(of, made):
    size = int(of.constant(1, np.array(of.get("pads", ())))[2])
    mode = {"constant": "zero", "edge": "replicate"}.get(of.get("mode", "constant"), "reflect")
    if size:
        made.append((Padding(size, mode), {}))


def _plain(layer):
    return lambda of, made: made.append((layer(of), {}))


LAYERS = {
    "Add": _bias,
    "AveragePool": _pool(AvgPool, "zero"),
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DepthToSpace": _plain(lambda of: PixelShuffle(of.get("blocksize"))),
    "Dropout": _plain(lambda of: Dropout(number(np.ravel(of.constant(1, of.get("ratio", 0.5)))[0]))),
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _plain(lambda of: GlobalAvgPool()),
    "Identity": lambda of, made: None,
    "InstanceNormalization": _instance_norm,
    "LeakyRelu": _plain(lambda of: LeakyReLU(number(of.get("alpha", 0.01)))),
    "MatMul": _gemm,
    "MaxPool": _pool(MaxPool, "replicate"),
    "Pad": _pad,
    "ReduceMean": _plain(lambda of: GlobalAvgPool()),
    "Relu": _plain(lambda of: ReLU()),
    "Reshape": _flatten,
    "Resize": _resize,
    "Sigmoid": _plain(lambda of: Sigmoid()),
    "Softmax": _plain(lambda of: Softmax()),
    "Tanh": _plain(lambda of: Tanh()),
}
