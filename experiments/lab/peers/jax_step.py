"""JAX, a jitted step: XLA compiles gather, network, loss, gradients and update into one program, which Python starts.

Its buffers are donated: the step writes the new weights where the old ones were. The images are on the device as
float32; uint8 is as fast. The labels' logits are picked by comparison, whose gradient is elementwise; a gather's is a
scatter, which takes longer. Without precision="highest", matrix products would be of TF32 on a GPU.

Images lie channels last, and a max pool whose windows lie side by side has a gradient of its own: that of
`reduce_window` is a scatter. On an H200 (JAX 0.11.2, a scan, batch 128) the step of the 896,522-parameter network takes
472 us so, and 195 in bf16; 528 to 581 and 281 with channels first and `reduce_window`.

What counts here is the way to the GPU, not the arithmetic: on an H200 a step of SGD took 58 to 76 us at batch 128, and
94 at batch 64, each in a process of its own, while the two programs have 36 and 34 parts, and the scan's steps of the
same arithmetic take 47 and 40. What of XLA's way to start a program takes longer at 64 we have not found out.
"""

import os
from functools import partial, reduce

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of the GPU at its first array

import jax
import jax.numpy as jnp
import numpy as np

from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual


def prepare(problem):
    data, state = put(problem), start(problem)
    step = make_step(problem.recipe, "highest")
    row, losses = jnp.zeros((), jnp.int32), jnp.zeros(len(problem.rows()))  # of the next batch; each row's latest

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def take(state, row, losses, X, y, rows):
        state, loss = step(state, X, y, rows[row])
        return state, (row + 1) % len(rows), losses.at[row].set(loss)

    def steps(n):
        longest = len(losses)
        counts = [longest] * (n // longest) + [n % longest] * (n % longest > 0)
        return np.concatenate([steps_of_an_epoch(count) for count in counts])

    def steps_of_an_epoch(count):
        nonlocal state, row, losses
        for _ in range(count):
            state, row, losses = take(state, row, losses, *data)
        jax.block_until_ready(state)
        return np.roll(losses, -int(row))[-count:]  # the oldest first

    return steps


def put(problem):
    """Return images (channels last) or rows, labels, and the rows of batches, on the device."""
    X = np.moveaxis(problem.X, 1, -1) if problem.X.ndim == 4 else problem.X
    return jnp.asarray(X), jnp.asarray(problem.y, jnp.int32), jnp.asarray(problem.rows(), jnp.int32)


def start(problem):
    """Return what training changes: the network, a list of arrays, and for Adam its moments and its count."""
    network = [jnp.array(array) for array in problem.parameters.values()]
    if problem.recipe.optimizer == "sgd":
        return (network,)
    m, v = (jax.tree.map(jnp.zeros_like, network) for _ in "mv")
    return network, m, v, jnp.zeros((), jnp.int32)


def make_step(recipe, precision):
    """Return the function (state, X, y, index, rate) -> (state, loss); without a rate, the recipe's is taken."""
    value_and_grad = jax.value_and_grad(partial(loss_of, recipe.model.layers, precision))
    update = sgd if recipe.optimizer == "sgd" else partial(adam, recipe.weight_decay)  # AdamW's, which shrinks weights

    def step(state, X, y, index, rate=recipe.lr):
        loss, gradients = value_and_grad(state[0], X[index], y[index])
        return update(rate, gradients, *state), loss

    return step


def loss_of(layers, precision, network, x, labels):
    x = through(layers, iter(network), precision, x)
    is_label = labels[:, None] == jnp.arange(x.shape[1])
    return jnp.mean(jax.nn.logsumexp(x, axis=1) - jnp.sum(x * is_label, axis=1))


def through(layers, arrays, precision, x):
    """Return the output of the layers, which take their parameters from `arrays`, one after another."""
    for layer in layers:
        x = APPLY[type(layer)](layer, arrays, precision, x)
    return x


def linear(layer, arrays, precision, x):
    W, b = next(arrays), next(arrays)
    return jnp.matmul(x, W, precision=precision) + b


def conv(layer, arrays, precision, x):
    W, settings = next(arrays), ((layer.stride,) * 2, ((layer.padding,) * 2,) * 2, None, None, ("NHWC", "OIHW", "NHWC"))
    precision = "highest" if precision == TF32X3 else precision  # a convolution knows none of the two names
    if precision == BF16:
        y = jax.lax.conv_general_dilated(x.astype(jnp.bfloat16), W.astype(jnp.bfloat16), *settings)
        y = y.astype(jnp.float32)
    else:
        y = jax.lax.conv_general_dilated(x, W, *settings, precision=precision)
    return y + next(arrays) if layer.bias else y


def max_pool(layer, arrays, precision, x):
    size, stride = layer.size, layer.stride or layer.size
    if size == stride:
        return side_by_side(size, x)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, size, size, 1), (1, stride, stride, 1), "VALID")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def side_by_side(size, x):
    """Return the largest number of each window of size x size pixels; its gradient goes to the first such pixel."""
    return side_by_side_forward(size, x)[0]


