"""A network in integers: what a scale and a zero point are, where they come from, and what arithmetic is left.

A real number r is kept as an integer q, and `r = scale * (q - zero_point)`: Jacob and others (2018), "Quantization and
training of neural networks for efficient integer-arithmetic-only inference". Tensors between layers are affine, from 0
to 255. Weights are symmetric, from -127 to 127, with a scale for each output channel; and of two that are neighbours in
memory the sum is within 128, since AVX2 adds two products in 16 bits, and `255 * 128 = 32,640` is below 32,767. A layer
is a sum of integers, and a way back to 8 bits: a multiplication and a shift. `Quantized` does it with NumPy, and says
what is right, bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mlpkit.checks import check_batch, check_choice, check_count, check_finite

from .conv import Conv
from .fold import fold
from .fused import Operation, operations
from .layers import Flatten, Linear
from .network import check_is_network

MOST = 255  # of a tensor
MOST_PAIR = 127.5  # the sum of two weights before they are rounded, each by half at most: 128 then
PAIR = 128
ONE = np.float32(1)
LARGEST = 2**31 - 1  # sums have 32 bits
MOST_SHIFT = 48  # a product of 62 bits and a zero point so far to the left have 63
ROWS = 1000  # examples of a calibration whose activations are in memory at once
WINDOWS = 10_000  # of these that say which inputs come together
PIECE = 1024  # weights of a channel that make up for each other's rounding: a matrix of as many rows is inverted
DAMPING = 0.01  # of the mean square of an input, added to each: no weight makes up for much by what few windows say
LEAST = 0.1  # of the largest channel's factor


@dataclass(frozen=True)
class Quantization:
    """How the real numbers of a tensor are kept: `r = scale * (q - zero_point)`, q from 0 to 255.

    channels: float32 that broadcasts with an example, factors of the scale, at most 1: channels differ in their ranges.
    """

    scale: float
    zero_point: int = 0
    channels: Any = ONE

    def quantize(self, r):
        """Return r, of any shape, as uint8: to the nearest integer, and what is too large or too small cut off."""
        q = np.rint(r / self.channels * np.float32(1 / self.scale)) + self.zero_point
        return np.clip(q, 0, MOST).astype(np.uint8)

    def dequantize(self, q):
        """Return the real numbers, float32, that integers stand for."""
        return (q.astype(np.int32) - self.zero_point) * np.float32(self.scale) * self.channels


def affine(low, high):
    """Return the `Quantization` of numbers from low to high. Zero is among them, and exact: padding is made of it.

    Raises ValueError for bounds that are not finite, or not in their order.
    """
    if not np.isfinite([low, high]).all() or low > high:
        raise ValueError(f"a range of values has finite bounds, the lower one first, not {low} and {high}.")
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    scale = float(np.float32((high - low) / MOST))
    scale = scale if scale >= np.finfo(np.float32).tiny else 1.0  # below, 1 / scale is infinite: all are as good as 0
    return Quantization(scale, round(-low / scale))


def in_memory(W, flat=None):
    """Return weights as (channels, rows, values in a row), in the order in which a window lies in memory.

    W: (channels, channels in, size, size) of a Conv, or (units, inputs) of a Linear. Images lie channels last. flat:
    the shape of an image of which a Flatten has made the inputs.
    """
    if W.ndim == 2:
        W = W.reshape(len(W), *(flat or (W.shape[1], 1, 1)))
        return W.transpose(0, 2, 3, 1).reshape(len(W), 1, -1)
    return W.transpose(0, 2, 3, 1).reshape(len(W), W.shape[2], -1)


def symmetric(W, flat=None, bits=8):
    """Return weights as int8, and their scales, float64: one for each of axis 0. See `in_memory` for the arguments.

    bits: of 8 come integers from -127 to 127, of 3 from -3 to 3.
    """
    most = 2 ** (bits - 1) - 1
    rows = in_memory(W.astype(np.float64), flat)
    pairs = np.pad(rows, ((0, 0), (0, 0), (0, rows.shape[2] % 2))).reshape(len(W), -1, 2)
    sums = np.maximum(pairs.clip(min=0).sum(axis=2), -pairs.clip(max=0).sum(axis=2)).max(axis=1)  # of one sign
    scale = np.maximum(abs(pairs).max(axis=(1, 2)) / most, sums / MOST_PAIR)
    scale[scale == 0] = 1.0
    return np.rint(W / scale.reshape(-1, *[1] * (W.ndim - 1))).astype(np.int8), scale


def made_up_for(W, scale, windows, flat=None, bits=8):
    """Return weights as int8, rounded so that the sums over `windows` keep near to those of W, and not each weight.

    What one is off is made up for by those that come later and whose inputs are alike: Frantar and others (2023),
    "GPTQ". scale: of `symmetric`. windows: (n, values), in W's order. A pair's sum stays within 128.
    """
    order = in_memory(np.arange(W[0].size).reshape(1, *W.shape[1:]), flat)[0]
    second, order, most = np.arange(order.size) % order.shape[1] % 2 == 1, order.ravel(), 2 ** (bits - 1) - 1
    left = (W.reshape(len(W), -1) / scale[:, None])[:, order]
    windows = windows / (abs(windows).max() or 1)  # squares of all that is finite are, too
    for begin in range(0, len(order), PIECE):
        part = left[:, begin : begin + PIECE]
        seen = windows[:, order[begin : begin + PIECE]]
        moment = (seen.T @ seen / len(seen)).astype(np.float64)
        moment += (DAMPING * np.trace(moment) / len(moment) or 1.0) * np.eye(len(moment))
        to_later = np.linalg.cholesky(np.linalg.inv(moment)).T
        for j in range(len(moment)):
            q = np.rint(part[:, j]).clip(-most, most)
            before = part[:, j - 1] if second[begin + j] else np.zeros(len(W))
            q = q.clip(-PAIR - before.clip(max=0), PAIR - before.clip(min=0))
            part[:, j + 1 :] -= np.outer((part[:, j] - q) / to_later[j, j], to_later[j, j + 1 :])
            part[:, j] = q
    found = np.empty_like(left)
    found[:, order] = left
    return found.astype(np.int8).reshape(W.shape)


def min_max(values):
    """Return the smallest and the largest value: nothing is cut off, and one outlier makes every step coarse."""
    return values.min(), values.max()


def percentile(values, percent=99.99):
    """Return bounds that cut off so few values that `percent` of them are within."""
    return np.percentile(values, 100 - percent), np.percentile(values, percent)


def mean_squared_error(values, tried=60):
    """Return those bounds, of so many tried, with which the values come back with the least mean squared error.

    What is tried are the smallest and the largest value, and the same parts of both, down to a quarter.
    """
    values = np.ravel(values)
    values = values[:: 1 + len(values) // 200_000]
    bounds = [(part * values.min(), part * values.max()) for part in np.linspace(1, 0.25, tried)]
    return min(bounds, key=lambda each: float(np.square(values - _there_and_back(affine(*each), values)).mean()))


def _there_and_back(quantization, values):
    return quantization.dequantize(quantization.quantize(values))


CALIBRATIONS: dict[str, Callable] = {
    "min-max": min_max, "percentile": percentile, "mean squared error": mean_squared_error,
}  # fmt: skip


def fixed_point(factors):
    """Return positive factors as (multipliers, shift): int32 of at most 31 bits, `factor = multiplier / 2**shift`."""
    factors = np.asarray(factors, np.float64)
    shift = int(np.clip(30 - np.floor(np.log2(factors.max())), 1, MOST_SHIFT))
    return np.minimum(np.rint(np.ldexp(factors, shift)), LARGEST).astype(np.int32), shift


def requantize(total, multiplier, shift, zero_point=0, low=0):
    """Return `total * multiplier / 2**shift + zero_point`, within low to 255, as uint8: halves are rounded up."""
    product = total.astype(np.int64) * multiplier + (1 << (shift - 1))
    return np.clip((product >> shift) + zero_point, low, MOST).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class IntegerOperation:
    """An `Operation` in integers. of: that one. x: of what it reads. y: of what it makes, None where that is float32.

    W: int8, (channels, channels in, size, size) or (units, inputs). bias: int32, -(zero point * weights) in it. scale:
    of a sum's unit, a channel. multiplier, shift: to y's units; where two are added, a multiplier for each.
    """

    of: Operation
    x: tuple[Quantization, ...]
    y: Any  # Quantization, or None
    W: Any = None
    bias: Any = None
    scale: Any = None
    multiplier: Any = None
    shift: int = 1

    @property
    def low(self):
        """The least integer that comes out."""
        return self.y.zero_point if self.y and self.of.relu else 0

    def __call__(self, *inputs):
        """Return the output of integers (n, *shape), computed with NumPy: uint8, or float32 where `y` is None."""
        if self.W is None:
            moved = [(each.astype(np.int64) - x.zero_point) for each, x in zip(inputs, self.x, strict=True)]
            total = sum(each * int(m) for each, m in zip(moved, self.multiplier, strict=True))
            return self._pooled(requantize(total, 1, self.shift, self.y.zero_point, self.low))
        (x,) = inputs
        total = self._sums(x.reshape(len(x), *self.of.shape))
        column = (-1, *[1] * (total.ndim - 2))
        if self.y is None:
            return total.astype(np.float32) * self.scale.astype(np.float32).reshape(column)
        multiplier = self.multiplier.reshape(column)
        return self._pooled(requantize(total, multiplier, self.shift, self.y.zero_point, self.low))

    def _sums(self, x):
        """Return the sums of products, int32. They are float64's: BLAS is fast, and exact below 2^53."""
        W = self.W.reshape(len(self.W), -1).astype(np.float64)
        total = _windows(self.of, x, self.x[0].zero_point).astype(np.float64) @ W.T + self.bias
        return np.moveaxis(total, -1, 1).astype(np.int32)

    def _pooled(self, y):
        if self.of.pool is None:
            return y
        size, stride = self.of.pool.size, self.of.pool.stride or self.of.pool.size
        return sliding_window_view(y, (size, size), axis=(2, 3))[:, :, ::stride, ::stride].max(axis=(4, 5))


