"""A model as blocks: runs of layers that are computed together, each with a way forward and a way back.

A block takes over some layers that follow each other, and has

    forward(x: Value) -> Value           keeps what its backward needs, and no more
    backward(dy: Value) -> Value | None  writes the layers' gradients; drops what was kept, as soon as it is used
    wants: "nchw", "nc8hw8" or None      the layout in which x must come; None takes any. "stored": it takes any, but
                                         best what its products read, see `Value`
    prepare(beside)                      optional: asks for what depends on parameters alone, before each forward, maybe
                                         on another stream, which forward waits for. beside: a `plan.Branch`, which may
                                         be asked for what nobody needs before the parameters' update, or None
    comes_back                           optional: False where its backward is not called, as nothing up to it learns
    follow(before)                       optional: it is told once, before the first forward, which block is before it,
                                         and returns whether it does that block's backward, too; its own returns None
                                         then
    asks_beside                          optional: True where its backward asks a `plan.Branch` for a part of its work
    finishes                             optional: whether its last kernel on the way back can do the update of all
                                         parameters, too: where its backward is the last one, that is called with this
                                         `kernels.cnn.updates.Update`, or None, as a second argument
    gives                                optional: the layout that the next block wants; it is set once, before the
                                         first forward, and a block that can, writes its result so

`dy` comes in the layout in which `forward` gave its result, but as "nc8hw8" where that is "stored"; what is returned is
"nchw" or "nc8hw8". It is None where the first of the layers has no `wants_dx`. A block makes what it writes with
`cupy.empty` whenever it is called: where that lies is planned, see `arena`. What lasts from step to step (scales, maps
by address) is made in its constructor, or kept by address. Parameters are read from the layers as they are now
(`at.W`), gradients are written (`at.dW`). All goes to the current stream, nothing waits, and the same calls follow each
other in every step: a step is recorded as a graph.

A module of blocks has a function

    match(layers, i, shape, n, mode) -> None, or (number of layers that it takes over, block)

layers: of the network or of a layer's branch, the block would begin with layers[i]. shape: of an example there, such
as (64, 26, 26). n: the batch size; there are other blocks for another one. mode: one of `MODES`, the precision class.
"""

from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

from mlpkit.kernels.cnn import between
from mlpkit.kernels.conv import blocked, variants
from mlpkit.nn.residual import Branched

MODES = variants.HOPPER  # the modes of `blocked` by precision class; on other GPUs others: see `matches`


class Value(NamedTuple):
    """What goes from block to block: activations, or their gradients, of a batch.

    layout: "nchw" is what layers know: float32 (n, channels, height, width), or rows (n, channels). "nc8hw8" is
    `blocked.images_as_blocked`: float32 (n, c / 4, height, width, 4), for bf16 uint16 (n, c / 8, height, width, 8); c
    is `channels` rounded up to a multiple of 8, and what was added is zero, in gradients too. "stored": the array is a
    `blocked.Stored`, as products read them, of float32 as fp16 parts; only who `gives` it may make it. largest: the
    bits of its largest magnitude, an array of one uint32, where somebody knows it.
    """

    array: Any
    layout: str
    channels: int
    largest: Any = None


def as_layout(value, layout, mode):
    """Return a value in the layout that is wanted; as it is, where any will do."""
    if layout in (None, "stored", value.layout):
        return value
    height, width = value.array.shape[2:4]
    size = len(value.array), value.channels, height, width
    return Value(between.convert(mode, size, value.array, value.layout, layout), layout, value.channels)


def stored(value, mode, size, scale):
    """Return activations of a size (n, c, h, w) as products read them; see `between.convert`."""
    if value.layout == "stored":
        return value.array
    if value.layout == "nc8hw8" and not mode.fp16_parts:
        return blocked.Stored(value.array)
    return between.convert(mode, size, value.array, value.layout, "stored", scale)


class LayerBlock:
    """One layer, of whatever kind, by the engine's operations. `shape`: of its input."""

    wants = "nchw"

    def __init__(self, at, shape):
        self.at = at
        self.comes_back = at.wants_dx or bool(at.layer.parameters(shape))  # else no parameters lie before its end

    def forward(self, x):
        y = self.at.layer.forward(self.at, x.array)
        if not self.comes_back:
            self.at.drop()
        return _as_value(y)

    def backward(self, dy):
        dx = self.at.layer.backward(self.at, dy.array)
        self.at.drop()
        return _as_value(dx) if self.at.wants_dx else None


