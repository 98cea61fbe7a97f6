"""A folded network's layers as blocks that only predict: nothing is kept for a way back.

`match` finds, as in `blocks`: a first convolution, convolutions in NC/8HW8, residuals made of them, and the linear
layers at the end. Every other layer is a block of its own, by the engine's operations.

A block has no `backward`. takes_pixels: whether it reads uint8 pixels as they are. into: where a block that has this
name writes its result, if somebody has put an array there.
"""

from dataclasses import replace

import numpy as np

from mlpkit.kernels import overlap
from mlpkit.kernels.cnn import between, first_bf16, pair, predictions
from mlpkit.kernels.conv import blocked
from mlpkit.nn.fold import fold
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.residual import Residual

from . import conv_blocks
from .blocks import LayerBlock, Value, has_branches, stored

FEW = 16  # images, at most, whose kernels leave room for the next one's


def layers_of(network):
    """Return the bound layers of a folded copy of a network, which only predict."""
    folded = fold(network)
    return _without_gradients([at.copied(replace(folded.mode, training=False)) for at in folded.layers])


def _without_gradients(layers):
    """Return bound layers once nobody asks them for a gradient, and they have no memory for any."""
    for at in layers:
        gradients = {name for name in at.lasting if name[:1] == "d" and name[1:] in at.lasting}
        for name in gradients:
            delattr(at, name)
        at.learns_before, at.lasting = False, at.lasting - gradients
        for branch in at.branches:
            _without_gradients(branch)
    return layers


def match(layers, i, shape, n, mode):
    """Return how many layers from layers[i] on are one block, and the block. See `blocks`."""
    of = layers, i, shape, n, mode
    return _pair(*of) or _conv(*of) or _residual(*of) or _end(*of) or layer(*of)


def layer(layers, i, shape, n, mode):
    """Return 1 and the block of one layer, by the engine's operations; None for one made of chains of layers."""
    if has_branches(layers[i]):
        return None
    block = LayerBlock(layers[i], shape)
    block.comes_back = False  # it keeps nothing
    return 1, block


class Pooled(between.Pooled):
    """What follows a convolution, where nobody will ask which elements came through."""

    def empty_kept(self):
        return None


def _conv(layers, i, shape, n, mode):
    found = conv_blocks.match(layers, i, shape, n, mode)
    if found is None:
        return None
    count, block = found
    kind = FirstConvolution if isinstance(block, conv_blocks.FirstBlock) else Convolution
    return count, kind(block.at, block.conv, Pooled(**vars(block.about)), mode)


class Early(conv_blocks.Following):
    """Of convolutions: whether their kernels begin before the ones before them have ended; see `kernels.overlap`.

    Those of many images in fp16 do not: blocks that wait hold places which the ones before them still want. On an
    H100 the residual network's output of one image takes 39.1 us in TF32 instead of 45.1, that to 1,024 would take 675
    instead of 630.
    """

    @property
    def overlaps(self):
        return overlap.is_possible() and (self.about.images <= FEW or not self.mode.fp16_parts)


class FirstConvolution(Early, conv_blocks.FirstBlock):
    """The first convolution, of few channels. See `blocks`."""

    takes_pixels = True
    by_type: dict | None = None  # of pixels: the kernel in bfloat16

    def forward(self, x):
        if self.mode.stored == 8 and self.gives != "nchw" and first_bf16.why_not(self.conv, self.about) is None:
            y = self.in_bf16(x.array)
            return Value(blocked.Stored(y) if self.gives == "stored" else y, self.gives, self.about.channels)
        of = self.mode, self.conv, self.about, x.array, self.at.W, self.gives, self.bias, self.scale, self.overlaps
        return Value(between.first_forward(*of)[0], self.gives, self.about.channels)

    def in_bf16(self, x):
        self.by_type = self.by_type or {}
        if x.dtype not in self.by_type:
            of = self.conv, self.about, self.at.W, self.bias, x.dtype == np.uint8, self.overlaps
            self.by_type[x.dtype] = first_bf16.First(*of)
        return self.by_type[x.dtype](x)


class Convolution(Early, conv_blocks.ConvBlock):
    """A convolution in NC/8HW8, and what follows it. See `blocks`."""

    made: dict | None = None  # its filters, once it is known where the result goes

    def follow(self, before):
        """Do nothing: it has no gradient to make for the block before."""

    def forward(self, x, added=None):
        images = stored(x, self.mode, self.conv.x, self.scale_of("x"))
        if self.made is None:
            self.plain = self.plain and added is None
            (self.made,) = self.settle()()
        return Value(self.result(images, self.made["forward"], added), self.gives, self.about.channels)

    def result(self, images, filters, added):
        about, to = self.about, self.gives
        if self.at_once:
            of = self.mode, self.conv, about, images, filters, to, self.bias, added
            return between.convolve(*of, overlaps=overlap.is_possible())[0]
        z = blocked.empty_blocked(self.mode, *self.conv.y)
        blocked.convolve(self.mode, self.conv, "forward", images, filters, z, overlaps=self.overlaps)
        if self.plain and (to == "nc8hw8" or (to == "stored" and not self.mode.fp16_parts)):
            return blocked.Stored(z) if to == "stored" else z
        of = self.mode, about, z, "nc8hw8", to, self.bias, self.scale, added
        return between.forward(*of, overlaps=self.overlaps)[0]


