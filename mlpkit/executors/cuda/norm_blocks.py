"""Convolutions with batch normalization, as many as follow each other, and residuals made of them: one block.

A stage is a convolution, its normalization, and what follows before the next one: perhaps a sum with what went past a
residual, a ReLU, a max pool. Between the products of two convolutions there is one kernel there and one back: see
`kernels.cnn.norm`. So in a run of stages activations are never anything but what products read, and the sums of two
gradients at a residual are nobody's trip through memory. What a convolution has read is not even kept, where the way
back makes it again on its way: see `last_uses`. A first convolution of images of one channel is part of the kernels of
its normalization.
"""

from dataclasses import dataclass, replace
from typing import Any

from mlpkit.kernels.cnn import norm
from mlpkit.kernels.conv import Shape, blocked
from mlpkit.nn.conv import Conv
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual

from .blocks import Value, stored
from .conv_blocks import followers, shape_of, why_not


@dataclass(frozen=True)
class Stage:
    """A convolution and its normalization, both bound, and what is computed. shape: of the convolution, a `Shape`.

    adds: the number of the stage whose result is added, None where nothing is; INPUT for that of the whole block.
    """

    conv: Any
    norm: Any
    shape: Shape
    about: norm.Norm
    adds: int | None = None

    @property
    def output(self):
        return (self.about.channels, *self.about.out)


INPUT = -1


def match(layers, i, shape, n, mode):
    """Return how many layers from layers[i] on are one block, and the block; None where there is none. See `blocks`."""
    stages: list[Stage] = []
    j = i
    while j < len(layers):
        found = _residual(layers, j, shape, n, mode, len(stages)) or _plain(layers, j, shape, n, mode)
        if found is None:
            break
        count, more = found
        stages += more
        j, shape = j + count, more[-1].output
    if not stages:
        return None
    first = stages[0]
    if not layers[i].wants_dx and first.conv is layers[i] and _is_stem(first.shape):
        stages[0] = replace(first, about=replace(first.about, kernel=first.shape.kernel, padding=first.shape.padding))
    return j - i, NormBlock(stages, mode)


def _is_stem(shape):
    return shape.channels == 1 and shape.stride == 1 and shape.kernel <= norm.MOST_KERNEL


def _plain(layers, i, shape, n, mode):
    """Return how many layers are a stage from layers[i] on, and the stage in a list, or None."""
    if len(layers) < i + 2 or type(layers[i].layer) is not Conv or type(layers[i + 1].layer) is not BatchNorm:
        return None
    conv = shape_of(layers[i].layer, shape, n)
    if conv is None:
        return None
    if why_not(mode, conv, layers[i].wants_dx) and (layers[i].wants_dx or not _is_stem(conv)):
        return None
    layer = layers[i + 1].layer
    channels, height, width = conv.y[1:]
    pool, relu, count = followers(layers, i + 2, (height, width), norm.MOST_POOL)
    about = norm.Norm(mode, n, channels, height, width, relu, pool=pool, eps=layer.eps, momentum=layer.momentum)
    return 2 + count, [Stage(layers[i], layers[i + 1], conv, about)]


def _residual(layers, i, shape, n, mode, number):
    """Return how many layers are a residual from layers[i] on, and its stages, or None. number: of its first stage."""
    if type(layers[i].layer) is not Residual or layers[i].layer.shortcut:
        return None
    stages: list[Stage] = []
    inside, j = layers[i].branches[0], 0
    while j < len(inside):
        found = _plain(inside, j, stages[-1].output if stages else shape, n, mode)
        if found is None or found[1][0].about.pool > 1:
            return None
        j, stages = j + found[0], stages + found[1]
    if not stages or stages[-1].about.relu:  # a ReLU before the sum
        return None
    last = stages[-1]
    pool, relu, count = followers(layers, i + 1, (last.about.height, last.about.width), norm.MOST_POOL)
    stages[-1] = replace(last, about=replace(last.about, add=True, relu=relu, pool=pool), adds=number - 1)
    return 1 + count, stages


def last_uses(stages):
    """Return, for the result of each stage, the last stage that needs it on the way forward; None where it is kept.

    The gradient of the next convolution's filters needs it, too. But what was made of y alone, with no pool, is soon
    made again, by the kernel that has y at hand on the way back: so nobody keeps it.
    """
    found: list[int | None] = []
    for number, stage in enumerate(stages):
        users = [i for i, each in enumerate(stages) if number in (i - 1, each.adds)]
        found.append(max(users) if users and stage.adds is None and stage.about.pool == 1 else None)
    return found


