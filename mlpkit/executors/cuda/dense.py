"""Linear layers as a block, with what is between them: cuBLAS's products also add the bias, take the ReLU, sum up.

Those at the end of a network are the head, which goes on to the loss and back: our own kernels, three of them.
"""

from contextlib import suppress
from functools import partial

import cupy as cp
import numpy as np

from mlpkit.engines.cuda import cublas
from mlpkit.engines.cuda.cublas import Product
from mlpkit.engines.cuda.products import MatrixLayout
from mlpkit.kernels.cnn import dense
from mlpkit.nn.layers import Flatten, Linear, ReLU

from .blocks import Value
from .transfers import as_labels


def match(bound, i, shape, n, mode):
    """Return how many layers from bound[i] on are one block, and the block; None where there is none. See `blocks`."""
    count = int(type(bound[i].layer) is Flatten)
    layers = []  # (bound layer, whether a ReLU follows)
    while i + count < len(bound) and type(bound[i + count].layer) is Linear:
        following = bound[i + count + 1].layer if i + count + 1 < len(bound) else None
        layers.append((bound[i + count], type(following) is ReLU))
        count += 1 + layers[-1][1]
    return (count, DenseBlock(layers, n, mode)) if layers else None


class DenseBlock:
    """Linear layers, each with a ReLU behind it or none. Rows of images are what they are flattened to. See `blocks`.

    lends: whether the result is no longer needed for the way back, so that it may be overwritten.
    """

    wants = "nchw"

    def __init__(self, layers, n, mode):
        self.layers, self.n = layers, n
        self.dtype = layers[0][0].W.dtype
        self.precision = None if self.dtype != "float32" or mode.precision == "float32" else "tf32"
        self.lends = not layers[-1][1]
        self.masks = [cublas.mask(n, at.W.shape[1]) if relu else None for at, relu in layers[:-1]]
        self.outputs = [self.plan_forward(i) for i in range(len(layers))]
        self.weights = [self.plan_weights(at) for at, _ in layers]
        self.back = [self.plan_back(i) for i in range(len(layers))]

    def rows(self, features):
        return MatrixLayout.of_rows(self.n, features, self.dtype)

    def product(self, a, b, out, epilogue=cublas.PLAIN, vector=None, mask=None):
        return Product(a, b, out, epilogue, vector, mask, precision=self.precision)

    def plan_forward(self, i):
        """Return the function that writes layer i's activations."""
        (at, relu), last = self.layers[i], i == len(self.layers) - 1
        matrices = self.rows(at.W.shape[0]), at.W, self.rows(at.W.shape[1])
        epilogue = (cublas.RELU_BIAS if last else cublas.RELU_AUX_BIAS) if relu else cublas.BIAS
        mask = self.masks[i] if relu and not last else None
        try:
            return self.product(*matrices, epilogue, at.b, mask)
        except cublas.Unsupported:
            if mask is not None:
                self.masks[i] = None  # the way back looks at the activations
            return partial(_then_bias, self.product(*matrices), at.b, relu)

    def plan_weights(self, at):
        """Return the function that writes a layer's dW and db."""
        matrices = self.rows(at.W.shape[0]).T, self.rows(at.W.shape[1]), at.dW
        try:
            return self.product(*matrices, cublas.BGRADA, at.db)
        except cublas.Unsupported:
            return partial(_then_sum, self.product(*matrices), at.db)

    def plan_back(self, i):
        """Return the function that writes the gradient of layer i's input, or of what is before the ReLU there.

        None where the product alone does not do that: then `relu_backward` does.
        """
        at, _ = self.layers[i]
        matrices = self.rows(at.W.shape[1]), at.W.T, self.rows(at.W.shape[0])
        if i and self.masks[i - 1] is not None:
            with suppress(cublas.Unsupported):
                return self.product(*matrices, cublas.DRELU, mask=self.masks[i - 1])
            self.masks[i - 1] = None
        return self.product(*matrices)

    def forward(self, x):
        self.shape, self.kept = x.array.shape, [x.array.reshape(self.n, -1)]
        for (at, _), product in zip(self.layers, self.outputs, strict=True):
            out = cp.empty((self.n, at.W.shape[1]), self.dtype)
            product(self.kept[-1], at.W, out)
            self.kept.append(out)
        if self.lends:
            self.kept.pop()
        return Value(out, "nchw", out.shape[1])

    def backward(self, dy):
        dz = dy.array
        if not self.lends:
            dz = self.layers[-1][0].engine.relu_backward(self.kept.pop(), dz)
        for i in range(len(self.layers) - 1, -1, -1):
            at, x = self.layers[i][0], self.kept.pop()
            self.weights[i](x.T, dz, at.dW)
            if i == 0 and not at.wants_dx:
                return None
            dx = cp.empty(x.shape, self.dtype)
            self.back[i](dz, at.W.T, dx)
            if i and self.layers[i - 1][1] and self.masks[i - 1] is None:
                dx = at.engine.relu_backward(x, dx)
            dz = dx
        return Value(dz.reshape(self.shape), "nchw", self.shape[1])


