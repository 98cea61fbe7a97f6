"""JAX's convolutions, timed in this process: prints its runs as JSON.

At its best: XLA times its kernels as it compiles; both layouts. A pass stands in a loop inside one program, several
times in the loop's body: each writes one number of its result into its operand, so that none can be left out or moved.
What the loop takes without the pass is measured too.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from . import asked

UNROLLED = 8
COMPILERS = 12  # threads; XLA lets one of them at a time on the GPU, to choose kernels


def operation(shape, which, precision, layout):
    """Return a function of two arrays, in a layout, that returns a pass's result."""
    import jax
    from jax import lax

    names = ("NHWC", "HWIO", "NHWC") if layout == "nhwc" else ("NCHW", "OIHW", "NCHW")
    kind = jax.numpy.bfloat16 if precision == "bf16" else jax.numpy.float32

    def convolution(x, w):
        return lax.conv_general_dilated(
            x,
            w,
            (shape.stride,) * 2,
            [(shape.padding,) * 2] * 2,
            dimension_numbers=names,
            precision="highest" if precision == "float32" else "default",
        )

    def like(shape, order):
        n, c, h, w = shape
        return jax.ShapeDtypeStruct({"N": (n, h, w, c), "O": (h, w, c, n)}[order] if layout == "nhwc" else shape, kind)

    if which == "forward":
        return convolution
    if which == "input_gradient":
        return lambda dy, w: jax.linear_transpose(lambda x: convolution(x, w), like(shape.x, "N"))(dy)[0]
    return lambda x, dy: jax.linear_transpose(lambda w: convolution(x, w), like(shape.w, "O"))(dy)[0]


def arrays_of(case):
    """Return a pass's operands on the GPU, in their layout and type."""
    import jax.numpy as jnp

    kind = jnp.bfloat16 if case.precision == "bf16" else jnp.float32
    return [jnp.asarray(each).astype(kind) for each in _ordered(case)]


def _ordered(case):
    if case.layout == "nchw":
        return case.arrays()[:2]
    second = (0, 2, 3, 1) if case.which == "weight_gradient" else (2, 3, 1, 0)
    axes = (0, 2, 3, 1), second
    return [each.transpose(order) for each, order in zip(case.arrays()[:2], axes, strict=True)]


def loop(call, times, a, b):
    """Return one number after so many rounds of the loop."""
    import jax.numpy as jnp
    from jax import lax

    def body(_, a):
        for _ in range(UNROLLED):
            y = call(a, b)
            a = a.at[0, 0, 0, 0].set((y[0, 0, 0, 0] > 0).astype(a.dtype))
        return a

    return lax.fori_loop(0, times, body, a)[0, 0, 0, 0].astype(jnp.float32)


def nothing(a, b):
    """Stand for a pass that takes no time."""
    return a[:1, :1, :1, :1] + 1


def compiled(case, rounds, a, b):
    """Return a pass and the loop of it, compiled."""
    import jax

    call = operation(case.shape, case.which, case.precision, case.layout)
    return [jax.jit(each).lower(a, b).compile() for each in (call, partial(loop, call, rounds))]


def empty_loop_us(samples, rounds=100):
    """Return the samples of a loop without a pass, for each time that one would be in it."""
    import jax
    import jax.numpy as jnp

    a = jnp.ones((64, 64, 64, 64))
    program = jax.jit(partial(loop, nothing, rounds)).lower(a, a).compile()
    program(a, a).block_until_ready()
    return [_waited_us(program, a, a) / (rounds * UNROLLED) for _ in range(samples)]


def rounds_of(case, sample_ms):
    """Return how many rounds of the loop take about so long, where the chip is half as fast as it can be."""
    us = case.shape.flops / (25e6 if case.precision == "float32" else 150e6) + 10
    return max(2, int(sample_ms * 1e3 / us) // UNROLLED)


def measured(case, rounds, programs, a, b, samples):
    """Return a case's error, and samples of the loop."""
    program, whole = programs
    found = np.asarray(program(a, b).astype("float32"))
    if case.layout == "nhwc":
        found = found.transpose((3, 2, 0, 1) if case.which == "weight_gradient" else (0, 3, 1, 2))
    whole(a, b).block_until_ready()
    calls = rounds * UNROLLED
    times = [_waited_us(whole, a, b) / calls for _ in range(samples)]
    return {"error": case.error(found), "calls": calls, "samples_us": times}


def _waited_us(program, a, b):
    start = time.perf_counter()
    program(a, b).block_until_ready()
    return (time.perf_counter() - start) * 1e6


def main():
    options, cases = asked.read()
    import jax

    until = time.perf_counter() + options.seconds

    def make(case, arrays):
        if time.perf_counter() > until:
            return None
        rounds = rounds_of(case, options.sample_ms)
        return rounds, compiled(case, rounds, *arrays), *arrays

    with ThreadPoolExecutor(COMPILERS) as pool:
        futures = [pool.submit(make, case, arrays_of(case)) for case in cases]
    empty, runs = empty_loop_us(options.samples), []
    for case, made in zip(cases, [future.result() for future in futures], strict=True):
        if made:
            rounds, programs, a, b = made
            found = measured(case, rounds, programs, a, b, options.samples)
            runs.append(case.run("jax", **found, loop_us=empty))
    asked.answer({"jax": jax.__version__}, runs)


if __name__ == "__main__":
    main()