def side_by_side_forward(size, x):
    height, width = (length // size * size for length in x.shape[1:3])
    pixels = [x[:, i:height:size, j:width:size] for i in range(size) for j in range(size)]  # of all windows
    y = reduce(jnp.maximum, pixels)
    first = jnp.full(y.shape, size**2 - 1, jnp.int8)
    for i in reversed(range(size**2 - 1)):
        first = jnp.where(pixels[i] == y, jnp.int8(i), first)
    return y, (first, x.shape)


def side_by_side_backward(size, kept, dy):
    first, shape = kept
    n, height, width, channels = dy.shape
    pixels = [jnp.where(first == i, dy, 0) for i in range(size**2)]
    lines = [jnp.stack(pixels[i : i + size], 3) for i in range(0, size**2, size)]
    lines = [line.reshape(n, height, width * size, channels) for line in lines]
    dx = jnp.stack(lines, 2).reshape(n, height * size, width * size, channels)
    return (jnp.pad(dx, [(0, whole - part) for whole, part in zip(shape, dx.shape, strict=True)]),)


side_by_side.defvjp(side_by_side_forward, side_by_side_backward)


def batch_norm(layer, arrays, precision, x):
    """By the batch's statistics; running averages, which training does not read, are left out."""
    gamma, beta = next(arrays), next(arrays)
    axes = tuple(range(x.ndim - 1))
    mean, variance = x.mean(axes), x.var(axes)
    return gamma * (x - mean) * jax.lax.rsqrt(variance + layer.eps) + beta


def flatten(layer, arrays, precision, x):
    """In the workbook's order, channels first."""
    return (jnp.moveaxis(x, -1, 1) if x.ndim == 4 else x).reshape(len(x), -1)


def residual(layer, arrays, precision, x):
    return through(layer.layers, arrays, precision, x) + through(layer.shortcut, arrays, precision, x)


BF16, TF32X3 = "BF16_BF16_F32", "TF32_TF32_F32_X3"
APPLY = {
    Linear: linear,
    Conv: conv,
    MaxPool: max_pool,
    BatchNorm: batch_norm,
    Residual: residual,
    ReLU: lambda layer, arrays, precision, x: jax.nn.relu(x),
    Flatten: flatten,
}


def sgd(lr, gradients, network):
    return (jax.tree.map(lambda p, g: p - lr * g, network, gradients),)


def adam(decay, lr, gradients, network, m, v, t, beta1=0.9, beta2=0.999, eps=1e-8):
    t = t + 1
    m = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, m, gradients)
    v = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, v, gradients)
    c1, c2 = (-jnp.expm1(t * np.log(beta).astype(np.float32)) for beta in (beta1, beta2))  # 1 - beta**t
    network = [(1 - lr * decay) * p if decay and p.ndim > 1 else p for p in network]
    network = jax.tree.map(lambda p, m, v: p - lr * (m / c1) / (jnp.sqrt(v / c2) + eps), network, m, v)
    return network, m, v, t