def _windows(of, x, zero=0):
    """Return what an operation's weights meet in x (n, *shape): (n, rows, columns, values), or (n, values)."""
    if x.ndim == 2:
        return x
    p, s, size = of.layer.padding, of.layer.stride, of.layer.size
    x = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)), constant_values=zero)
    x = sliding_window_view(x, (size, size), axis=(2, 3))[:, :, ::s, ::s].transpose(0, 2, 3, 1, 4, 5)
    return x.reshape(*x.shape[:3], -1)


@dataclass(frozen=True, eq=False)
class Quantized:
    """A network in integers. tensors: the `Quantization` of each tensor by name, "input" among them."""

    input: tuple[int, ...]
    tensors: dict[str, Quantization]
    operations: tuple[IntegerOperation, ...]

    def __call__(self, x, keep=False):
        """Return the outputs (n, *output), float32, of x (n, *input), float32 or uint8 pixels.

        keep: return all tensors, integers as they are, in a dict by name.
        """
        check_batch(x, self.input, np.dtype(np.float32))
        x = x.reshape(len(x), *self.input)
        found = {"input": self.pixels()[x] if x.dtype == np.uint8 else self.tensors["input"].quantize(x)}
        for each in self.operations:
            found[each.of.name] = each(*(found[name] for name in each.of.inputs))
        return found if keep else found[self.operations[-1].of.name]

    def pixels(self):
        """Return the integers (256,) that stand for pixels from 0 to 255."""
        return self.tensors["input"].quantize(np.arange(256) / np.float32(255))