def _pair(layers, i, shape, n, mode):
    if mode.stored != 8 or mode.products:  # its kernel multiplies as `blocked` does
        return None
    first = _conv(layers, i, shape, n, mode)
    if not first or not isinstance(first[1], FirstConvolution) or first[0] == len(layers) - i:
        return None
    for at in layers[i : i + first[0]]:
        shape = at.layer.output(shape)
    second = _conv(layers, i + first[0], shape, n, mode)
    if not second or not isinstance(second[1], Convolution):
        return None
    if pair.why_not(*((block.conv, block.about) for _, block in (first, second))):
        return None
    return first[0] + second[0], PairOfConvolutions(first[1], second[1])


class PairOfConvolutions:
    """The first two convolutions, in bfloat16. See `blocks`."""

    wants = "nchw"
    gives = "nc8hw8"  # until the next block says what it wants
    takes_pixels = True

    def __init__(self, first, second):
        self.layers = [pair.Layer(block.conv, block.about, block.at.W, block.bias) for block in (first, second)]
        self.channels, self.by_type = second.about.channels, {}  # by the type of pixels the kernel

    def forward(self, x):
        dtype, (first, second) = x.array.dtype, self.layers
        if dtype not in self.by_type:
            self.by_type[dtype] = pair.Pair(first, second, dtype == np.uint8, overlaps=True)
        y = self.by_type[dtype](x.array)
        as_stored = self.gives == "stored"
        return Value(blocked.Stored(y) if as_stored else y, "stored" if as_stored else "nc8hw8", self.channels)


def _residual(layers, i, shape, n, mode):
    if type(layers[i].layer) is not Residual or layers[i].layer.shortcut:
        return None
    inside, j, blocks = layers[i].branches[0], 0, []
    inner = shape
    while j < len(inside):
        found = _conv(inside, j, inner, n, mode)
        if found is None or not isinstance(found[1], Convolution):
            return None
        blocks.append(found[1])
        for at in inside[j : j + found[0]]:
            inner = at.layer.output(inner)
        j += found[0]
    last = blocks[-1].about
    if last.relu or last.pool > 1:  # before the sum
        return None
    pool, relu, count = conv_blocks.followers(layers, i + 1, shape[1:], between.MOST_POOL)
    if shape[1] % pool or shape[2] % pool:  # what is added is no image without its last rows
        pool, relu = 1, type(layers[i + 1].layer) is ReLU
        count = int(relu)
    blocks[-1].about = replace(last, pool=pool, relu=relu)
    return 1 + count, Sum(blocks)


class Sum:
    """The sum of what comes in and of what convolutions make of it, and what follows: the last of them adds."""

    wants = "stored"

    def __init__(self, blocks):
        self.blocks = blocks
        for block in blocks[:-1]:
            block.gives = "stored"

    @property
    def gives(self):
        return self.blocks[-1].gives

    @gives.setter
    def gives(self, layout):
        self.blocks[-1].gives = layout

    def forward(self, x):
        first = self.blocks[0]
        added = stored(x, first.mode, first.conv.x, first.scale_of("x"))
        y = Value(added, "stored", x.channels)
        for block in self.blocks[:-1]:
            y = block.forward(y)
        return self.blocks[-1].forward(y, added)


def _end(layers, i, shape, n, mode):
    first = i + (type(layers[i].layer) is Flatten)
    linear = layers[first::2]
    if [type(at.layer) for at in layers[first:]] != [Linear, ReLU] * (len(linear) - 1) + [Linear]:
        return None
    sizes = [len(linear[0].W), *(at.W.shape[1] for at in linear)]
    if linear[0].W.dtype != np.float32 or predictions.why_not(sizes):
        return None
    precision = "float32" if mode.precision == "float32" else "tf32"
    as_blocked = mode.stored == 8 and first > i > 0 and len(shape) == 3
    return len(layers) - i, End(linear, n, "bf16" if as_blocked else precision, shape[0] if as_blocked else None)


class End:
    """The linear layers at the end. Rows of images are what they are flattened to. See `blocks`."""

    into = None

    def __init__(self, linear, n, precision, channels):
        self.wants = "nchw" if channels is None else "nc8hw8"
        self.end = predictions.End(n, [(at.W, at.b) for at in linear], precision, channels, overlap.is_possible())
        self.units = linear[-1].W.shape[1]

    def forward(self, x):
        out = self.into
        if out is None:
            import cupy

            out = cupy.empty((self.end.n, self.units), np.float32)
        self.end(x.array, out)
        return Value(out, "nchw", self.units)
