"""The table of ONNX's operators that are read, and of what of them: `reading` refuses by it, and the tests count by it.

An operator may be described by attributes in more ways than a layer is. What is in the table is read, and gives what
ONNX says; all else is refused. https://onnx.ai/onnx/operators describes them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .loading import Node


@dataclass(frozen=True)
class Setting:
    """A node where it stands. shape: of an example that goes in. constants: its inputs, None for what is none.

    batch: of the file, None where it is free. version: of the operators.
    """

    node: Node
    shape: tuple[int, ...]
    constants: tuple[Any, ...]
    batch: int | None
    version: int

    def get(self, name, default=None):
        """Return an attribute: texts as such, lists as tuples, an axis counted from 0."""
        value = self.node.attributes.get(name, default)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if name == "axis" and isinstance(value, int) and value < 0:
            value += 1 + len(self.shape)
        return tuple(value) if isinstance(value, list) else value

    def constant(self, number, default=None):
        """Return an input that is a constant, or the default where it is left out."""
        found = self.constants[number] if number < len(self.constants) else None
        return default if found is None else found

    def pads(self, extent):
        """Return rows above and below, then columns before and after, which windows of an extent (2,) are moved over."""
        kind, steps = self.get("auto_pad", "NOTSET"), self.get("strides", (1, 1))
        top, left, bottom, right = self.get("pads", (0, 0, 0, 0)) if kind == "NOTSET" else (0, 0, 0, 0)
        found = [(top, bottom), (left, right)]
        if kind.startswith("SAME"):  # as many windows as there are steps in the image
            for axis, (size, length, step) in enumerate(zip(extent, self.shape[1:], steps, strict=True)):
                total = max((-(-length // step) - 1) * step + size - length, 0)
                less, more = total // 2, total - total // 2
                found[axis] = (more, less) if kind == "SAME_LOWER" else (less, more)
        return tuple(found)

    def extent(self, sizes):
        """Return how many pixels a window of these sizes spans, with what its dilations leave out."""
        gaps = self.get("dilations", (1, 1))
        return tuple((size - 1) * gap + 1 for size, gap in zip(sizes, gaps, strict=True))

    def square(self):
        """Return (size, padding, rows above, columns before) of a square window with zeros in it that does the same.

        Padding by p where b pixels are asked for is made good by p - b zeros in the window. None where there is none.
        """
        extent = self.extent(self.constants[1].shape[2:])
        pads = self.pads(extent)
        most = max(max(pair) for pair in pads)
        sizes = {2 * most - sum(pair) + size for pair, size in zip(pads, extent, strict=True)}
        if min(min(pair) for pair in pads) < 0 or len(sizes) > 1:
            return None
        return sizes.pop(), most, most - pads[0][0], most - pads[1][0]


class Limit(NamedTuple):
    """What is read of an attribute, or of a node, in words and as a function."""

    words: str
    holds: Callable[[Any], bool]


def only(*values):
    return Limit(" or ".join(map(str, values)), lambda value: value in values)


ANY = Limit("any", lambda value: True)
SAME = Limit("equal ones", lambda value: len(set(value)) == 1)
NO_GAPS = Limit("1", lambda value: set(value) == {1})
NO_PADS = Limit("equal ones", lambda value: len(set(value)) == 1 and min(value) >= 0)
WINDOW = {"auto_pad": ANY, "dilations": ANY, "group": only(1), "kernel_shape": ANY, "pads": ANY, "strides": SAME}
POOL = {"auto_pad": ANY, "ceil_mode": only(0), "dilations": NO_GAPS, "kernel_shape": SAME, "pads": ANY, "strides": SAME}


def _even(of):
    """Whether all four pads are equal, and smaller than the window."""
    size = of.get("kernel_shape", (1, 1))
    return len(size) == 2 and len(pads := set(sum(of.pads(size), ()))) == 1 and 0 <= min(pads) < size[0]


def _flattens(of):
    """Whether a Reshape makes rows of examples, or nothing."""
    target, count = of.constant(1), int(np.prod(of.shape))
    batch, *sizes = (int(size) for size in target.reshape(-1)) if target is not None and target.size else (1,)
    same = len(sizes) == len(of.shape) and all(a in (b, -1, 0) for a, b in zip(sizes, of.shape, strict=True))
    free = batch in (-1, 0, of.batch) and (batch, *sizes).count(-1) < 2 and not (of.get("allowzero") and 0 in target)
    return (same or sizes in ([count], [-1])) and free


def _enlarges(of):
    """Whether a Resize makes each pixel a square, or goes straight from a pixel's centre to the next one's."""
    scales, sizes = of.constant(2), of.constant(3)
    if scales is None or not scales.size:
        scales = None if sizes is None or sizes.shape != (4,) else sizes / np.array([sizes[0], *of.shape])
    if scales is None or scales.shape != (4,) or set(scales[:2]) != {1} or scales[2] != scales[3] or scales[2] % 1:
        return False
    if of.version < 11:  # which has its scales elsewhere
        return False
    how = of.get("coordinate_transformation_mode", "half_pixel"), of.get("nearest_mode", "round_prefer_floor")
    if of.get("mode", "nearest") == "linear":
        return how[0] in ("half_pixel", "pytorch_half_pixel") and scales[2] >= 1
    near = ("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")
    return how in near and scales[2] >= 1


def _border(of):
    """Whether a Pad puts as many pixels at each edge of images, and zeros where it is to be a constant."""
    pads = of.constant(1, np.array(of.get("pads", ())))
    edges = {int(pads[i]) for i in (2, 3, 6, 7)} if pads.shape == (8,) and not pads[[0, 1, 4, 5]].any() else set()
    value = of.constant(2, np.float32(of.get("value", 0)))
    return len(edges) == 1 and min(edges) >= 0 and of.constant(3) is None and (of.get("mode") != "constant" or not value)


def _of_pixels(of):
    """Whether a ReduceMean is over height and width."""
    axes = of.constant(1, of.get("axes"))
    return axes is not None and len(of.shape) == 3 and sorted(int(axis) % 4 for axis in np.ravel(axes)) == [2, 3]


@dataclass(frozen=True)
class Operator:
    """layers: what it becomes. ranks: of what goes in, the batch counted. data: whether several inputs may be no constants."""

    layers: str
    attributes: dict[str, Limit] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    ranks: tuple[int, ...] = ()
    data: bool = False


def _scalar(value):
    return value is None or np.size(value) == 1


ROW = Limit("C is one row, or less", lambda of: of.constant(2) is None or of.constant(2).ndim < 2 or len(of.constant(2)) == 1)
MATRIX = Limit("a matrix of weights", lambda of: of.constant(1) is not None and of.constant(1).ndim == 2)
VECTORS = Limit("constants for the channels", lambda of: all(one is not None and one.ndim == 1 for one in of.constants[1:]))
SCALARS = Limit("bounds that are constant numbers", lambda of: all(map(_scalar, of.constants[1:])))
IDLE = Limit("not while it trains", lambda of: of.constant(2) is None or not of.constant(2).any())
SQUARE = Limit("windows that are square, with zeros in them where need be", lambda of: of.constant(1) is not None and of.square())
EVEN = Limit("as many pads at each edge, fewer than the window has pixels", _even)
COUNTED = Limit("pads are counted, or none", lambda of: of.get("count_include_pad", 0) or not of.pads((1, 1))[0][0])
UNCUT = Limit("a square window", lambda of: of.constant(1) is not None and len(set(of.extent(of.constant(1).shape[2:]))) == 1)
CRD = Limit("channels that belong together lie side by side", lambda of: of.get("mode", "DCR") == "CRD")
CHANNELS = Limit("along axis 1 alone", lambda of: len(of.shape) == 1 or (of.version > 12 and of.get("axis", -1) == 1))
VALUE = Limit("to a row of weights, right behind them, or of two equal shapes", lambda of: True)

IMAGES = (4,)
OPERATORS = {
    "Add": Operator("Residual; a bias", limits=(VALUE,), data=True),
    "AveragePool": Operator("AvgPool, Padding", {**POOL, "count_include_pad": only(0, 1)}, (EVEN, COUNTED), IMAGES),
    "BatchNormalization": Operator(
        "BatchNorm", {"epsilon": ANY, "momentum": ANY, "spatial": only(1), "training_mode": only(0)}, (VECTORS,), (2, 4)
    ),
    "Clip": Operator("Clip", {"min": ANY, "max": ANY}, (SCALARS,)),
    "Concat": Operator("Concat", {"axis": only(1)}, data=True),
    "Conv": Operator("Conv", WINDOW, (SQUARE,), IMAGES),
    "ConvTranspose": Operator(
        "ConvTranspose",
        {**WINDOW, "auto_pad": only("NOTSET", "VALID"), "pads": NO_PADS, "output_padding": SAME},
        (UNCUT,),
        IMAGES,
    ),
    "DepthToSpace": Operator("PixelShuffle", {"blocksize": ANY, "mode": only("CRD")}, (CRD,), IMAGES),
    "Dropout": Operator("Dropout", {"ratio": ANY, "seed": ANY}, (IDLE,)),
    "Flatten": Operator("Flatten", {"axis": only(1)}),
    "Gemm": Operator(
        "Linear", {"alpha": ANY, "beta": ANY, "transA": only(0), "transB": only(0, 1)}, (MATRIX, ROW), (2,)
    ),
    "GlobalAveragePool": Operator("GlobalAvgPool", ranks=IMAGES),
    "Identity": Operator("nothing"),
    "InstanceNormalization": Operator("InstanceNorm", {"epsilon": ANY}, (VECTORS,), IMAGES),
    "LeakyRelu": Operator("LeakyReLU", {"alpha": ANY}),
    "MatMul": Operator("Linear", {}, (MATRIX,), (2,)),
    "MaxPool": Operator("MaxPool, Padding", {**POOL, "storage_order": only(0)}, (EVEN,), IMAGES),
    "Pad": Operator(
        "Padding",
        {"mode": only("constant", "edge", "reflect"), "pads": ANY, "value": ANY},
        (Limit("as many constant pads at each edge", _border),),
        IMAGES,
    ),
    "ReduceMean": Operator(
        "GlobalAvgPool",
        {"axes": ANY, "keepdims": only(0, 1), "noop_with_empty_axes": only(0)},
        (Limit("over height and width", _of_pixels),),
        IMAGES,
    ),
    "Relu": Operator("ReLU"),
    "Reshape": Operator("Flatten", {"allowzero": ANY}, (Limit("to rows of examples", _flattens),)),
    "Resize": Operator(
        "Upsample",
        {
            **{"antialias": only(0), "coordinate_transformation_mode": ANY, "cubic_coeff_a": ANY},
            **{"exclude_outside": only(0), "extrapolation_value": ANY, "keep_aspect_ratio_policy": only("stretch")},
            **{"mode": only("nearest", "linear"), "nearest_mode": ANY},
        },
        (Limit("by one whole number, as Upsample does", _enlarges),),
        IMAGES,
    ),
    "Sigmoid": Operator("Sigmoid"),
    "Softmax": Operator("Softmax", {"axis": only(1)}, (CHANNELS,)),
    "Tanh": Operator("Tanh"),
}  # fmt: skip
HELP = {
    "Transpose": "export it with channels first",
    "GRU": "there are no layers for sequences",
    "LSTM": "there are no layers for sequences",
    "Erf": "take ReLU in place of GELU",
    "Gelu": "take ReLU in place of GELU",
    "Mul": "fold factors into the weights before it",
    "QuantizeLinear": "export the network before it was quantized",
}


def why_not(of):
    """Return why a node can't be read, as a piece of a sentence, or None."""
    operator = OPERATORS.get(of.node.operator)
    if operator is None:
        help = HELP.get(of.node.operator, "make the network of others, or cut it off there")
        return f"there is no layer for it; {help}"
    if operator.ranks and 1 + len(of.shape) not in operator.ranks:
        return f"it is read of arrays with {' or '.join(map(str, operator.ranks))} axes, and gets {1 + len(of.shape)}"
    for name in of.node.attributes:
        value, limit = of.get(name), operator.attributes.get(name)
        if limit is None or not limit.holds(value):
            return f"its {name} is {str(value)[:60]}, and {'none' if limit is None else limit.words} is read"
    for limit in operator.limits:
        if not limit.holds(of):
            return f"it is read with {limit.words}"
    return None


def table():
    """Return the table as Markdown: operator, layers, and what is read."""
    rows = ["| operator | becomes | attributes, and what is read of them |", "|---|---|---|"]
    for name, one in OPERATORS.items():
        said = [f"{key}: {limit.words}" for key, limit in one.attributes.items() if limit is not ANY]
        rows.append(f"| {name} | {one.layers} | {'; '.join([*said, *(limit.words for limit in one.limits)]) or 'all'} |")
    return "\n".join(rows)