@np.errstate(all="ignore")  # what is too large is refused with its name
def quantize(network, X, calibration="min-max", bits=8):
    """Return a `Quantized` of a network, with the ranges that its tensors have for the examples X.

    X: (n, *input), float32 or uint8 pixels; of more than ROWS some are taken, evenly. calibration: a name in
    CALIBRATIONS, or a function of an array that returns the lowest and the highest value to be told apart.

    Raises ValueError or TypeError for a layer, or for examples, with which that can't be done.
    """
    if not callable(calibration):
        check_choice("calibration", calibration, CALIBRATIONS)
    check_bits(bits)
    check_is_network(network)
    choose = calibration if callable(calibration) else CALIBRATIONS[calibration]
    check_batch(X, network.model.input, network.dtype)
    check_finite("examples of a calibration", X)
    folded = fold(network)
    found = operations(folded)
    last = found[-1] if found else None
    if last is None or last.layer is None or last.relu or last.pool:
        raise ValueError("a network in integers ends with a Linear or a Conv layer: its outputs are real numbers.")
    run = folded.run(X[:: -(-len(X) // ROWS)], [each.name for each in found[:-1]])
    tensors, shapes = {}, {each.name: each.output for each in found}
    for name, values in run.activations.items():
        values = check_finite(f"the values of {name}", network.engine.to_numpy(values))
        values = run.activations[name] = values.reshape(-1, *shapes.get(name, network.model.input))
        weighted = all(each.layer for each in found if name in (each.name, *each.inputs))
        factors = _factors(values) if weighted and name in shapes and bits == 8 else ONE  # else weights suffer
        run.activations[name] = values = values / factors
        tensors[name] = replace(affine(*choose(values)), channels=factors)
    made = tuple(_integers(network.engine, each, tensors, run.activations, bits) for each in found)
    return Quantized(network.model.input, tensors, made)


def _factors(values):
    """Return each channel's factor: the root of its part of the largest value, as steps of weights grow by factors.

    Nagel and others (2019), "Data-free quantization through weight equalization".
    """
    most = abs(values).max(axis=(0, *range(2, values.ndim)), keepdims=True)[0]
    return np.sqrt(most / (most.max() or 1)).clip(LEAST, 1).astype(np.float32)


def _integers(engine, operation, tensors, values, bits):
    """Return an operation in integers. Raises ValueError where 32 bits can't hold its sums."""
    x, y = tuple(tensors[name] for name in operation.inputs), tensors.get(operation.name)
    if operation.W is None:
        multiplier, shift = fixed_point([each.scale / y.scale for each in x])
        return IntegerOperation(operation, x, y, multiplier=multiplier, shift=shift)
    windows, factors = _seen(operation, values[operation.inputs[0]]), x[0].channels
    W = engine.to_numpy(operation.W).astype(np.float64)
    exact = W.T * np.repeat(factors, len(W) // factors.size) if W.ndim == 2 else W * factors
    _, scale = symmetric(exact, operation.flat, bits)
    W = made_up_for(exact, scale, windows, operation.flat, bits)
    weights = W.reshape(len(W), -1).astype(np.int64)
    b = 0 if operation.b is None else engine.to_numpy(operation.b).astype(np.float64)
    b = b + (exact.reshape(weights.shape) - weights * scale[:, None]) @ windows.mean(
        axis=0
    )  # on average nothing is off
    scale = scale * x[0].scale
    bias = np.rint(b / scale) - x[0].zero_point * weights.sum(axis=1)
    if (abs(bias) + MOST * abs(weights).sum(axis=1)).max() > LARGEST:
        raise ValueError(f"the sums of {operation.layer!r}, {operation.name}, can exceed 32 bits: keep it in float32.")
    scale = scale / y.channels.ravel() if y else scale
    multiplier, shift = fixed_point(scale / y.scale) if y else (None, 1)
    return IntegerOperation(operation, x, y, W, bias.astype(np.int32), scale, multiplier, shift)


def _seen(operation, x):
    """Return at most some WINDOWS of what the weights meet in x: (n, values)."""
    each = prod(operation.layer.output(operation.shape)[1:])
    windows = _windows(operation, x.reshape(len(x), *operation.shape)[:: 1 + len(x) * each // WINDOWS])
    return windows.reshape(-1, windows.shape[-1])


def check_bits(bits):
    """Raise ValueError unless `bits` is a whole number from 2 to 8."""
    if check_count("bits", bits, least=2) > 8:
        raise ValueError(f"weights have 2 to 8 bits, not {bits}.")


def rounded(network, theta, bits=8):
    """Return parameters (n,) whose weights are those that integers of so many bits stand for; the others stay.

    theta: laid out as `network.theta`, NumPy's. For training with a straight-through estimator (Bengio, Leonard and
    Courville, 2013): the loss sees rounded weights, and its gradient is applied to those that are not.
    """
    check_bits(bits)
    found, flat = theta.copy(), None
    views = network.views(found)
    for path, layer, shape, _ in network.model.walk:
        if type(layer) is Flatten:
            flat = shape if len(shape) > 1 else flat
        elif type(layer) in (Conv, Linear):
            W = views[".".join(map(str, path)) + ".W"]
            W = W.T if W.ndim == 2 else W
            q, scale = symmetric(W, flat if W.ndim == 2 else None, bits)
            W[...] = q * scale.reshape(-1, *[1] * (W.ndim - 1))
            flat = None
    return found
