"""JAX, compiled, channels last: a call at a time, and loops over batches, each of which is one program.

The GPU's time for a batch is by how much longer a loop over more of them takes: what it costs to ask for a program and
to wait for it, some hundred microseconds, is in both. A product goes ahead of each loop, so that the GPU has something
to do until all of the loop has been asked for, as with the others: see `clock.device_us`. Of few images it takes longer
to ask for a batch (40 us) than to answer it, and a stream holds some thousand kernels that wait; so their loops are
short, and medians of many stand against the clock's scatter.
"""

import os
import time
from functools import cache, partial
from statistics import median
from types import SimpleNamespace

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of the GPU at its first array

import jax
import jax.numpy as jnp
import numpy as np

from . import TIMES, Variant, each_array, through

SIDE = 4096  # of the matrices that keep the GPU busy, for some milliseconds
FEW = 256  # images
TAKES = 15  # loops of each length in a sample, of few images


def variants(task, n, precision):
    """Yield the one way."""
    dtype = jnp.bfloat16 if precision == "bf16" else jnp.float32
    name = {"float32": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16"}[precision]

    def compiled(function, *examples):
        with jax.default_matmul_precision(name):  # what is compiled keeps it; `jit` looks again at each call
            return jax.jit(function).lower(*examples).compile()

    bound_layers = task.bound_layers()
    each_array(bound_layers, lambda array: jnp.asarray(array, dtype))

    def forward(x):
        x = x.reshape(-1, *(task.x.shape[2:] + task.x.shape[1:2])).astype(dtype) / 255
        return through(bound_layers, OPERATIONS, x).astype(jnp.float32)

    predict = compiled(forward, task.x[:n])
    matrix = jnp.ones((SIDE, SIDE))
    product = jax.jit(lambda a: jnp.matmul(jnp.matmul(a, a, precision="highest"), a, precision="highest"))

    @cache
    def loop(times):
        xs = jnp.asarray(np.stack([np.roll(task.x[:n], i, 0) for i in range(times)]))
        return partial(compiled(lambda xs: jax.lax.map(forward, xs), xs), xs)

    def seconds(times):
        start = time.perf_counter()
        product(matrix)
        jax.block_until_ready(loop(times)())
        return time.perf_counter() - start

    def device_us(times):
        short, long, takes = (times // 2, 2 * times, TAKES) if n < FEW else (times, 3 * times, 1)
        more = [median(seconds(batches) for _ in range(takes)) for batches in (long, short)]
        return (more[0] - more[1]) / (long - short) * 1e6

    device_us(TIMES)
    yield Variant("loop", device_us, lambda x: np.asarray(predict(x)))


def conv(at, x):
    W, padding = at.W, ((at.layer.padding,) * 2,) * 2
    order = ("NHWC", "OIHW", "NHWC")
    return jax.lax.conv_general_dilated(x, W, (at.layer.stride,) * 2, padding, dimension_numbers=order) + at.b


def max_pool(at, x):
    size, stride = at.layer.size, at.layer.stride or at.layer.size
    return jax.lax.reduce_window(
        x, jnp.asarray(-jnp.inf, x.dtype), jax.lax.max, (1, size, size, 1), (1, stride, stride, 1), "VALID"
    )


OPERATIONS = SimpleNamespace(
    Conv=conv,
    Linear=lambda at, x: x @ at.W + at.b,
    ReLU=lambda at, x: jax.nn.relu(x),
    MaxPool=max_pool,
    Flatten=lambda at, x: x.reshape(len(x), -1),
)
