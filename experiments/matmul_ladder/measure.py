"""How the record "matmul_ladder" is made: rungs, others and cuBLAS in turns, the GPU's limits, layers, transposes."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain

import numpy as np

from experiments.lab import clock, results
from mlpkit import engines, kernels

from .others import OTHERS, available, loop_cost, numba_ptx, triton
from .rungs import ERRORS, RUNGS, cublas, fitting, occupancy, prepare

COPIED = 2**30  # bytes of an array whose copy is timed: far more than caches hold
TRANSPOSES: dict[str, tuple[str, dict[str, int]]] = {
    "direct": ("direct", {}),
    "tiled, rows of 32": ("tiled", {"PAD": 0}),
    "tiled, rows of 33": ("tiled", {"PAD": 1}),
}


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each rung at each size, taken in turns, each of calls that fill `sample_ms`.

    most_calls: of a sample. patience_ms: a rung that takes longer for one call is not measured at that size. shapes,
    cubes: the sizes, those of layers and those with m = n = k. fused: sizes of layers with bias and ReLU. transposed:
    rows and columns of the matrix to transpose.
    """

    samples: int = 9
    sample_ms: float = 10.0
    most_calls: int = 100
    patience_ms: float = 300.0
    shapes: tuple[tuple[int, int, int], ...] = ((128, 128, 784), (784, 128, 128), (2048, 128, 784))  # m, n, k
    cubes: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    fused: tuple[tuple[int, int, int], ...] = ((128, 128, 784), (4096, 4096, 4096))
    transposed: int = 8192


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure everything on this machine's GPU, and return the record.

    Raises `engines.EngineUnavailable` where there is no GPU, AssertionError where a product or a transpose is wrong.
    """
    engines.load("cupy_naive")  # or why there is none
    import cupy

    versions = {"cupy": cupy.__version__, "nvrtc": cupy.cuda.nvrtc.getVersion()}
    versions |= {name: version(name) for name in ("numba", "numba-cuda", "triton") if find_spec(name.replace("-", "_"))}
    versions["cublas"] = cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    record = results.new("matmul_ladder", plan=asdict(plan), versions=versions)
    parts = (_resources, _limits, _products, _loops, _layers, _transposes, _limits)  # limits: before and after
    return results.collect(record, chain.from_iterable(part(plan, progress) for part in parts), save)


def _resources(plan, progress):
    for name, rung in fitting(RUNGS, progress).items():
        progress(f"compiling {name}")
        yield {"kind": "resources", "rung": name} | occupancy(rung)


def _limits(plan, progress):
    progress("multiply-adds and a copy")
    calls, work, moved = limits()
    samples = _in_turns(calls, plan)
    yield {"kind": "peak", "samples_gflops": [work / us / 1e3 for us in samples["multiply_adds"]]}
    yield {"kind": "copy", "bytes": moved, "samples_gbps": [moved / us / 1e3 for us in samples["copy"]]}


def limits(steps=20_000):
    """Return functions by name that run at each limit of the GPU, the operations of one, and the bytes of the other."""
    import cupy

    module = kernels.load("roofs")
    blocks = cupy.cuda.runtime.getDeviceProperties(0)["multiProcessorCount"] * 8
    out = cupy.empty((blocks, 256), np.float32)
    source, target = cupy.ones(COPIED // 4, np.float32), cupy.empty(COPIED // 4, np.float32)
    adds, copy = module.get_function("multiply_adds"), module.get_function("copy")
    calls = {
        "multiply_adds": lambda: adds((blocks,), (256,), (out, np.int32(steps), np.float32(0.5))),
        "copy": lambda: copy((blocks,), (256,), (source, target, np.uint64(COPIED // 16))),
    }
    return calls, 2 * 32 * steps * out.size, 2 * COPIED


def _products(plan, progress):
    available(OTHERS, progress)
    shapes = [("layer", shape) for shape in plan.shapes] + [("cube", (size,) * 3) for size in plan.cubes]
    for group, (m, n, k) in shapes:
        progress(f"{m} x {k} times {k} x {n}")
        for name, found in rates((m, n, k), plan).items():
            yield {"kind": "product", "group": group, "m": m, "n": n, "k": k, "way": name} | found


def rates(shape, plan=USUAL, rungs=None, others=None):
    """Return microseconds a call, a list of samples, and the error: of rungs, of others, of cuBLAS in each precision.

    rungs, others: by name; those that fit on this GPU where they are None. Raises AssertionError where a product is
    wrong. Functions of one size are timed in turns.
    """
    a, b = _matrices(*shape)
    rungs = fitting(RUNGS, lambda reason: None) if rungs is None else rungs
    others = available(OTHERS, lambda reason: None) if others is None else others
    variants = {f"cublas_{precision}": (precision, partial(cublas, precision)) for precision in ERRORS}
    variants |= {name: (rung.precision, partial(prepare, rung)) for name, rung in rungs.items()}
    variants |= {name: (other.precision, other.prepare) for name, other in others.items()}
    ready = {name: (precision, *prepared(a, b)) for name, (precision, prepared) in variants.items()}
    return _gated(ready, a.astype(np.float64) @ b.astype(np.float64), plan)


def _matrices(m, n, k):
    import cupy

    rng = cupy.random.default_rng(0)
    return [rng.random(size, np.float32) - np.float32(0.5) for size in ((m, k), (k, n))]


def _gated(ready, wanted, plan):
    """Return samples and error of each function that is right and not too slow; ready[name]: precision, call, array."""
    import cupy

    calls: dict[str, Callable] = {}
    errors: dict[str, float] = {}
    for name, (precision, call, c) in ready.items():
        c.fill(np.nan)
        if clock.device_us(call) > plan.patience_ms * 1e3:
            continue
        errors[name] = float(cupy.linalg.norm(c - wanted) / cupy.linalg.norm(wanted))
        if not errors[name] < ERRORS[precision]:  # nor where it is NaN
            raise AssertionError(f"{name} is off by {errors[name]:.1e} of the result's norm, {wanted.shape}")
        calls[name] = call
    samples = _in_turns(calls, plan)
    return {name: {"error": errors[name], "samples_us": samples[name]} for name in calls}


def _loops(plan, progress):
    """Yield how many instructions a multiply-add takes in the loops of three rungs, in CUDA C and in Numba's Python."""
    progress("the compilers' loops")
    for name, other in available(OTHERS, lambda reason: None).items():
        if other.function:
            yield {"kind": "loop", "way": other.function, "cost": loop_cost(kernels.ptx(RUNGS[other.function].file))}
            yield {"kind": "loop", "way": name, "cost": loop_cost(numba_ptx(other.function))}


