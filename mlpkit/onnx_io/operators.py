"""The table of ONNX's operators that are read: what each becomes, and of what else a layer has no word.

ONNX describes more than our layers do, see https://onnx.ai/onnx/operators: a node is read where they give what it says,
and refused where not. How many of ONNX's own cases of a node are read stands beside each, and the tests count.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mlpkit.nn.concat import Concat
from mlpkit.nn.conv import AvgPool, Conv, MaxPool
from mlpkit.nn.layers import Dropout, Flatten, LeakyReLU, Linear, ReLU, Sigmoid, Tanh
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.per_image import GlobalAvgPool, InstanceNorm
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import ConvTranspose, Crop, Padding, PixelShuffle, Upsample
from mlpkit.nn.squash import Clip, Softmax

from .loading import need

HELP = {
    "Transpose": "export it with channels first",
    "Mul": "fold factors into the weights before it",
    "QuantizeLinear": "export it before it was quantized",
}


class Setting:
    """A node where it stands. shape: of an example that goes in. constants: its inputs, None for what is none.

    batch: of the file, None where it is free. version: of the operators. rank: how many axes the file has there. What
    is taken of the attributes is noted.
    """

    def __init__(self, node, shape, constants, batch, version, rank):
        self.node, self.shape, self.constants, self.batch, self.version = node, shape, constants, batch, version
        self.rank = rank
        self.taken: set[str] = set()

    def get(self, name: str, default: Any = None, allowed: tuple | None = None) -> Any:
        """Return an attribute; an axis is counted from 0. Raises ValueError where some are allowed, and it is none."""
        self.taken.add(name)
        value: Any = self.node.attributes.get(name, default)
        value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        value = value + self.rank if name == "axis" and value is not None and value < 0 else value
        value = tuple(value) if isinstance(value, list) else value
        only(allowed is None or value in allowed, f"{name} {' or '.join(map(str, allowed or ()))}, not {value}")
        return value

    def same(self, name, default=(1, 1)):
        """Return an attribute of height and width that must be the same for both."""
        both = self.get(name, default)
        only(len(both) == 2 and both[0] == both[1], f"one of {name} for height and width")
        return both[0]

    def constant(self, number, default=None):
        """Return an input that is a constant, or the default where it is left out."""
        there = number < len(self.node.inputs) and self.node.inputs[number]
        only(not there or self.constants[number] is not None, f"a constant as input {number}")
        return self.constants[number] if there else default

    def pads(self, extent):
        """Return (above, below), (left, right): rows and columns around an image for windows of an extent (2,)."""
        kind = self.get("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
        steps, given = self.get("strides", (1, 1)), self.get("pads", (0,) * 4)
        found = [(0, 0), (0, 0)] if kind == "VALID" else [given[::2], given[1::2]]
        if kind.startswith("SAME"):  # as many windows as there are steps in the image
            for axis, (size, length, step) in enumerate(zip(extent, self.shape[1:], steps, strict=True)):
                total = max((-(-length // step) - 1) * step + size - length, 0)
                found[axis] = (total // 2, total - total // 2)[:: -1 if kind == "SAME_LOWER" else 1]
        images = len(extent) == len(self.shape) - 1 == 2 and len(given) == 4
        only(images and min(map(min, found)) >= 0, "images, and four pads of 0 or more")
        return found

    def around(self, extent):
        """Return the pads, which must be the same all around."""
        above, left = self.pads(extent)
        only(len({*above, *left}) == 1, "equal pads all around")
        return above[0]

    def extent(self, sizes):
        """Return how many pixels windows of these sizes (2,) span, with those that dilations leave out."""
        only(len(sizes) == 2 and self.get("kernel_shape", tuple(sizes)) == tuple(sizes), "the weights' own windows")
        return tuple((size - 1) * gap + 1 for size, gap in zip(sizes, self.get("dilations", (1, 1)), strict=True))


class Operator(NamedTuple):
    """becomes: layers. what: of it is read. cases: of ONNX's own. read: (setting, made), which appends to `made`."""

    becomes: str
    what: str
    cases: int
    read: Callable


OPERATORS: dict[str, Operator] = {}


def only(sound, what):
    """Raise ValueError unless a node has what is read of its operator."""
    need(sound, f"what is read has {what}")


def reads(name, becomes, cases, what="all"):
    """Return a decorator that puts a function into the table; `made` is a list of pairs, a layer and its arrays."""
    return lambda function: OPERATORS.setdefault(name, Operator(becomes, what, cases, function)).read


