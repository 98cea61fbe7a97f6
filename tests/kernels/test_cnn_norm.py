"""Batch normalization on planes, and what comes after it: on the emulator, and on a GPU, against float64."""

from functools import partial

import emulator
import numpy as np
import pytest
from conv_cases import error
from emulator import needs_compiler
from shared import sweep
from test_kernels import needs_compiler as needs_cuda

from experiments.lab import ptxas
from mlpkit import kernels
from mlpkit.engines import numpy_baseline
from mlpkit.kernels.cnn import norm
from mlpkit.kernels.cnn.norm import Norm
from mlpkit.kernels.conv import blocked
from mlpkit.kernels.conv.blocked import MODES, Stored

CLASSES = {"fp16x3": 2e-6, "fp16": 1e-3, "bf16": 1e-2}  # how far off a result may be


def as_blocked(x, mode):
    """Return images as the planes of a mode, a NumPy array."""
    n, c, h, w = x.shape
    x = np.pad(x.astype(np.float32), ((0, 0), (0, blocked.padded(c, 8) - c), (0, 0), (0, 0)))
    x = np.ascontiguousarray(x.reshape(n, -1, mode.stored, h, w).transpose(0, 1, 3, 4, 2))
    return to_bf16(x) if mode.stored == 8 else x


def to_bf16(x):
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_blocked(array, channels):
    """Return planes of float32 or bfloat16 as float64 images."""
    n, _, h, w, _ = array.shape
    array = (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array
    return array.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :channels].astype(float)


def from_operand(array, scale, mode, channels):
    """Return an operand as float64 images."""
    if not mode.fp16_parts:
        return from_blocked(array, channels)
    total = array.view(np.float16).astype(float).sum(0) / float(scale[0])
    n, _, h, w, _ = total.shape
    return total.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :channels]


def as_operand(x, mode):
    """Return images as an operand, an array and its scale."""
    if not mode.fp16_parts:
        return as_blocked(x, mode), None
    scale = np.zeros(8, np.float32)
    scale[0] = 2.0 ** (14 - int(np.ceil(np.log2(np.abs(x).max()))))
    n, c, h, w = x.shape
    x = np.pad(x, ((0, 0), (0, blocked.padded(c, 8) - c), (0, 0), (0, 0))) * scale[0].astype(float)
    x = x.reshape(n, -1, 8, h, w).transpose(0, 1, 3, 4, 2)
    parts = [x.astype(np.float16)]
    if mode.fp16_parts == 2:
        parts.append((x - parts[0]).astype(np.float16))
    return np.ascontiguousarray(np.stack(parts)).view(np.uint16), scale


