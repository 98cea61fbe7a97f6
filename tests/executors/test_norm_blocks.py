"""Blocks of convolutions with batch normalization: found in models, and right, there and back."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from conv_cases import error
from shared import sweep
from test_cnn_norm import as_blocked, from_blocked, from_operand

from mlpkit.engines import numpy_baseline
from mlpkit.executors.cuda import norm_blocks
from mlpkit.executors.cuda.blocks import Value
from mlpkit.kernels import gpu
from mlpkit.kernels.cnn import between, norm
from mlpkit.kernels.conv import blocked, portable, variants
from mlpkit.nn.bound import backward, forward
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.models import RESIDUAL, Model
from mlpkit.nn.network import Network
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual


def normed(channels, size=3, padding=1, bias=False):
    return Conv(channels, size, padding=padding, bias=bias), BatchNorm()


def residual(channels):
    return Residual((*normed(channels), ReLU(), *normed(channels, bias=True)))


END = Flatten(), Linear(3)
# No channel is normalized over so few numbers that nothing but their signs is left, and of a gradient what was rounded.
MODELS = {
    "stem, residual, pool": Model((1, 9, 9), (*normed(9), ReLU(), residual(9), ReLU(), MaxPool(2), *END)),
    "two residuals": Model((3, 5, 5), (*normed(4), ReLU(), residual(4), ReLU(), residual(4), ReLU(), *END)),
    "past a pool": Model(
        (1, 14, 15), (*normed(5, 2, 0), MaxPool(2), ReLU(), residual(5), MaxPool(3), *normed(20, 1, 0, True), *END)
    ),
    "a residual first": Model((2, 4, 5), (Conv(3, 3, padding=1), residual(3), ReLU(), residual(3), *END)),
}

MODES = "fp16x3", "fp16", "bf16"


def mode_here(name):
    """Return a mode by its name; on a GPU by which its products are made there."""
    hopper = gpu.why_not() is not None or variants.TABLE[0].needs.are_met()
    return (blocked if hopper else portable).MODES[name]


MOST = 4  # how many times as far off as a model of the same roundings a GPU may be: less than the 8 from fp16 to bf16
DRAWS = 5  # of such a model, and one more that rounds to the nearest
FLOAT32 = 2.0**-20  # of 16 roundings to float32: how far off is what a kernel calculates and the model has in float64
SUMMED = 2.0**-23  # of the sum of magnitudes: how far off tensor cores' sums in float32 may be


@dataclass
class Rounding:
    """How a precision class rounds numbers, to be put into a model in float64. mode: None rounds nothing.

    nearest: a number goes to the nearer one of its two neighbours, as on a GPU; else it goes there by chance, only more
    often. So each model is another draw of errors as large as those of a GPU, and what comes of them tells how far off
    a right kernel can be: by fewer digits alone, other numbers are below 0, or the largest of a window.
    """

    mode: str | None = None
    seed: int = 0
    nearest: bool = False

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)

    def round(self, x, digits):
        """Return x with so many binary digits."""
        if self.mode is None:
            return x
        parts, exponents = np.frexp(x)
        whole = np.ldexp(parts, digits)
        whole = np.rint(whole) if self.nearest else np.floor(whole + self.random.random(x.shape))
        return np.ldexp(whole, exponents - digits)

    def operand(self, x):
        """Return numbers as products read them. fp16x3: two halves of 11 digits."""
        return self.round(x, {None: 0, "fp16x3": 22, "fp16": 11, "bf16": 8}[self.mode])

    def blocked(self, x):
        """Return what a product gives."""
        return self.round(x, 8 if self.mode == "bf16" else 24)

    def images(self, x, layout):
        return {"nchw": lambda x: x, "nc8hw8": self.blocked, "stored": self.operand}[layout](x)

    def product(self, how, *arguments):
        """Return how(*arguments), with the error of its sums."""
        found = how(*arguments)
        if self.mode is None:
            return found
        magnitudes = how(*(np.abs(each) if isinstance(each, np.ndarray) else each for each in arguments))
        return found + SUMMED * magnitudes * self.random.uniform(-1, 1, found.shape)


def right_and_found(model, n, mode, engine):
    """Return a network in float64, one of an engine, and the first block that `match` finds in it: see `Found`."""
    networks = [
        Network(each, model, dtype=dtype) for each, dtype in ((numpy_baseline, np.float64), (engine, np.float32))
    ]
    rng = np.random.default_rng(1)
    theta = networks[0].theta + rng.normal(0, 0.1, networks[0].theta.size) * (networks[0].theta.size > 0)
    for network in networks:
        network.set_theta(theta.astype(np.float32))
    shape = model.input
    for i, at in enumerate(networks[1].layers):
        if found := norm_blocks.match(networks[1].layers, i, shape, n, mode_here(mode)):
            return networks, i, *found, shape
        shape = at.layer.output(shape)
    return networks, None, 0, None, None


def runs(model, n, mode, engine, layouts, put, see, beside=None):
    """Yield how far off the first block of a model is from its layers, one by one, in float64: a dictionary, by name.

    Twice, as in a training. layouts: of the block's input, of its result, and of the gradient that it gets. put, see:
    they make a `Value` of images in a layout, and images of a `Value`. beside: for what may be done there, or None.
    """
    comes, goes, back = layouts
    (right, found), i, count, block, shape = right_and_found(model, n, mode, engine)
    block.gives, bound, right.mode.training = goes, right.layers[i : i + count], True
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((n, *shape)).astype(np.float32)
        wanted = forward(bound, x.astype(float))
        dy = rng.standard_normal(wanted.shape).astype(np.float32)
        dx_wanted = backward(bound, dy.astype(float))
        block.prepare(beside)
        far = {"result": error(see(block.forward(put(x, comes))), wanted)}
        dx = block.backward(put(dy, back))
        if beside:
            beside.join()
        far |= distances(right, found, range(i, i + count), engine.to_numpy)
        assert (dx is None) == (dx_wanted is None)
        yield far | ({} if dx is None else {"dx": error(see(dx), dx_wanted)})


class Late:
    """A branch that does what it is asked for when it is joined, as late as can be."""

    def __init__(self):
        self.asked, self.done = [], 0

    def ask(self, work, early=True):
        self.asked.append(work)

    def join(self):
        self.done += len(self.asked)
        while self.asked:
            self.asked.pop(0)()


def modeled(model, n, mode, layouts, rounding, beside=None):
    """Return what `runs` yields for a model of the kernels, in a list."""
    with pytest.MonkeyPatch.context() as patch:
        put_in_place(patch, rounding)
        put = lambda x, layout: Value(rounding.images(x.astype(float), layout), layout, x.shape[1])  # noqa: E731
        see = lambda value: value.array.array if value.layout == "stored" else value.array  # noqa: E731
        return list(runs(model, n, mode, numpy_baseline, layouts, put, see, beside))


def limits(model, n, mode, layouts):
    """Return how far off what `runs` yields may be: `MOST` times as far as the worst of some models.

    All gradients have one limit: a number on the other side of 0 changes any of them, and models seldom agree on which.
    """
    roundings = Rounding(mode, nearest=True), *(Rounding(mode, seed) for seed in range(DRAWS))
    draws = [modeled(model, n, mode, layouts, rounding) for rounding in roundings]
    most = [
        {key: MOST * (FLOAT32 + max(draw[key] for draw in each)) for key in each[0]}
        for each in zip(*draws, strict=True)
    ]
    worst = [max(far for key, far in each.items() if is_gradient(key)) for each in most]
    return [
        {key: of_all if is_gradient(key) else far for key, far in each.items()}
        for each, of_all in zip(most, worst, strict=True)
    ]


def is_gradient(key):
    return key.startswith("grad") or key == "dx"


def too_far(found, limits):
    """Return what is farther off than it may be, by the number of the run and the name, with its limit."""
    return {
        (i, key): (far, most[key])
        for i, (each, most) in enumerate(zip(found, limits, strict=True))
        for key, far in each.items()
        if not far <= most[key]  # NaN is, too
    }


def distances(right, found, layers, numpy):
    """Return how far off the gradients and running averages of some layers are, as parts of their norms, by name."""
    far = {}
    for name, layout in (("grad", right.model.layout), ("statistics", right.model.statistics)):
        views, exact = layout.views(numpy(getattr(found, name))), layout.views(getattr(right, name))
        for key in views:
            if int(key.split(".")[0]) in layers:
                distance = np.linalg.norm(views[key] - exact[key]) / max(np.linalg.norm(exact[key]), 1)
                far[f"{name} {key}"] = distance
    return far


def laid(cp, mode, x, layout):
    """Return images as a `Value`."""
    array = cp.ascontiguousarray(cp.asarray(x if layout == "nchw" else as_blocked(x, mode)))
    return Value(array, layout, x.shape[1])


def images_of(numpy, mode, value):
    """Return a `Value` as images in float64."""
    if value.layout == "nchw":
        return numpy(value.array).astype(float)
    if value.layout == "nc8hw8":
        return from_blocked(numpy(value.array), value.channels)
    scale = value.array.scale
    return from_operand(numpy(value.array.array), None if scale is None else numpy(scale), mode, value.channels)


# The kernels by NumPy, in float64, on images as they are: what a block asks of whom, and in which order


def fake_convolve(rounding, mode, shape, which, images, filters, to, moments=None):
    x, w = images.array, rounding.operand(np.asarray(filters).astype(float))
    if which == "forward":
        found = rounding.product(numpy_baseline.conv, x, w, None, shape.stride, shape.padding)
    else:
        found = rounding.product(numpy_baseline.conv_backward_input, x, w, shape.x, shape.stride, shape.padding)
    to[...] = rounding.blocked(found)


def gradient_of_filters(x, dy, like, stride, padding):
    found = np.empty(like.shape)
    numpy_baseline.conv_backward_weights(x, dy, found, None, stride, padding)
    return found


def fake_weight_gradient(rounding, mode, shape, images, dy, dw, later=None):
    found = rounding.product(gradient_of_filters, images.array, dy.array, dw, shape.stride, shape.padding)
    ask = partial(np.copyto, dw, found)
    later(ask) if later else ask()


def fake_forward(rounding, one, channels, y, scale, meeting, added=None, out="operand", filters=None, moments=None):
    x, y = y, y if filters is None else numpy_baseline.conv(y, np.asarray(filters).astype(float), None, 1, one.padding)
    averages = channels.mean.astype(float), channels.variance.astype(float)
    vectors = channels.gamma.astype(float), channels.beta.astype(float), *averages
    z, normalized, inverse = numpy_baseline.batch_norm(y, *vectors, one.momentum, one.eps)
    channels.mean[:], channels.variance[:] = averages
    if channels.bias is not None:
        channels.mean[:] += one.momentum * channels.bias
    assert (added is not None) == one.add
    z = rounding.round(z + added.array if one.add else z, 24)
    a, index = numpy_baseline.max_pool(np.maximum(z, 0) if one.relu else z, one.pool, one.pool)
    a = blocked.Stored(rounding.operand(a)) if out == "operand" else rounding.images(a, out)
    return a, norm.Kept(x, filters, (normalized, inverse, a), (z.shape, index, z > 0))


def came_through(dy, marks, relu, pool):
    shape, index, on = marks
    dz = numpy_baseline.max_pool_backward(dy, index, shape, pool, pool)
    return np.where(on, dz, 0) if relu else dz


def fake_backward(
    rounding, one, channels, kept, dy, scale, meeting, past=None, layout="nc8hw8", keep=False, again=False, dw=None
):
    *statistics, a = kept.statistics
    assert not (again and (one.add or one.pool > 1))
    if past:
        dy = dy + (came_through(past.gradient, past.marks, past.relu, past.pool) if past.marks else past.gradient)
    dense, dgamma, dbeta = came_through(dy, kept.marks, one.relu, one.pool), *np.empty((2, one.channels))
    dz = numpy_baseline.batch_norm_backward(dense, *statistics, channels.gamma.astype(float), dgamma, dbeta)
    channels.dgamma[:], channels.dbeta[:] = dgamma, dbeta
    if channels.dbias is not None:
        channels.dbias[:] = 0
    if one.kernel:
        dw[...] = rounding.product(gradient_of_filters, kept.y, dz, dw, 1, one.padding)
    made = rounding.blocked(dense) if keep else None, a if again else None
    return norm.Gradients(blocked.Stored(rounding.operand(dz)), *made)


def put_in_place(patch, rounding):
    """Put NumPy in the place of all kernels."""
    patch.setattr(
        blocked,
        "Filters",
        lambda mode, wanted: SimpleNamespace(begin=list, take=lambda: [dict.fromkeys(p, w) for _, w, p in wanted]),
    )
    patch.setattr(blocked, "convolve", partial(fake_convolve, rounding))
    patch.setattr(blocked, "weight_gradient", partial(fake_weight_gradient, rounding))
    patch.setattr(blocked, "empty_blocked", lambda mode, *shape: np.empty(shape))
    patch.setattr(blocked, "empty_moments", lambda mode, shape: None)
    patch.setattr(blocked, "new_scale", lambda: None)
    patch.setattr(
        between,
        "convert",
        lambda mode, size, x, layout, to, *_: blocked.Stored(rounding.operand(x)) if to == "stored" else x,
    )
    patch.setattr(norm, "new_meeting", lambda one: None)
    patch.setattr(norm, "forward", partial(fake_forward, rounding))
    patch.setattr(norm, "backward", partial(fake_backward, rounding))
    patch.setattr(norm, "add", lambda mode, to, other: rounding.blocked(to + other))


@pytest.fixture
def plain(monkeypatch):
    put_in_place(monkeypatch, Rounding())


FOUND = (
    ((*normed(4), ReLU(), Flatten()), 3, 1),
    ((*normed(4), ReLU(), residual(4), ReLU(), MaxPool(2), *normed(3), *END), 8, 4),
    ((*normed(4), MaxPool(2), MaxPool(2), *END), 3, 1),
    ((*normed(4), MaxPool(3, 2), *END), 2, 1),
    ((*normed(4), Residual((*normed(4), ReLU())), *END), 2, 1),
    ((*normed(4), Residual((*normed(4), Residual(normed(4)))), *END), 2, 1),
    ((Conv(4, 3), ReLU(), *END), 0, 0),
)


@pytest.mark.parametrize(("layers", "count", "stages"), FOUND, ids=str)
def test_what_a_block_takes_over(layers, count, stages, plain):
    _, _, found, block, _ = right_and_found(Model((2, 9, 9), layers), 4, "fp16x3", numpy_baseline)
    assert found == count
    assert block is None or len(block.stages) == stages


def test_the_residual_network_is_one_block(plain):
    _, i, count, block, _ = right_and_found(RESIDUAL, 128, "fp16x3", numpy_baseline)
    assert (i, count, block.wants) == (0, 12, "nchw")
    assert [stage.adds for stage in block.stages] == [None, None, 0, None, None, 3]
    assert [stage.about.pool for stage in block.stages] == [1, 1, 2, 1, 1, 2]
    assert block.last_uses == [2, 2, None, 5, 5, None]


@pytest.mark.parametrize("name", MODELS)
def test_a_block_does_what_its_layers_do(name):
    stem = name == "stem, residual, pool"
    for layouts in (("nchw",) * 3, ("nchw" if stem else "nc8hw8", "nc8hw8", "nc8hw8")):
        for far in modeled(MODELS[name], 3, "fp16x3", layouts, Rounding()):
            assert max(far.values()) < 1e-5, far  # gradients are kept in float32
            assert far["result"] < 1e-9


@pytest.mark.parametrize(("name", "late"), [("stem, residual, pool", 1), ("two residuals", 4), ("past a pool", 2)])
def test_slices_of_all_gradients_but_the_last_are_added_beside(name, late):
    beside = Late()
    for far in modeled(MODELS[name], 3, "fp16x3", ("nchw",) * 3, Rounding(), beside):
        assert max(far.values()) < 1e-5, far
    assert beside.done == 2 * late


@pytest.mark.parametrize("name", sweep(MODELS, "stem, residual, pool", "past a pool"))
def test_limits_tell_classes_apart(name):
    layouts = "nchw", "nc8hw8", "nc8hw8"
    for n in (2, 5):
        most = {mode: limits(MODELS[name], n, mode, layouts) for mode in MODES}
        for fewer, mode in (("bf16", "fp16"), ("fp16", "fp16x3")):
            assert too_far(modeled(MODELS[name], n, fewer, layouts, Rounding(fewer, DRAWS)), most[mode])
            again = modeled(MODELS[name], n, mode, layouts, Rounding(mode, DRAWS, nearest=True))  # other sums
            assert not too_far(again, most[mode])


GPU_MODELS = MODELS | {
    "residual": RESIDUAL,
    "wide": Model((1, 19, 17), (*normed(40, 2, 0), ReLU(), MaxPool(3), *normed(72), ReLU(), *END)),
    "stride": Model((3, 15, 14), (Conv(20, 3, stride=2, padding=1), BatchNorm(), ReLU(), residual(20), ReLU(), *END)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", GPU_MODELS)
def test_a_block_is_right_on_a_gpu(name, mode):
    import cupy

    from mlpkit.engines import cupy_conv

    if mode == "bf16" and gpu.capability() < 80:
        pytest.skip("Turing has no bfloat16")
    one = mode_here(mode)
    # Of a million numbers one is so near 0 that rounding to float32 decides on its side, and no model knows how.
    few = 3 if GPU_MODELS[name] is RESIDUAL else None
    for n, layouts in (
        (2, ("nchw", "nc8hw8", "nc8hw8")),
        (5, ("nchw", "nchw", "nchw")),
        (few or 16, ("nchw", "stored", "nc8hw8")),
    ):
        put, see = partial(laid, cupy, one), partial(images_of, cupy.asnumpy, one)
        found = list(runs(GPU_MODELS[name], n, mode, cupy_conv, layouts, put, see))
        assert not too_far(found, limits(GPU_MODELS[name], n, mode, layouts))