def read(of, made):
    """Append what a node becomes to `made`. Raises ValueError, a piece of a sentence, for what is not in the table."""
    name = of.node.operator
    need(name in OPERATORS, f"there is no layer for it; {HELP.get(name, 'make it of others, or cut it off')}")
    only(name == "Add" or of.constants[0] is None, "a constant in every place but the first")
    OPERATORS[name].read(of, made)
    only(of.node.attributes.keys() <= of.taken, f"no {', '.join(sorted(of.node.attributes.keys() - of.taken))}")


def join(of, branches):
    """Return the layer that joins branches, lists as `made` is, and its arrays by name."""
    need(of.node.operator in ("Add", "Concat") and len(branches) == len(of.node.inputs),
         "it gets several values that depend on the input, as only Add and Concat do")  # fmt: skip
    if of.node.operator == "Add":
        branches = sorted(branches, key=lambda branch: not branch)  # an empty one is the shortcut
    kind = {"Add": Residual, "Concat": Concat}[of.node.operator]
    of.get("axis", 1, (1,))
    arrays = enumerate(arrays for branch in branches for _, arrays in branch)
    layer = kind(*(tuple(layer for layer, _ in branch) for branch in branches))
    return layer, {f"{i}.{name}": array for i, own in arrays for name, array in own.items()}


def decimal(value):
    """Return a float32 as the decimal number that was meant: 0.1, and not 0.10000000149011612."""
    return float(str(np.float32(value)))


@reads("Gemm", "Linear", 8, "weights that are constant; transA 0; C of one row")
def _gemm(of, made):
    of.get("transA", 0, (0,))
    W = of.constant(1).T if of.get("transB", 0, (0, 1)) else of.constant(1)
    b = of.constant(2, np.zeros(1, W.dtype))
    only(len(of.shape) == 1 and W.ndim == 2 and (b.ndim < 2 or len(b) == 1), "rows, a matrix, and one row to add")
    b = np.broadcast_to(b.reshape(-1), W.shape[1:])
    made.append((Linear(W.shape[1]), {"W": W * of.get("alpha", 1.0), "b": b * of.get("beta", 1.0)}))


reads("MatMul", "Linear", 1, "rows times a constant matrix")(_gemm)


@reads("Add", "Residual; a bias", 1, "two branches of one shape; or a bias right behind weights")
def _bias(of, made):
    layer, arrays = made[-1] if made else (None, {})
    only(isinstance(layer, Linear | Conv | ConvTranspose), "weights right before a constant that is added")
    added = next((one for one in of.constants if one is not None), np.zeros(0))
    units = arrays["W"].shape[0 if type(layer) is Conv else 1]
    wanted = (1, units) + (1,) * (len(of.shape) - 1)
    only(added.size in (1, units) and np.broadcast_shapes(added.shape, wanted) == wanted, "one number to add a channel")
    layer = layer if isinstance(layer, Linear) else replace(layer, bias=True)
    made[-1] = layer, arrays | {"b": arrays.get("b", 0) + np.broadcast_to(added.reshape(-1), units)}


@reads("Conv", "Conv", 5, "group 1; windows and pads that are a square's, with zeros in it where need be")
def _conv(of, made):
    of.get("group", 1, (1,))
    W, b, extent = of.constant(1), of.constant(2), of.extent(of.constant(1).shape[2:])
    pads = of.pads(extent)
    most = max(map(max, pads))  # where b pixels are asked for and there are more, zeros in the window make up for them
    sizes = {2 * most - sum(pair) + size for pair, size in zip(pads, extent, strict=True)}
    only(len(sizes) == 1, "windows that become square with zeros around them")
    (size,) = sizes
    layer = Conv(len(W), size, of.same("strides"), most, b is not None)
    made.append((layer, _with_zeros(of, size, most - pads[0][0], most - pads[1][0])))


@reads("ConvTranspose", "ConvTranspose", 2, "group 1; square windows; equal pads all around")
def _conv_transpose(of, made):
    of.get("group", 1, (1,)), of.get("auto_pad", "NOTSET", ("NOTSET", "VALID"))
    W, extent = of.constant(1), of.extent(of.constant(1).shape[2:])
    only(len(set(extent)) == 1, "square windows")
    stride, pads, added = of.same("strides"), of.around(extent), of.same("output_padding", (0, 0))
    layer = ConvTranspose(W.shape[1], extent[0], stride, pads, added, of.constant(2) is not None)
    made.append((layer, _with_zeros(of, extent[0])))