class Case:
    """A normalization with numbers for it; what it should make of them, in float64."""

    def __init__(self, one, away=0.0, seed=0, past=None):
        self.norm, self.past, self.seed = one, past, seed
        rng = np.random.default_rng(seed)
        n, c, h, w = one.n, one.channels, one.height, one.width
        self.y = from_blocked(as_blocked(rng.standard_normal((n, c, h, w)) * 3 + away, one.mode), c)
        if one.kernel:
            sizes = [size + one.kernel - 1 - 2 * one.padding for size in (h, w)]
            self.images = (rng.standard_normal((n, 1, *sizes)) + away).astype(np.float32)
            self.filters = rng.standard_normal((c, 1, one.kernel, one.kernel)).astype(np.float32)
            doubles = self.images.astype(float), self.filters.astype(float)
            self.y = numpy_baseline.conv(*doubles, None, 1, one.padding)
        self.added = from_operand(*as_operand(rng.standard_normal((n, c, h, w)), one.mode), one.mode, c)
        self.gamma, self.beta, self.mean, self.bias = (rng.standard_normal(c).astype(np.float32) for _ in range(4))
        self.variance = rng.random(c).astype(np.float32) + 1
        self.dy = from_blocked(as_blocked(rng.standard_normal((n, c, *one.out)) + bool(away), one.mode), c)
        if past:
            down, across = one.out[0] // past[1], one.out[1] // past[1]
            self.dz = from_blocked(as_blocked(rng.standard_normal((n, c, down, across)), one.mode), c)
            self.choices = rng.integers(0, past[1] ** 2, self.dz.shape)
            self.on = rng.random(self.dz.shape) < 0.6 if past[0] else np.ones(self.dz.shape, bool)
        self.compute()

    def compute(self):
        one, averages = self.norm, [self.mean.astype(float), self.variance.astype(float)]
        gamma, beta = self.gamma.astype(float), self.beta.astype(float)
        z, normalized, inverse = numpy_baseline.batch_norm(self.y, gamma, beta, *averages, one.momentum, one.eps)
        averages[0] += one.momentum * self.bias
        z = z + self.added if one.add else z
        a = np.maximum(z, 0) if one.relu else z
        self.result, index = numpy_baseline.max_pool(a, one.pool, one.pool) if one.pool > 1 else (a, None)
        self.averages, dy = averages, self.dy + (self.past_dense() if self.past else 0)
        da = numpy_baseline.max_pool_backward(dy, index, a.shape, one.pool, one.pool) if one.pool > 1 else dy
        self.dense = np.where(z > 0, da, 0) if one.relu else da
        self.dgamma, self.dbeta = np.zeros_like(gamma), np.zeros_like(gamma)
        kept = normalized, inverse, gamma, self.dgamma, self.dbeta
        self.dx = numpy_baseline.batch_norm_backward(self.dense, *kept)
        if one.kernel:
            dw = np.empty(self.filters.shape)
            numpy_baseline.conv_backward_weights(self.images.astype(float), self.dx, dw, None, 1, one.padding)
            self.dx = dw

    def past_dense(self):
        pool, dense = self.past[1], np.zeros(self.dy.shape)
        for i in range(pool**2):
            part = dense[:, :, i // pool :: pool, i % pool :: pool][:, :, : self.dz.shape[2], : self.dz.shape[3]]
            part[...] = np.where(self.on & (self.choices == i), self.dz, 0)
        return dense

    def past_marks(self):
        """Return the marks of what followed the sum, as the kernels keep them: (n, c / 8, h, w)."""
        n, c, h, w = self.dz.shape
        padded, pool = blocked.padded(c, 8), self.past[1]
        numbers = np.where(self.on, self.choices, norm_none()) if pool > 1 else self.on.astype(int)
        numbers = np.pad(numbers, ((0, 0), (0, padded - c), (0, 0), (0, 0))).reshape(n, -1, 8, h, w)
        bits = 4 if pool > 1 else 1
        words = sum(numbers[:, :, i].astype(np.uint64) << bits * i for i in range(8))
        return np.ascontiguousarray(words.astype(np.uint32 if pool > 1 else np.uint8))


def norm_none():
    return 15


def moments_of(y, rows):
    """Return the `Moments` of images (n, c, h, w) that a convolution by tiles of so many rows leaves, NumPy's."""
    starts = range(0, y.shape[2], rows)
    tiles = [y[:, :, first : first + rows].reshape(*y.shape[:2], -1) for first in starts]
    found = np.stack([[tile.mean(-1), tile.var(-1) * tile.shape[-1]] for tile in tiles], -1)  # (2, n, c, bands)
    found = found.transpose(2, 1, 3, 0).reshape(y.shape[1], -1, 2)
    padded = np.zeros((blocked.padded(y.shape[1], 8), *found.shape[1:]), np.float32)
    padded[: y.shape[1]] = found
    return blocked.Moments(padded, len(starts), rows)


def run(case, cp, out="operand", layout="nc8hw8", keep=False, again=False, blocks=None, rows=None):
    """Return what the kernels make of a case: result, averages, dx, gradients of the channels, dense, statistics.

    again: the operand that the backward pass makes again must be the result, bit by bit. rows: of the tiles whose
    moments there are, or None.
    """
    one, mode, c = case.norm, case.norm.mode, case.norm.channels
    put = lambda array: None if array is None else cp.ascontiguousarray(cp.asarray(array))  # noqa: E731
    vectors = [put(v.copy()) for v in (case.gamma, case.beta, case.mean, case.variance)]
    gradients = [put(np.full(c, np.nan, np.float32)) for _ in range(3)]
    channels = norm.Channels(*vectors, *gradients[:2], put(case.bias), gradients[2])
    scales = [put(np.array([1, *[0] * 15], np.float32)) for _ in range(2)]
    added = Stored(*map(put, as_operand(case.added, mode))) if one.add else None
    y, filters = (case.images, case.filters) if one.kernel else (as_blocked(case.y, mode), None)
    filters, dw = put(filters), put(np.full_like(filters, np.nan)) if one.kernel else None
    meetings = [norm.new_meeting(one, blocks) for _ in range(2)]
    left = rows and moments_of(case.y, rows)
    left = left and left._replace(array=put(left.array))
    result, kept = norm.forward(one, channels, put(y), scales[0], meetings[0], added, out, filters, blocks, left)
    numpy = getattr(cp, "asnumpy", np.asarray)
    bits = numpy(result.array).copy() if again else None
    if out == "operand":
        result = from_operand(numpy(result.array), numpy(scales[0]), mode, c)
    else:
        result = numpy(result) if out == "nchw" else from_blocked(numpy(result), c)
    dy = put(case.dy.astype(np.float32) if layout == "nchw" else as_blocked(case.dy, mode))
    past = case.past and norm.Past(put(as_blocked(case.dz, mode)), put(case.past_marks()), *case.past)
    found = norm.backward(one, channels, kept, dy, scales[1], meetings[1], past, layout, keep, again, dw, blocks)
    dx, dense, made = found
    if again:
        np.testing.assert_array_equal(numpy(made.array), bits)
    dx = numpy(dw) if one.kernel else from_operand(numpy(dx.array), numpy(scales[1]), mode, c)
    averages = [numpy(each).astype(float) for each in vectors[2:]]
    dense = None if dense is None else from_blocked(numpy(dense), c)
    return result, averages, dx, [numpy(each) for each in gradients], dense, numpy(kept.statistics)


def check(case, cp, worst=None, **options):
    """Raise AssertionError unless the kernels make what they should."""
    mode = next(name for name, mode in MODES.items() if mode == case.norm.mode)
    worst = worst or CLASSES[mode]
    exact = max(2e-6, worst if worst > CLASSES[mode] else 0)  # what never leaves float32
    result, averages, dx, (dgamma, dbeta, dbias), dense, _ = run(case, cp, **options)
    assert error(result, case.result) < (worst if options.get("out", "operand") == "operand" else max(worst, 2e-6))
    assert error(np.stack(averages), np.stack(case.averages)) < exact
    assert error(dx, case.dx) < worst
    assert error(dgamma, case.dgamma) < max(exact, 1e-5)
    assert error(dbeta, case.dbeta) < exact
    assert not dbias.any()
    if dense is not None:
        assert error(dense, case.dense) < worst


def emulated(case, folder, seed=0, macros=(), **options):
    norm._kernel.cache_clear()
    blocked.multiprocessors.cache_clear()
    with emulator.with_cupy(folder, seed), pytest.MonkeyPatch.context() as patch:
        import cupy

        patch.setattr(kernels, "load", partial(kernels.load, **dict(macros)))
        check(case, cupy, **options)
    norm._kernel.cache_clear()


EMULATED = {
    "plain": (Norm(MODES["fp16x3"], 3, 20, 5, 6), {"blocks": 3}),
    "channels of several groups in a block": (Norm(MODES["fp16x3"], 1, 41, 3, 3, relu=False), {"blocks": 1}),
    "images of one channel": (Norm(MODES["fp16x3"], 5, 12, 5, 6, kernel=3, padding=1), {"blocks": 3}),
    "made again": (Norm(MODES["fp16x3"], 1, 41, 3, 3), {"blocks": 1, "again": True}),
    "made again where all is": (Norm(MODES["fp16x3"], 5, 41, 3, 4), {"blocks": 18, "again": True}, (True, 2)),
    "made again in bfloat16": (Norm(MODES["bf16"], 4, 20, 5, 6, relu=False), {"blocks": 8, "again": True}),
    "made again in halves": (Norm(MODES["fp16"], 4, 20, 5, 6), {"blocks": 8, "again": True}),
    "made again of images": (
        Norm(MODES["fp16x3"], 5, 12, 5, 6, kernel=3, padding=1),
        {"blocks": 4, "again": True},
        (True, 2),
    ),
    "past a pool": (Norm(MODES["bf16"], 3, 20, 5, 6), {"blocks": 3}, (True, 2)),
    "past a ReLU, kept": (Norm(MODES["fp16"], 2, 20, 3, 6, add=True), {"blocks": 2, "keep": True}, (True, 1)),
    "sum and pool": (Norm(MODES["fp16x3"], 2, 9, 5, 7, add=True, pool=2), {"blocks": 2, "layout": "nchw"}),
    "moments of tiles": (Norm(MODES["fp16x3"], 20, 20, 7, 6), {"blocks": 3, "rows": 3}),
    "moments of images, sum and pool": (
        Norm(MODES["bf16"], 3, 9, 5, 7, add=True, pool=2),
        {"blocks": 2, "rows": 5},
    ),
    "a pool, and past another": (Norm(MODES["fp16"], 3, 9, 11, 9, pool=2), {"blocks": 2}, (True, 2)),
}


OLDER = ("plain", "made again in bfloat16", "past a ReLU, kept", "sum and pool", "images of one channel", "past a pool")


@needs_compiler
@pytest.mark.parametrize("name", sweep(EMULATED, "plain", *EMULATED.keys() - OLDER))
def test_on_the_emulator(name, folder):
    one, options, *past = EMULATED[name]
    emulated(Case(one, past=past[0] if past else None), folder, **options)


@needs_compiler
@pytest.mark.parametrize("name", sweep(OLDER, "plain", "past a ReLU, kept"))
def test_on_the_emulator_as_chips_before_hopper(name, folder):
    one, options, *past = EMULATED[name]
    emulated(Case(one, past=past[0] if past else None), folder, macros={"HOPPER": 0}, **options)


@needs_compiler
@pytest.mark.parametrize("kernel", [3, 2])
def test_what_images_and_gradients_have_in_common_costs_no_digits(kernel, folder):
    """A convolution's gradient of images far from 0 is a small difference of large sums."""
    case = Case(Norm(MODES["fp16x3"], 9, 12, 11, 12, relu=False, kernel=kernel), away=1.0)
    emulated(case, folder, blocks=6)


def sizes_for(mode):
    """Yield what a normalization may meet: (Norm, distance of the mean from 0, past, options of `run`)."""
    yield Norm(mode, 5, 20, 9, 7), 0.0, None, {}
    yield Norm(mode, 64, 33, 13, 13), 100.0, None, {}
    yield Norm(mode, 3, 41, 7, 9, add=True, pool=2), 0.0, None, {"layout": "nchw", "out": "nchw"}
    yield Norm(mode, 4, 9, 10, 9, relu=False, pool=3), 0.0, None, {"out": "nc8hw8"}
    yield Norm(mode, 128, 32, 28, 28, add=True, pool=2), 0.0, None, {}
    yield Norm(mode, 128, 32, 28, 28), 0.0, (True, 2), {"again": True}
    yield Norm(mode, 2, 20, 6, 6, add=True), 0.0, (True, 1), {"keep": True}
    yield Norm(mode, 2, 20, 6, 6, relu=False), 0.0, (False, 1), {}
    yield Norm(mode, 64, 32, 28, 28, kernel=3, padding=1), 0.0, (True, 2), {"again": True}
    yield Norm(mode, 64, 32, 26, 26, relu=False, kernel=3), 1.0, None, {}
    yield Norm(mode, 1, 12, 5, 6, kernel=2), 0.0, (True, 1), {"layout": "nchw"}
    yield Norm(mode, 300, 64, 14, 14), 0.0, None, {"again": True}  # more than shared memory has room for
    yield Norm(mode, 4, 16, 120, 120), 0.0, None, {"again": True}  # none of it
    yield Norm(mode, 64, 33, 13, 13), 100.0, None, {"rows": 5}
    yield Norm(mode, 128, 32, 28, 28, add=True, pool=2), 0.0, None, {"rows": 7}
    yield Norm(mode, 300, 64, 14, 14), 0.0, None, {"rows": 7}
    yield Norm(mode, 5, 9, 11, 9, pool=2), 0.0, (True, 2), {}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CLASSES)
