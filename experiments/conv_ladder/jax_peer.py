"""JAX's convolutions, timed in this process: prints its runs as JSON.

At its best: XLA times its kernels as it compiles; both layouts. A program does a pass many times: each writes one
number of its result into its operand, so that none can be left out or moved. Programs are asked for without a pause,
and the host's clock is read. So a sample also holds, for each pass, the kernel that writes this number, and launches
where the host is slower than the GPU: it is what JAX takes at most. Nothing is subtracted: such times do not add up.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from . import asked

PASSES_A_PROGRAM = 32
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


def repeated(call, a, b):
    """Return the first operand after so many passes."""
    for _ in range(PASSES_A_PROGRAM):
        y = call(a, b)
        a = a.at[0, 0, 0, 0].set((y[0, 0, 0, 0] > 0).astype(a.dtype))
    return a


def compiled(case, a, b):
    """Return a pass and the program of many, compiled; this one takes over its first operand."""
    import jax

    call = operation(case.shape, case.which, case.precision, case.layout)
    many = jax.jit(partial(repeated, call), donate_argnums=0)
    return [each.lower(a, b).compile() for each in (jax.jit(call), many)]


def measured(case, programs, a, b, samples, sample_ms):
    """Return a case's error, and the microseconds of a pass, each of many that are asked for without a pause."""
    program, many = programs
    found = np.asarray(program(a, b).astype("float32"))
    if case.layout == "nhwc":
        found = found.transpose((3, 2, 0, 1) if case.which == "weight_gradient" else (0, 3, 1, 2))
    a = many(a, b)
    us, a = _waited_us(many, a, b, 1)
    times, found_us = int(max(2, sample_ms * 1e3 / us)), []
    for _ in range(samples):
        us, a = _waited_us(many, a, b, times)
        found_us.append(us / (times * PASSES_A_PROGRAM))
    return {"error": case.error(found), "calls": times * PASSES_A_PROGRAM, "samples_us": found_us}


def _waited_us(program, a, b, times):
    a.block_until_ready()
    start = time.perf_counter()
    for _ in range(times):
        a = program(a, b)
    a.block_until_ready()
    return (time.perf_counter() - start) * 1e6, a


def main():
    options, cases = asked.read()
    import jax

    until = time.perf_counter() + options.seconds

    def make(case, arrays):
        return None if time.perf_counter() > until else (compiled(case, *arrays), *arrays)

    with ThreadPoolExecutor(COMPILERS) as pool:
        futures = [pool.submit(make, case, arrays_of(case)) for case in cases]
    runs = []
    for case, made in zip(cases, [future.result() for future in futures], strict=True):
        if made:
            programs, a, b = made
            runs.append(case.run("jax", **measured(case, programs, a, b, options.samples, 20 * options.sample_ms)))
    asked.answer({"jax": jax.__version__}, runs)


if __name__ == "__main__":
    main()