def _with_zeros(of, size, top=0, left=0):
    """Return W and b, with windows of size x size, zeros where dilations and pads leave pixels out."""
    W, b, gaps = of.constant(1), of.constant(2), of.get("dilations", (1, 1))
    only(size * size <= 64 * prod(W.shape[2:]), f"smaller windows than {size} x {size}, of which most would be zeros")
    square = np.zeros((*W.shape[:2], size, size), W.dtype)
    down, across = (slice(at, None, gap) for at, gap in zip((top, left), gaps, strict=True))
    square[:, :, down, across][:, :, : W.shape[2], : W.shape[3]] = W
    return {"W": square} | ({} if b is None else {"b": b})


def _pool(of, made, layer, mode):
    of.get("dilations", (1, 1), ((1, 1),))
    size, stride, pads = of.same("kernel_shape", (0, 0)), of.same("strides"), of.around(of.get("kernel_shape"))
    only(pads < size, "pads that are smaller than the window")
    over = of.get("ceil_mode", 0) and any((length + 2 * pads - size) % max(stride, 1) for length in of.shape[1:])
    only(not over, "no window that hangs over the edge, as ceil_mode 1 has here")
    made += [(Padding(pads, mode), {})] if pads else []
    made.append((layer(size, None if stride == size else stride), {}))
    return pads


@reads("MaxPool", "MaxPool, Padding", 6, "square windows; equal pads all around; ceil_mode 0; no dilations")
def _max_pool(of, made):
    of.get("storage_order", 0, (0,))
    _pool(of, made, MaxPool, "replicate")  # what stands at the edge, and not 0: a window has no larger one by it


@reads("AveragePool", "AvgPool, Padding", 5, "as MaxPool; pads that count")
def _avg_pool(of, made):
    counted = of.get("count_include_pad", 0, (0, 1))
    only(not _pool(of, made, AvgPool, "zero") or counted, "pads that count in the mean")


@reads("ReduceMean", "GlobalAvgPool", 0, "over height and width, which are gone then")
def _mean(of, made):
    of.get("keepdims", 1), of.get("noop_with_empty_axes", 0, (0,))
    axes = of.constant(1, np.array(of.get("axes", ())))
    only(len(of.shape) == 3 and sorted(axes.reshape(-1) % 4) == [2, 3], "means over height and width")
    made.append((GlobalAvgPool(), {}))


@reads("BatchNormalization", "BatchNorm", 2, "not while it trains")
def _batch_norm(of, made):
    of.get("training_mode", 0, (0,)), of.get("spatial", 1, (1,))
    momentum = decimal(1 - decimal(of.get("momentum", 0.9)))
    only((of.constant(4) >= 0).all(), "no variance below 0")
    layer = BatchNorm(momentum if 0 <= momentum < 1 else 0.1, decimal(of.get("epsilon", 1e-5)))
    made.append((layer, {name: of.constant(i) for i, name in enumerate(("gamma", "beta", "mean", "variance"), 1)}))


@reads("InstanceNormalization", "InstanceNorm", 2)
def _instance_norm(of, made):
    gamma, beta = of.constant(1), of.constant(2)
    affine = bool((gamma != 1).any() or beta.any())
    layer = InstanceNorm(decimal(of.get("epsilon", 1e-5)), affine)
    made.append((layer, {"gamma": gamma, "beta": beta} if affine else {}))


@reads("Clip", "Clip", 3, "bounds that are constant")
def _clip(of, made):
    most = float(np.finfo(np.float32).max)
    bounds = [of.constant(i, np.array(of.get(name, bound))) for i, name, bound in ((1, "min", -most), (2, "max", most))]
    made.append((Clip(*(decimal(min(max(bound.item(), -most), most)) for bound in bounds)), {}))


@reads("Flatten", "Flatten", 3, "axis 1")
def _flatten(of, made):
    of.get("axis", 1, (1,))
    if len(of.shape) > 1:
        made.append((Flatten(), {}))


@reads("Reshape", "Flatten", 1, "of examples to rows, or to what they are")
def _reshape(of, made):
    target = [int(size) for size in of.constant(1).reshape(-1)]
    batch, *sizes = [0 if i == 0 and size == of.batch else size for i, size in enumerate(target)] or [1]
    rows, same = sizes in ([prod(of.shape)], [-1]), tuple(sizes) == of.shape
    zeros = of.get("allowzero", 0) and 0 in target  # which then stand for themselves
    only((rows or same) and batch in (-1, 0) and target.count(-1) < 2 and not zeros, "rows of examples as a result")
    if rows and len(of.shape) > 1:
        made.append((Flatten(), {}))


