"""A network for predictions as a list of operations: products with the ReLU and the pooling that follow them, and sums.

Between two operations lies one tensor: what is to be written down, and in which precision, is their matter alone.
"""

from dataclasses import dataclass, replace
from typing import Any

from .concat import Concat
from .conv import AvgPool, Conv, MaxPool
from .fold import fold
from .layers import Flatten, Linear, ReLU
from .per_image import GlobalAvgPool
from .residual import Residual

KNOWN = Conv, Linear, ReLU, MaxPool, Flatten, Residual
MEANS = AvgPool, GlobalAvgPool


@dataclass(frozen=True, eq=False)
class Operation:
    """What makes one tensor of another, or of two.

    inputs: the names of the tensors it reads: "input", or paths of layers as `Network.forward` knows them. name: of
    what it makes: the path of its last layer. shape, output: an example's, of the first input and of what is made. W
    and b: arrays of a Conv or a Linear, `layer`; None where inputs are added, or one is passed on, or a Concat is the
    layer. relu: whether ReLU follows, behind the pooling where there is one; pool: a MaxPool that follows, or None, or
    where one input is passed on one of MEANS. flat: the shape of an image that a Flatten has made `shape` of.
    """

    inputs: tuple[str, ...]
    name: str
    shape: tuple[int, ...]
    output: tuple[int, ...]
    layer: Any = None
    W: Any = None
    b: Any = None
    relu: bool = False
    pool: Any = None
    flat: tuple[int, ...] | None = None


def operations(network, integers=True):
    """Return a network's operations, a list in the order in which they can be done; its norms are folded.

    integers: whether they will be in integers. Else there may be MEANS, and the last layer may be a Concat, of images
    or, where its chains end with a Flatten, of rows: then it is the last operation. Raises ValueError for other layers
    than these and KNOWN.
    """
    folded, found = fold(network), list[Operation]()
    bound, shape, known = folded.layers, folded.model.input, KNOWN if integers else KNOWN + MEANS
    if integers or not bound or type(bound[-1].layer) is not Concat:
        _walk(bound, "input", shape, found, known)
        return found
    source, last = _walk(bound[:-1], "input", shape, found, known), bound[-1]
    shape = found[-1].output if found else shape
    ends = tuple(_walk(branch, source, shape, found, known, flatten=True) for branch in last.branches)
    return [*found, Operation(ends, last.name, shape, last.layer.output(shape), last.layer)]


def _walk(bound, source, shape, found, kinds, flatten=False):
    """Append the operations of a chain that reads the tensor `source`; return the name of what comes out.

    kinds: of layers that there may be. flatten: whether it may end with a Flatten, which is no operation.
    """
    flat, own = None, False  # own: whether the last operation is of this chain, so that nobody else reads its tensor
    for at in bound:
        layer, output = at.layer, at.layer.output(shape)
        if type(layer) not in kinds:
            known = ", ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"layer {at.name}, {layer!r}, is none of {known}, after batch norms are folded.")
        if type(layer) is Flatten:
            flat = shape if len(shape) > 1 else flat
        else:
            if type(layer) is Residual:
                ends = tuple(_walk(branch, source, shape, found, kinds) for branch in at.branches)
                found.append(Operation(ends, at.name, output, output))
            elif type(layer) in (Conv, Linear):
                b = at.b if "b" in at.lasting else None
                found.append(Operation((source,), at.name, shape, output, layer, at.W, b, flat=flat))
                flat = None
            elif own and (type(layer) is ReLU or (type(layer) is MaxPool and not found[-1].pool)):
                found.append(_followed(found.pop(), at))
            else:
                found.append(_followed(Operation((source,), at.name, shape, shape), at))
            source, own = at.name, True
        shape = output
    if flat and not flatten:
        raise ValueError("a Flatten stands right before a Linear layer, or a ReLU, in a network in integers.")
    return source


def _followed(operation, at):
    """Return an operation with the ReLU or the pooling that comes after it."""
    if type(at.layer) is ReLU:  # of a row, too, that is an image in memory
        return replace(operation, name=at.name, relu=True)
    return replace(operation, name=at.name, output=at.layer.output(operation.output), pool=at.layer)