def _then_bias(product, b, relu, x, W, out):
    product(x, W, out)
    cp.add(out, b, out)
    if relu:
        cp.maximum(out, 0, out)


def _then_sum(product, db, x, dz, dW):
    product(x, dz, dW)
    cp.sum(dz, axis=0, out=db)


class Head:
    """Linear layers with ReLU between them, and the loss; see `kernels.cnn.dense`. Made by `head`.

    Call it with what comes in, labels (n,) of any integer type, and where the mean loss goes: see `plan.Gradient`. It
    returns the gradient of what came in, None where nobody asks for it.
    """

    def __init__(self, linear, n, mode):
        self.linear, self.precision = linear, "float32" if mode.precision == "float32" else "tf32"
        sizes = linear[0].W.shape[0], *(at.W.shape[1] for at in linear)
        hopper = mode.products is None and linear[0].W.data.ptr % 16 == 0  # it reads 16 bytes at a time
        self.sizes = dense.Sizes(n, sizes, wgmma=hopper)
        self.largest = cp.zeros(1, np.uint32)
        for name in ("gradients", "examples", "forward_parts"):  # before all others: they take longest to compile
            self.sizes.kernel(name, self.precision)

    def __call__(self, x, labels, losses, step):
        shape, layers = x.array.shape, [(at.W, at.b, at.dW, at.db) for at in self.linear]
        wants_dx = self.linear[0].wants_dx  # so kernels of layers are between the weights' update and these
        labels, x_rows = as_labels(labels), x.array.reshape(len(x.array), -1)
        parts, kept = dense.forward(self.sizes, layers, x_rows, self.precision, early=wants_dx)
        row_losses = dense.examples(kept, parts, labels, self.precision, self.largest)
        del parts
        dx = dense.gradients(kept, row_losses, losses, step, wants_dx, self.precision, self.largest)
        return None if dx is None else Value(dx.reshape(shape), "nchw", shape[1], self.largest)


def head(bound, n, mode):
    """Return how many of the last layers are a head, and the `Head`; 0 and None where there is none.

    The loss has to be softmax cross-entropy of their outputs.
    """
    first = len(bound)
    linear: list = []
    while first and type(bound[first - 1].layer) is Linear:
        linear.insert(0, bound[first - 1])
        first -= 1
        if first < 2 or type(bound[first - 1].layer) is not ReLU or type(bound[first - 2].layer) is not Linear:
            break
        first -= 1
    sizes = [linear[0].W.shape[0], *(at.W.shape[1] for at in linear)] if linear else []
    if not linear or linear[0].W.dtype != "float32" or dense.why_not(sizes):
        return 0, None
    first -= first > 0 and type(bound[first - 1].layer) is Flatten
    return len(bound) - first, Head(linear, n, mode)