@reads("Resize", "Upsample", 1, "by one whole number; nearest, or linear between the centres of pixels")
def _resize(of, made):
    of.get("antialias", 0, (0,)), of.get("exclude_outside", 0, (0,))
    of.get("keep_aspect_ratio_policy", "stretch", ("stretch",)), of.get("cubic_coeff_a"), of.get("extrapolation_value")
    scales, sizes = of.constant(2, np.ones(0)), of.constant(3)
    if sizes is not None and sizes.shape == (4,) and len(of.shape) == 3:
        own = np.array([max(sizes[0], 1), *of.shape])
        scales = np.where(sizes > 0, sizes, [*own[:2], 0, 0]) / own  # below 1 is what Shape says of batch and channels
    whole = scales.shape == (4,) and scales[0] == scales[1] == 1 and scales[2] == scales[3] >= 1 and not scales[2] % 1
    only(whole and of.version > 10, "one whole number as the scale of images, as Upsample does")
    mode, centre = of.get("mode", "nearest"), of.get("coordinate_transformation_mode", "half_pixel")
    near = centre, of.get("nearest_mode", "round_prefer_floor")
    known = ("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")
    linear = mode == "linear" and centre in ("half_pixel", "pytorch_half_pixel")
    only(linear or (mode == "nearest" and near in known), "Upsample's modes and coordinates")
    made.append((Upsample(int(scales[2]), "bilinear" if mode == "linear" else "nearest"), {}))


@reads("Pad", "Padding, Crop", 0, "images; as many pixels at each edge; zeros, edge or reflect; less by constant")
def _pad(of, made):
    pads, value = of.constant(1, np.array(of.get("pads", ()))), of.constant(2, np.array(of.get("value", 0.0)))
    mode = of.get("mode", "constant", ("constant", "edge", "reflect"))
    edges = pads.reshape(2, -1)
    even = edges.shape == (2, 4) and not edges[:, :2].any() and len(set(edges[:, 2:].flat)) == 1
    zeros = mode != "constant" or not value.any()
    only(even and zeros and of.constant(3) is None, "images with as many pads at each edge, zeros where constant")
    size = int(edges[0, 2])
    only(size >= 0 or mode == "constant", "fewer pixels at each edge where the mode is constant")
    if size:
        layer = Padding(size, {"constant": "zero", "edge": "replicate"}.get(mode, mode)) if size > 0 else Crop(-size)
        made.append((layer, {}))


def plain(name, becomes, cases, make, what="all"):
    """Put an operator into the table that becomes one layer without arrays."""
    reads(name, becomes, cases, what)(lambda of, made: made.append((make(of), {})))


def _softmax(of):
    only(of.version > 12 or len(of.shape) == 1, "a newer version of Softmax")
    of.get("axis", -1 if of.version > 12 else 1, (1,))
    return Softmax()


def _dropout(of):
    of.get("seed"), only(not of.constant(2, np.array(False)).any(), "no training_mode")
    return Dropout(decimal(of.constant(1, np.array(of.get("ratio", 0.5))).item()))


plain("Relu", "ReLU", 1, lambda of: ReLU())
plain("Sigmoid", "Sigmoid", 1, lambda of: Sigmoid())
plain("Tanh", "Tanh", 1, lambda of: Tanh())
plain("LeakyRelu", "LeakyReLU", 2, lambda of: LeakyReLU(decimal(of.get("alpha", 0.01))))
plain("Softmax", "Softmax", 3, _softmax, "axis 1")
plain("Dropout", "Dropout", 3, _dropout, "not while it trains")
plain("GlobalAveragePool", "GlobalAvgPool", 2, lambda of: GlobalAvgPool(), "height and width are gone then")
plain("DepthToSpace", "PixelShuffle", 1,
      lambda of: PixelShuffle(of.get("blocksize") if of.get("mode", "DCR", ("CRD",)) else 0), "mode CRD")  # fmt: skip
reads("Identity", "nothing", 1)(lambda of, made: None)
reads("Concat", "Concat", 4, "axis 1; all of them branches")(join)


def table():
    """Return the table as Markdown."""
    rows = [f"| {name} | {one.becomes} | {one.what} | {one.cases} |" for name, one in sorted(OPERATORS.items())]
    return "\n".join(["| operator | becomes | what is read | ONNX's cases |", "|---|---|---|---|", *rows])