class NormBlock:
    """A run of stages. See `blocks`."""

    gives = "nc8hw8"  # until the next block says what it wants
    asks_beside = True

    def __init__(self, stages, mode):
        self.stages, self.mode = stages, mode
        self.stem = stages[0].about.kernel > 0
        self.wants = "nchw" if self.stem else "stored"
        self.wants_dx = stages[0].conv.wants_dx
        self.scale_x = blocked.new_scale() if mode.fp16_parts else None
        self.scales = [(blocked.new_scale(), blocked.new_scale()) if mode.fp16_parts else (None, None) for _ in stages]
        self.meetings = [(norm.new_meeting(stage.about), norm.new_meeting(stage.about)) for stage in stages]
        self.moments = [None if stage.about.kernel else blocked.empty_moments(mode, stage.shape) for stage in stages]
        self.last_uses = last_uses(stages)
        wanted = [
            (stage.shape, stage.conv.W, blocked.PASSES_OF_FILTERS[: 1 + (number > 0 or self.wants_dx)])
            for number, stage in enumerate(stages)
            if not stage.about.kernel
        ]
        self.filters = blocked.Filters(mode, wanted)

    def channels(self, stage):
        """Return the vectors of a stage's normalization, as they are now."""
        at, conv = stage.norm, stage.conv
        bias = (conv.b, conv.db) if conv.layer.bias else ()
        return norm.Channels(at.gamma, at.beta, at.mean, at.variance, at.dgamma, at.dbeta, *bias)

    def prepare(self, beside=None):
        self.beside = beside
        self.filters.begin()

    def forward(self, x):
        self.made, size = [], self.stages[0].shape.x
        self.x, self.kept = [x.array if self.stem else stored(x, self.mode, size, self.scale_x)], []
        for number, stage in enumerate(self.stages):
            if number == self.stem:  # its filters have been on their way
                self.made = [{}] * self.stem + self.filters.take()
            y, kept = self.stage_forward(number, stage, self.gives if stage is self.stages[-1] else "stored")
            self.x.append(y)
            self.kept.append(kept)
            for result, last in enumerate(self.last_uses):
                if last == number:
                    self.x[result + 1] = None
        return Value(self.x.pop(), self.gives, stage.about.channels)

    def stage_forward(self, number, stage, out):
        """Return the result of a stage, in a layout, and what its normalization keeps."""
        ours = self.scales[number][0], self.meetings[number][0]
        added = None if stage.adds is None else self.x[stage.adds + 1]
        out, x = "operand" if out == "stored" else out, self.x[number]
        if stage.about.kernel:
            return norm.forward(stage.about, self.channels(stage), x, *ours, added, out, stage.conv.W)
        y, moments = blocked.empty_blocked(self.mode, *stage.shape.y), self.moments[number]
        of = self.mode, stage.shape, "forward", x
        blocked.convolve(*of, self.made[number].pop("forward"), y, moments=moments)
        return norm.forward(stage.about, self.channels(stage), y, *ours, added, out, moments=moments)

    def backward(self, dy):
        self.came = [dy]  # a list: who takes the gradient from it drops it, too
        self.late = []  # what asks for the sum of a gradient's slices
        self.waiting = []  # gradients of what a convolution gave, until there is again what it has read
        pasts: dict[int, norm.Past] = {}
        del dy
        for number in reversed(range(len(self.stages))):
            stage, past = self.stages[number], pasts.pop(number, None)
            goes_past = stage.adds is not None and (stage.adds != INPUT or self.wants_dx)
            keep = goes_past and (stage.adds == INPUT or past is not None)
            if goes_past and not keep:
                pasts[stage.adds] = self.past(stage, self.came[0], self.kept[number].marks)
            dense = self.stage_backward(number, stage, past, keep)
            if keep:
                pasts[stage.adds] = norm.Past(dense, None, relu=False, pool=1)
        if not self.came:
            return None
        dx, past = self.came.pop(), pasts.pop(INPUT, None)  # what goes past a residual at the block's beginning
        return dx._replace(array=norm.add(self.mode, dx.array, past.gradient)) if past else dx

    def past(self, stage, dy, marks):
        """Return what goes past a residual whose last stage's result has the gradient dy."""
        layout = "nchw" if dy.layout == "nchw" else "nc8hw8"
        return norm.Past(dy.array, marks, stage.about.relu, stage.about.pool, layout)

    def stage_backward(self, number, stage, past, keep):
        """Put the gradient of what a stage reads in the place of its result's; return that which passes it, or None."""
        about, kept, again = stage.about, self.kept[number], self.last_uses[number] is not None
        ours = self.scales[number][1], self.meetings[number][1]
        self.kept[number] = None
        dy, layout = self.came[0].array, "nchw" if self.came.pop().layout == "nchw" else "nc8hw8"
        dw = stage.conv.dW if about.kernel else None
        found = norm.backward(about, self.channels(stage), kept, dy, *ours, past, layout, keep, again, dw)
        del kept, dy, past
        if again:
            self.weight_gradient(number + 1, found.again, self.waiting.pop())
        dz, dense, _ = found
        del found
        if about.kernel:
            return None
        if self.x[number] is None:
            self.waiting.append(dz)
        else:
            self.weight_gradient(number, self.x[number], dz)
            self.x[number] = None
        if number > 0 or self.wants_dx:
            dx = blocked.empty_blocked(self.mode, *stage.shape.x)
            blocked.convolve(self.mode, stage.shape, "input_gradient", dz, self.made[number].pop("input_gradient"), dx)
            self.came.append(Value(dx, "nc8hw8", stage.shape.channels))
        return dense

    def weight_gradient(self, number, x, dz):
        """Ask for the gradient of a stage's filters, and beside it for the sum of the slices of the one before.

        Nobody needs that sum before the update, and the blocks of a gradient leave some multiprocessors to others.
        """
        stage, last = self.stages[number], number == self.stem
        while self.late:
            self.beside.ask(self.late.pop(), early=False)
        later = None if last or not self.beside else self.late.append
        blocked.weight_gradient(self.mode, stage.shape, x, dz, stage.conv.dW, later=later)
