"""JAX, jitted, channels last: a call at a time, and a loop over batches that is one program.

The GPU's time is that of the loop, where a batch follows the other without Python: a call at a time takes longer.
"""

import os
import time
from types import SimpleNamespace

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of the GPU at its first array

import jax
import jax.numpy as jnp
import numpy as np

from . import Way, each_array, through


def ways(task, n, precision):
    """Yield the one way."""
    dtype = jnp.bfloat16 if precision == "bf16" else jnp.float32
    name = {"float32": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16"}[precision]

    def precisely(function):
        """JAX looks at each call which precision is asked for, and compiles anew for another one."""

        def call(*arguments):
            with jax.default_matmul_precision(name):
                return jax.block_until_ready(function(*arguments))

        return call

    places = task.places()
    each_array(places, lambda array: jnp.asarray(array, dtype))

    @jax.jit
    def forward(x):
        x = x.reshape(-1, *(task.x.shape[2:] + task.x.shape[1:2])).astype(dtype) / 255
        return through(places, OPERATIONS, x).astype(jnp.float32)

    answer, loop = precisely(forward), precisely(jax.jit(lambda xs: jax.lax.map(forward, xs)))
    answer(task.x[:n])
    loops: dict = {}

    def device_us(times):
        if times not in loops:
            loops[times] = jnp.asarray(np.stack([np.roll(task.x[:n], i, 0) for i in range(times)]))
            loop(loops[times])
        start = time.perf_counter()
        loop(loops[times])
        return (time.perf_counter() - start) / times * 1e6

    device_us(20)
    yield Way("loop", device_us, lambda x: np.asarray(answer(x)))


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
