"""Convolutions with what follows them: Conv, and in either order MaxPool and ReLU, where there are any.

Images lie in NC/8HW8, products run on tensor cores: see `kernels.conv.blocked`. Between them goes one kernel there and
one back, see `kernels.cnn.between`. The first convolution of images of few channels is a kernel by itself; and where
the second one's input gradient is all that its filters' gradient needs, that is made in the same kernel.
"""

from typing import Any

from mlpkit.kernels.cnn import between
from mlpkit.kernels.conv import PASSES, Shape, blocked
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import ReLU

from .blocks import Value, stored

MOST = 2**31 - 2**20  # elements of an array: the kernels count in 32 bits


def match(layers, i, shape, n, mode):
    """Return how many layers from layers[i] on are one block, and the block; None where there is none. See `blocks`."""
    if type(layers[i].layer) is not Conv:
        return None
    conv = shape_of(layers[i].layer, shape, n)
    if conv is None:
        return None
    pool, relu, count = followers(layers, i + 1, conv.y[2:], between.MOST_POOL)
    conv = blocked.cropped(conv, pool)
    about = between.Pooled(n, conv.channels_out, conv.out_height, conv.out_width, pool, relu)
    if not layers[i].wants_dx and between.why_not_first(conv, about) is None:
        return 1 + count, FirstBlock(layers[i], conv, about, mode)
    if why_not(mode, conv, layers[i].wants_dx):
        return None
    return 1 + count, ConvBlock(layers[i], conv, about, mode)


def followers(layers, i, sizes, most):
    """Return the edge of the pool from layers[i] on (1: none), whether there is a ReLU, and how many layers these are.

    sizes: of the images before them. most: the largest edge.
    """
    pool, relu, count = 1, False, 0
    for at in layers[i : i + 2]:
        if type(at.layer) is ReLU and not relu:
            relu = True
        elif type(at.layer) is MaxPool and pool == 1 and _fits(at.layer, min(most, *sizes)):
            pool = at.layer.size
        else:
            break
        count += 1
    return pool, relu, count


def _fits(layer, most):
    """Return whether a pool's windows lie side by side, and are neither trivial nor too large."""
    return layer.stride in (None, layer.size) and 1 < layer.size <= most


def shape_of(layer, shape, n):
    """Return the `Shape` of a Conv layer's convolution, or None."""
    channels, height, width = shape
    try:
        return Shape(n, channels, layer.channels, height, width, layer.size, *layer.steps((n, *shape)))
    except ValueError:  # kernels, strides or paddings that the layout has no words for
        return None


def why_not(mode, conv, wants_dx):
    """Return why the channel-blocked kernels can't do a convolution, a sentence, or None."""
    passes = PASSES if wants_dx else [which for which in PASSES if which != "input_gradient"]
    for channels, *sizes in ((conv.channels, conv.height, conv.width), (conv.channels_out, *conv.y[2:])):
        if conv.batch * blocked.padded(channels) * sizes[0] * sizes[1] > MOST:
            return "these kernels count in 32 bits: take fewer images at a time."
    return next((reason for which in passes if (reason := blocked.why_not(mode, conv, which))), None)


class Following:
    """What both kinds of blocks have: what follows the convolution, and in which layout its result goes on."""

    gives = "nc8hw8"  # until the next block says what it wants

    def __init__(self, at, conv, about, mode):
        self.at, self.conv, self.about, self.mode, self.scales = at, conv, about, mode, {}

    @property
    def bias(self):
        return self.at.b if self.at.layer.bias else None

    @property
    def db(self):
        return self.at.db if self.at.layer.bias else None

    @property
    def scale(self):
        """The scale of the result in fp16, None where there are none."""
        return self.scale_of("y") if self.gives == "stored" else None

    def scale_of(self, name):
        """Return the scale of an array in fp16, which lasts from the first time that it is asked for; or None."""
        if self.mode.fp16_parts and name not in self.scales:
            self.scales[name] = blocked.new_scale()
        return self.scales.get(name)


