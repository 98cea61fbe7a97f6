"""Numba loops, bundles of images: convolutions in which a vector register holds a number of each of several images.

Dense layers and updates are those of `numba_step`, and what is neither comes from NumPy. Arrays are (n, c, h, w) for
everybody who calls; a convolution turns bundles of images into another layout, one after another, and its results back.
"""

from types import SimpleNamespace

import numpy as np

from .loops import chain as _chain
from .loops import convolve as _convolve
from .loops import images as _images
from .loops.bundles import NONE as _NONE
from .loops.compiler import FASTMATH, Threads, compile_loops
from .loops.simd import BYTES as _BYTES
from .numba_step import *
from .numba_step import relu as _relu
from .numba_step import relu_backward as _relu_backward
from .numpy_baseline import (
    add,
    binary_cross_entropy,
    channel_sums,
    concat,
    concat_backward,
    dropout,
    global_avg_pool,
    global_avg_pool_backward,
    hinge,
    instance_norm,
    instance_norm_backward,
    leaky_relu,
    leaky_relu_backward,
    mean_squared_error,
    multiply,
    pad,
    pad_backward,
    pixel_shuffle,
    pixel_unshuffle,
    sigmoid,
    sigmoid_backward,
    tanh,
    tanh_backward,
    upsample_bilinear,
    upsample_bilinear_backward,
    upsample_nearest,
    upsample_nearest_backward,
)
from .stepping import StepByStep

OWN = (
    "conv", "conv_backward_weights", "conv_backward_input",
    "max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward",
    "batch_norm", "batch_norm_backward", "batch_norm_evaluate",
)  # fmt: skip
images = compile_loops(f"{__name__}_images", _images, parallel=True, fastmath=FASTMATH, error_model="numpy")
max_pool = images.max_pool
max_pool_backward = images.max_pool_backward
avg_pool = images.avg_pool
avg_pool_backward = images.avg_pool_backward


def relu(z):
    return _relu(_rows(z)).reshape(z.shape)


def relu_backward(a, da):
    return _relu_backward(_rows(a), _rows(da)).reshape(a.shape)


def conv(x, W, b, stride, padding):
    plan, tables = _convolve.plan(*x.shape[1:], len(W), W.shape[-1], stride, padding)
    b = np.zeros(len(W), x.dtype) if b is None else np.ascontiguousarray(b)
    z = np.empty((len(x), len(W), plan.rows, plan.columns), x.dtype)
    if plan.winograd:
        _convolve.forward_winograd(plan, tables, _rows(x), np.ascontiguousarray(W), b, _rows(z), _shares(x))
    else:
        _convolve.forward(plan, tables, _rows(x), _rows(W), b, _rows(z), _shares(x))
    return z


def conv_backward_weights(x, dz, dW, db, stride, padding):
    plan, tables = _convolve.plan(*x.shape[1:], len(dW), dW.shape[-1], stride, padding)
    if plan.winograd:
        _convolve.backward_weights_winograd(plan, tables, _rows(x), _rows(dz), dW, _shares(x))
    else:
        _convolve.backward_weights(plan, tables, _rows(x), _rows(dz), dW.reshape(len(dW), -1), _shares(x))
    if db is not None:
        images.sum_planes(_planes(dz), db)


def conv_backward_input(dz, W, shape, stride, padding):
    plan, tables = _convolve.plan(*shape[1:], len(W), W.shape[-1], stride, padding)
    dx = np.empty(shape, dz.dtype)
    backward = _convolve.backward_input_winograd if plan.winograd else _convolve.backward_input
    backward(plan, tables, _rows(dz), np.ascontiguousarray(W), _rows(dx), _shares(dz))
    return dx


def batch_norm(x, gamma, beta, mean, variance, momentum, eps):
    y, normalized, inverse_deviation = images.batch_norm(_planes(x), gamma, beta, mean, variance, momentum, eps)
    return y.reshape(x.shape), normalized.reshape(x.shape), inverse_deviation


def batch_norm_backward(dy, normalized, inverse_deviation, gamma, dgamma, dbeta):
    dx = images.batch_norm_backward(_planes(dy), _planes(normalized), inverse_deviation, gamma, dgamma, dbeta)
    return dx.reshape(dy.shape)


def batch_norm_evaluate(x, gamma, beta, mean, variance, eps):
    return images.batch_norm_evaluate(_planes(x), gamma, beta, mean, variance, eps).reshape(x.shape)