def _layers(plan, progress):
    """Yield what a layer max(a b + bias, 0) takes in bfloat16: a product and a pass over its result, or one kernel."""
    import cupy

    finish = cupy.ElementwiseKernel("float32 bias", "float32 c", "c = max(c + bias, 0.0f)")

    def in_two(product, bias, c):
        product()
        finish(bias, c)

    for m, n, k in plan.fused:
        progress(f"a layer, {m} x {k} times {k} x {n}")
        a, b = _matrices(m, n, k)
        bias = cupy.linspace(-1, 1, n, dtype=np.float32)
        product, c = cublas("bf16", a, b)
        ready = {"cublas_bf16 and a pass": ("bf16", partial(in_two, product, bias, c), c)}
        if available(OTHERS, lambda reason: None).keys() >= {"triton"}:
            product, c = triton(a, b)
            ready["triton and a pass"] = "bf16", partial(in_two, product, bias, c), c
            ready["triton, one kernel"] = "bf16", *triton(a, b, bias)
        wanted = cupy.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
        for variant, found in _gated(ready, wanted, plan).items():
            yield {"kind": "fused", "m": m, "n": n, "k": k, "way": variant} | found


def _in_turns(calls, plan):
    """Return microseconds a call for each of the functions, given by name: a list of samples each."""
    once = {name: min(clock.device_us(call, 2) for _ in range(2)) for name, call in calls.items()}
    times = {name: clock.steps_in(plan.sample_ms / 1e3, us / 1e6, plan.most_calls) for name, us in once.items()}
    samples = {name: partial(clock.device_us, call, times[name]) for name, call in calls.items()}
    return {name: np.round(us, 3).tolist() for name, us in clock.in_turns(samples, plan.samples).items()}


def _transposes(plan, progress):
    import cupy

    size = plan.transposed
    progress(f"transposes of {size} x {size}")
    source = cupy.random.default_rng(0).random((size, size), np.float32)
    calls = {}
    for name, (kernel, macros) in TRANSPOSES.items():
        out = cupy.empty_like(source)
        calls[name] = partial(transpose, source, out, kernel, **macros)
        calls[name]()
        if not (out == source.T).all():
            raise AssertionError(f"the transpose {name} is wrong")
    for name, samples in _in_turns(calls, plan).items():
        moved = 2 * source.nbytes
        yield {"kind": "transpose", "way": name, "bytes": moved, "samples_gbps": [moved / us / 1e3 for us in samples]}


def transpose(a, out, kernel="tiled", **macros):
    """Write the transpose of a (rows, columns) into out (columns, rows), by a kernel of `transpose.cu`."""
    rows, columns = a.shape
    blocks = -(-columns // 32), -(-rows // 32)
    launch = kernels.load("transpose", **macros).get_function(kernel)
    launch(blocks, (32, 8), (a, out, np.int32(rows), np.int32(columns)))
