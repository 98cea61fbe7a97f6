"""JAX, a scan over steps: `lax.scan` is the loop over the batches, eight of them unrolled, on the device.

Eight are fastest, on an H200: a step takes 16 % longer with one, 6 % longer with four, 3 % longer with 16. The gather
of each batch is inside; to gather all of them before the loop is no faster. Each number of steps is a program of its
own. Data and step: as in `jax_step`.

XLA's own settings are left alone, as none of these was better than the 46 us a step without them (JAX 0.11.2 on an
H200, SGD, batch 128, all in one run). xla_gpu_enable_command_buffer=+WHILE, the loop itself in a CUDA graph: 55 us with
eight unrolled, 341 us with one. All kinds of commands in graphs, and xla_gpu_graph_min_graph_size=1: 47 us. No graphs
at all: 124 us. cuBLAS in place of XLA's own products, xla_gpu_enable_triton_gemm=false: 78 us.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from .jax_step import make_step, put, start


def prepare(problem, precision="highest"):
    return scan(make_step(problem.recipe, precision), start(problem), *put(problem))


def scan(step, state, X, y, rows):
    """Return steps(n): it takes the next n of the steps that `rows` names, round and round, and returns the losses."""
    first = 0

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def run(n, state, first, X, y, rows):
        indices = rows[(first + jnp.arange(n)) % len(rows)]
        return jax.lax.scan(lambda state, index: step(state, X, y, index), state, indices, unroll=8)

    def steps(n):
        nonlocal state, first
        state, losses = jax.block_until_ready(run(n, state, first, X, y, rows))
        first = (first + n) % len(rows)
        return np.asarray(losses)

    return steps
