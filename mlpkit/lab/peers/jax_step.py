"""JAX, a jitted step: XLA compiles gather, network, loss, gradients and update into one program, which Python starts.

Its buffers are donated: the step writes the new weights where the old ones were. The images are on the device as
float32; uint8 is as fast. The labels' logits are picked by comparison, whose gradient is elementwise; a gather's is a
scatter, which takes longer. Without precision="highest", matrix products would be of TF32 on a GPU.

What counts here is the way to the GPU, not the arithmetic: on an H200 a step of SGD took 58 to 76 us at batch 128, and
94 at batch 64, each in a process of its own, while the two programs have 36 and 34 parts, and the scan's steps of the
same arithmetic take 47 and 40. What of XLA's way to start a program takes longer at 64 we have not found out.
"""

import os
from functools import partial

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
    """Return images, labels, and the rows of batches, on the device."""
    return jnp.asarray(problem.X), jnp.asarray(problem.y, jnp.int32), jnp.asarray(problem.rows(), jnp.int32)


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
    W, stride, padding = next(arrays), (layer.stride,) * 2, ((layer.padding,) * 2,) * 2
    if precision == BF16:  # a convolution knows no such name
        y = jax.lax.conv_general_dilated(x.astype(jnp.bfloat16), W.astype(jnp.bfloat16), stride, padding)
        y = y.astype(jnp.float32)
    else:
        y = jax.lax.conv_general_dilated(x, W, stride, padding, precision=precision)
    return y + next(arrays)[:, None, None] if layer.bias else y


def max_pool(layer, arrays, precision, x):
    window, stride = (1, 1, layer.size, layer.size), (1, 1, *(layer.stride or layer.size,) * 2)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, stride, "VALID")


def batch_norm(layer, arrays, precision, x):
    """By the batch's statistics; running averages, which training does not read, are left out."""
    gamma, beta = (next(arrays).reshape(1, -1, *[1] * (x.ndim - 2)) for _ in range(2))
    axes = (0, *range(2, x.ndim))
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return gamma * (x - mean) * jax.lax.rsqrt(variance + layer.eps) + beta


BF16 = "BF16_BF16_F32"
APPLY = {
    Linear: linear,
    Conv: conv,
    MaxPool: max_pool,
    BatchNorm: batch_norm,
    Residual: lambda layer, arrays, precision, x: x + through(layer.layers, arrays, precision, x),
    ReLU: lambda layer, arrays, precision, x: jax.nn.relu(x),
    Flatten: lambda layer, arrays, precision, x: x.reshape(len(x), -1),
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