class BranchesBlock:
    """A layer made of chains of layers: each is a `Pipeline` of blocks, and what they make is put together."""

    wants = "nchw"

    def __init__(self, at, pipelines):
        self.at, self.pipelines, self.shapes = at, pipelines, []
        self.comes_back = at.wants_dx or any(each.comes_back for each in pipelines)

    @property
    def asks_beside(self):
        return any(each.asks_beside for each in self.pipelines)

    def prepare(self, beside=None):
        for each in self.pipelines:
            each.prepare(beside)

    def forward(self, x):
        outputs = [each.forward(x).array for each in self.pipelines]
        self.shapes = [output.shape for output in outputs]
        return _as_value(self.at.layer.join(self.at.engine, outputs))

    def backward(self, dy):
        parts = zip(self.pipelines, self.at.layer.split(self.at.engine, dy.array, self.shapes), strict=True)
        dx = [each.backward(_as_value(part)) for each, part in parts if self.at.wants_dx or each.comes_back]
        if not self.at.wants_dx:
            return None
        return _as_value(reduce(self.at.engine.add, [one.array for one in dx]))


class Pipeline:
    """Blocks one after another: a block itself. What they want of each other's results is settled here."""

    wants = None

    def __init__(self, blocks, mode):
        self.blocks, self.mode = blocks, mode
        for block, wants in zip(blocks, [*(following.wants for following in blocks[1:]), "nchw"], strict=False):
            if hasattr(block, "gives"):
                block.gives = wants or "nc8hw8"
        taken = [hasattr(block, "follow") and block.follow(before) for before, block in pairwise(blocks)]
        comes_back = [getattr(block, "comes_back", True) for block in blocks]
        self.comes_back = any(comes_back)
        first = comes_back.index(True) if self.comes_back else 0
        self.last: Any = blocks[first + any(taken[first : first + 1])] if blocks else None  # on the way back

    def prepare(self, beside=None):
        for block in self.blocks:
            if hasattr(block, "prepare"):
                block.prepare(beside)

    def forward(self, x):
        self.layouts = [x.layout]
        for block in self.blocks:
            x = block.forward(as_layout(x, block.wants, self.mode))
            self.layouts.append(x.layout)
        return as_layout(x, "nchw", self.mode)

    @property
    def asks_beside(self):
        return any(getattr(block, "asks_beside", False) for block in self.blocks)

    @property
    def finishes(self):
        return getattr(self.last, "finishes", False) and not self.asks_beside  # or gradients may be still to come

    def backward(self, dy, update=None):
        came = [dy]  # a list: the block that takes the gradient from it drops it, as soon as it is used
        del dy
        for block in reversed(self.blocks):
            layout = self.layouts.pop()
            layout = "nc8hw8" if layout == "stored" else layout
            if update and block is self.last:  # each with arguments that nobody else has
                came.append(block.backward(as_layout(came.pop(), layout, self.mode), update))
            else:
                came.append(block.backward(as_layout(came.pop(), layout, self.mode)))
            if came[0] is None:
                return None
        return as_layout(came.pop(), self.layouts.pop(), self.mode)


def pipeline(layers, shape, n, mode, matches):
    """Return the blocks of layers that follow each other, as a `Pipeline`.

    shape: of the first one's input, an example's. matches: the functions `match` of modules, of which the first that
    knows a run of layers has it; what none of them knows is a block for each layer.
    """
    blocks, i = [], 0
    while i < len(layers):
        found = (match(layers, i, shape, n, mode) for match in matches)
        count, block = next(filter(None, found), None) or (1, _generic(layers[i], shape, n, mode, matches))
        for at in layers[i : i + count]:
            shape = at.layer.output(shape)
        blocks.append(block)
        i += count
    return Pipeline(blocks, mode)


def _generic(at, shape, n, mode, matches):
    if has_branches(at):
        return BranchesBlock(at, [pipeline(branch, shape, n, mode, matches) for branch in at.branches])
    return LayerBlock(at, shape)


def has_branches(at):
    """Return whether a layer is made of chains in the way that is known here: by `join` and `split`."""
    return isinstance(at.layer, Branched)


def _as_value(array):
    return Value(array, "nchw", array.shape[1])