def test_on_a_gpu(name):
    import cupy

    for one, away, past, options in sizes_for(MODES[name]):
        check(Case(one, away, past=past), cupy, **options)


@pytest.mark.gpu
def test_the_same_bits_each_time():
    import cupy

    case = Case(Norm(MODES["fp16x3"], 64, 32, 28, 28, add=True, pool=2))
    first, second = run(case, cupy), run(case, cupy)
    for one, other in ((first[0], second[0]), (first[2], second[2]), *zip(first[3], second[3], strict=True)):
        np.testing.assert_array_equal(one, other)


@needs_cuda
def test_no_number_leaves_the_registers():
    for one, _, past, options in [each for i, each in enumerate(sizes_for(MODES["fp16x3"])) if i in (4, 5, 8)]:
        macros = {"OUT": norm._out_number(one, options.get("out", "operand")), **one.macros}
        for left in (0, 1):
            assert ptxas.resources(norm.FORWARD, MOMENTS=left, **macros)["normalize"].spilled_bytes == 0
        past = past and norm.Past(None, None, *past)
        options = {"layout": "nc8hw8", "keep": False, "again": False} | options
        macros = norm._backward_macros(one, past, *map(options.get, ("layout", "keep", "again")))
        assert ptxas.resources(norm.BACKWARD, **macros)["normalize_backward"].spilled_bytes == 0