def _shares(x):
    """Return in how many parts a batch is done: as many as there may be threads, each with a bundle or more."""
    lanes = _BYTES // x.itemsize
    return min(Threads.most, (len(x) + lanes - 1) // lanes)


def _rows(array):
    """Return an array as a contiguous matrix: an image, or a channel's weights, in each row."""
    return _flat(array, array.shape[:1])


def _planes(x):
    """Return x (n, c) or (n, c, h, w) as contiguous (n, c, numbers of a plane)."""
    return _flat(x, x.shape[:2])


def _flat(array, kept):
    if not array.size:
        raise ValueError(f"a batch must have shape (n, ...) with n at least 1, not {array.shape}.")
    return np.ascontiguousarray(array).reshape(*kept, -1)


# Whole steps


def why_not(model, optimizer, batch_size):
    """Return None: a model that is no chain is trained an operation at a time. See `protocol`."""


def chain_of(model):
    """Return the blocks of a chain of convolutions and the units of its dense layers; None for another model.

    A block is a list: channels, size, stride, padding, size and stride of the pooling, whether there is ReLU.
    """
    layers, blocks = [(one, shape) for path, one, shape, _ in model.places if len(path) == 1], []
    while layers and layers[0][0].kind == "Conv":
        one, shape = layers.pop(0)
        block = [one.channels, one.size, *one.steps((1, *shape)), 1, 1, False]
        while layers and (layers[0][0].kind == "ReLU" or (layers[0][0].kind == "MaxPool" and block[4:6] == [1, 1])):
            after, _ = layers.pop(0)
            if after.kind == "MaxPool":
                block[4:6] = after.size, after.stride or after.size
            else:
                block[6] = True
        blocks.append(block)
    kinds = [one.kind for one, _ in layers]
    pairs = (len(layers) - 2) // 2
    if not blocks or kinds != ["Flatten", *["Linear", "ReLU"] * pairs, "Linear"]:
        return None
    if model.loss != "softmax_cross_entropy" or max(block[4] for block in blocks) ** 2 >= _NONE:
        return None
    return blocks, [one.units for one, _ in layers[1::2]]


def _start(vector, view):
    """Return where in a vector a view of it begins."""
    return (view.ctypes.data - vector.ctypes.data) // vector.itemsize


class Trainer(StepByStep):
    """Takes a step of a chain in three calls of compiled code, and of another model an operation at a time.

    Its workspace is made once, for the largest batch, and is less than the activations of such a batch: of a
    convolution is kept what its pooling leaves.
    """

    def __init__(self, network, optimizer, X, y, batch_size):
        super().__init__(network, optimizer, X, y, batch_size)
        self.chain = chain_of(network.model)
        if self.chain is None:
            return
        (blocks, units), dtype = self.chain, network.dtype
        places = [at for at in network.places if hasattr(at, "W")]
        begin = [(_start(network.theta, at.W), _start(network.theta, at.b) if hasattr(at, "b") else -1)
                 for at in places]  # fmt: skip
        blocks = [(*block, *at) for block, at in zip(blocks, begin, strict=False)]
        dense = [(out, *at) for out, at in zip(units, begin[len(blocks) :], strict=True)]
        lanes, self.most = _BYTES // dtype.itemsize, min(batch_size, len(y))
        self.blocks, self.dense, self.tables, self.room = _chain.lay_out(network.model.input, blocks, dense, lanes)
        bundles = -(-self.most // lanes)
        self.shares = min(Threads.most, bundles)
        shapes = {
            "packed": (1, self.room.packed), "kept": (bundles, self.room.kept),
            "scratch": (self.shares, self.room.scratch), "own": (self.shares, self.room.own),
            "rows": (1, self.room.rows * self.most), "slopes": (1, self.room.rows * self.most),
        }  # fmt: skip
        self.arrays = {name: _convolve.room(-(-n * m // lanes), network.theta).ravel()[: n * m].reshape(n, m)
                       for name, (n, m) in shapes.items()}  # fmt: skip
        self.arrays["marks"] = np.zeros((bundles, self.room.marks), np.uint8)

    def step(self, x, labels):
        if self.chain is None:
            return super().step(x, labels)
        network, n = self.network, len(x)
        wanted = self.most, *network.model.input
        if n > self.most or x.shape[1:] != wanted[1:]:  # compiled loops would read beyond their arrays
            raise ValueError(f"a batch here has at most the shape {wanted}, not {x.shape}.")
        labels = labels.astype(np.int64, copy=False)  # compiled once, whatever the labels' dtype
        check_labels(labels, n, network.model.output[0])
        arrays = SimpleNamespace(**self.arrays)
        packed, rows, slopes = arrays.packed[0], arrays.rows[0], arrays.slopes[0]
        losses = np.empty(min(self.shares, -(-n // (_BYTES // network.dtype.itemsize))))
        _chain.pack(self.blocks, self.tables, network.theta, packed)
        _chain.backpropagate(
            self.blocks, self.dense, self.tables, self.room, _rows(x), labels, network.theta, packed, arrays.kept,
            arrays.marks, arrays.scratch, arrays.own, rows, slopes, self.most, losses,
        )  # fmt: skip
        own = arrays.own[: len(losses)]
        _chain.parameter_gradients(
            self.blocks, self.dense, n, own, rows, slopes, self.most, network.grad, self.shares
        )  # fmt: skip
        self.optimizer.step()
        return losses.sum()