class FirstBlock(Following):
    """The first convolution, of few channels. See `blocks`."""

    wants = "nchw"

    def __init__(self, at, conv, about, mode):
        super().__init__(at, conv, about, mode)
        self.counters = between.first_counters(conv, about)

    def forward(self, x):
        self.x, about = x.array, self.about
        y, self.kept = between.first_forward(
            self.mode, self.conv, about, x.array, self.at.W, self.gives, self.bias, self.scale, largest=x.largest
        )
        return Value(y, self.gives, about.channels)

    def taken(self):
        """Return x and what was kept: the next block does what `backward` would do."""
        x, kept, self.x, self.kept = self.x, self.kept, None, None
        return x, kept

    def backward(self, dy):
        x, kept = self.taken()
        into = self.at.dW, self.db, self.counters
        between.first_weights(self.mode, self.conv, self.about, x, dy.array, dy.layout, kept, *into)


class ConvBlock(Following):
    """A convolution in NC/8HW8. See `blocks`."""

    wants = "stored"

    def __init__(self, at, conv, about, mode):
        super().__init__(at, conv, about, mode)
        self.plain = not (about.keeps or at.layer.bias)
        self.filters: Any = None  # `blocked.Filters`, once it is known where the result goes
        self.first: FirstBlock | None = None  # the block before, where the gradient of its filters is made here

    def follow(self, before):
        """Return whether the block `before` is a first convolution whose gradient this one's kernels can make."""
        if isinstance(before, FirstBlock):
            found = blocked.cropped(self.conv, behind=between.behind(before.conv, before.about))
            if between.why_not_first_sums(self.mode, found, before.conv, before.about) is None:
                self.first, self.conv = before, found
        return self.first is not None

    @property
    def finishes(self):
        return blocked.updates(self.mode)

    def settle(self):
        """Choose the kernel that does what follows, the convolution's own, if it can; return what makes its filters."""
        behind = getattr(self.conv, "behind", 0)
        followed = blocked.cropped(self.conv, self.about.pool, followed=True, behind=behind)
        (conv, _, _), *_ = blocked.convolutions(followed, "forward")
        self.at_once = (
            not self.plain and between.follows(self.mode, self.gives) and blocked.tilings(conv, self.mode) != []
        )
        self.conv = followed if self.at_once else self.conv
        passes = blocked.PASSES_OF_FILTERS[: 1 + self.at.wants_dx]
        self.filters = blocked.Filters(self.mode, [(self.conv, self.at.W, passes)])
        return self.filters

    def prepare(self, beside=None):
        (self.filters or self.settle()).begin()

    def forward(self, x):
        self.x = stored(x, self.mode, self.conv.x, self.scale_of("x"))
        (self.made,) = self.filters.take()
        y, self.kept = self.convolved(self.made.pop("forward"))
        return Value(y, self.gives, self.about.channels)

    def convolved(self, filters):
        """Return the result, and what is kept of it."""
        if self.at_once:
            return between.convolve(self.mode, self.conv, self.about, self.x, filters, self.gives, self.bias)
        z = blocked.empty_blocked(self.mode, *self.conv.y)
        blocked.convolve(self.mode, self.conv, "forward", self.x, filters, z)
        if self.plain and self.gives == "nc8hw8":
            return z, None
        return between.forward(self.mode, self.about, z, "nc8hw8", self.gives, self.bias, self.scale)

    def of_first(self, first, dz):
        """Return what the gradients of the first convolution are made of; see `blocked.weight_gradient`."""
        filters = self.made.pop("input_gradient")
        of = first.conv, first.about
        sums = between.first_sums(self.mode, self.conv, dz, filters, of, *first.taken())
        return sums, first.at.dW, first.db

    def backward(self, dy, update=None):
        x, kept, self.x, self.kept = self.x, self.kept, None, None
        layout = "nc8hw8" if dy.layout == "stored" else dy.layout
        if self.plain and layout == "nc8hw8" and not self.mode.fp16_parts:
            dz, sums = blocked.Stored(dy.array), None
        else:
            of = self.mode, self.about, dy.array, layout
            dz, sums = between.backward(*of, kept, self.at.layer.bias, self.scale_of("dz"), dy.largest)
            del of
        del kept, dy
        before = self.of_first(self.first, dz) if self.first else None
        blocked.weight_gradient(self.mode, self.conv, x, dz, self.at.dW, sums, self.db, before, update=update)
        del x, sums, before
        if self.first or not self.at.wants_dx:
            return None
        dx = blocked.empty_blocked(self.mode, *self.conv.x)
        blocked.convolve(self.mode, self.conv, "input_gradient", dz, self.made.pop("input_gradient"), dx)
        return Value(dx, "nc8hw8", self.conv.channels)
