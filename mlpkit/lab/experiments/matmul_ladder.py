"""One matrix product on the GPU in nine ways, from a loop in each thread to the tensor cores, and what each is worth.

A `Rung` is a file of `kernels/` and how to launch it: c (m, n) = a (m, k) b (k, n), all float32 and stored by rows; two
rungs round a and b on the way. The record "matmul_ladder" holds what the rungs do at several sizes beside cuBLAS,
NVIDIA's own library, and the two limits that all of them run into. `resources` needs no GPU.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain

import numpy as np

from mlpkit import kernels
from mlpkit.kernels import gpu
from mlpkit.lab import results

ARCHITECTURES = ("sm_80", "sm_90")  # the oldest chips that the kernels run on, and those of the records
ERRORS = {"float32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}  # how far off a product may be, as a part of its norm
MOST_BLOCKS = 65535  # in y
COPIED = 2**30  # bytes of an array whose copy is timed: far more than caches hold


# The rungs


@dataclass(frozen=True)
class Rung:
    """A kernel and how to launch it.

    tile: rows and columns of c that a block computes. threads: of a block. grid: how the blocks are numbered, "nm"
    along n in x and along m in y, "mn" the other way, "1" all in x. shared: bytes of shared memory that a block is
    given at its launch. reuse: rows and columns for which a number is fetched once, where that is not the tile.
    """

    label: str
    file: str
    tile: tuple[int, int]
    threads: tuple[int, ...]
    grid: str = "nm"
    shared: int = 0
    precision: str = "float32"
    macros: tuple[tuple[str, int], ...] = ()
    reuse: tuple[int, int] | None = None

    def blocks(self, m, n):
        """Return the number of blocks in x and in y."""
        down, across = (-(-size // edge) for size, edge in zip((m, n), self.tile, strict=True))
        return {"nm": (across, down), "mn": (down, across), "1": (down * across,)}[self.grid]

    def fetched_bytes(self, m, n, k):
        """Return the bytes that are asked of caches and memory: a number counts each time that it is fetched."""
        rows, columns = self.reuse or self.tile
        tiles = -(-m // rows) * -(-n // columns)
        return tiles * (rows + columns) * k * (2 if self.precision == "bf16" else 4)

    @property
    def threads_a_block(self):
        """The number of threads of a block, in all of its dimensions."""
        return int(np.prod(self.threads))


def _ring(stages, size, a, b):
    """Return the bytes of a ring of tiles, of so many numbers of a and of b each."""
    return stages * size * (a + b)


RUNGS = {
    "naive": Rung("a thread a number", "matmul_1_naive", (32, 32), (32, 32), grid="mn", reuse=(1, 1)),
    "coalesced": Rung("neighbours side by side", "matmul_2_coalesced", (32, 32), (32, 32), reuse=(1, 1)),
    "shared": Rung("tiles in shared memory", "matmul_3_shared", (32, 32), (32, 32)),
    "registers": Rung("tiles in registers", "matmul_4_registers", (128, 128), (256,)),
    "vectors": Rung("four numbers a load", "matmul_5_vectors", (128, 128), (256,)),
    "pipelined": Rung(
        "copies on their way",
        "matmul_6_pipelined",
        (128, 256),
        (256,),
        "1",
        _ring(5, 4, 8 * (128 + 4), 8 * 256),
    ),
    "tf32": Rung(
        "tensor cores, TF32",
        "matmul_7_tf32",
        (128, 256),
        (256,),
        "1",
        _ring(5, 4, 128 * (16 + 4), 16 * (256 + 8)),
        "tf32",
    ),
    "bf16": Rung(
        "tensor cores, bfloat16",
        "matmul_8_bf16",
        (128, 256),
        (256,),
        "1",
        _ring(3, 2, 128 * (64 + 8), 64 * (256 + 8)),
        "bf16",
    ),
    "slices": Rung("a small c: slices of k", "matmul_9_slices", (8, 16), (512,)),
}


def matmul(name, a, b):
    """Return the product of two float32 CuPy arrays by a rung; arrays that are not stored by rows are copied first.

    Raises ValueError where the arrays are not matrices of float32 numbers that fit together, and where the rung does
    not fit on this GPU.
    """
    call, c = prepare(RUNGS[name], a, b)
    call()
    return c


def prepare(rung, a, b, out=None):
    """Return a function that launches the rung's kernel and nothing else, and the array (m, n) that it writes."""
    if reason := why_not(rung):
        raise ValueError(reason)
    import cupy

    if not (a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype == b.dtype == np.float32):
        raise ValueError(
            f"no product of {a.dtype} {a.shape} and {b.dtype} {b.shape}: float32 (m, k) and (k, n) needed."
        )
    if not (a.size and b.size):
        raise ValueError(f"no product of {a.shape} and {b.shape}: no number in them.")
    (m, k), n = a.shape, b.shape[1]
    a, b = (cupy.ascontiguousarray(array) for array in (a, b))
    if rung.precision == "bf16":
        a, b = round_rows(a), round_rows(b)
    c = cupy.empty((m, n), np.float32) if out is None else out
    kernel, blocks = _kernel(rung), rung.blocks(m, n)
    if max(blocks[1:], default=1) > MOST_BLOCKS:
        raise ValueError(
            f"{rung.file} can't multiply {(m, k)} and {(k, n)}: {blocks[1]} blocks in y, {MOST_BLOCKS} at most."
        )
    arguments = (a, b, c, *map(np.int32, (m, n, k)))
    return lambda: kernel(blocks, rung.threads, arguments, shared_mem=rung.shared), c


def why_not(rung):
    """Return why a rung cannot run on this GPU, a sentence, or None where it can."""
    if not rung.shared or rung.shared <= (most := _most_shared()):
        return None
    needed, most = -(-rung.shared // 1024), most // 1024  # KiB
    return f"{rung.file} does not fit on this GPU: its blocks need {needed} KiB of shared memory and may have {most}."


@cache
def _most_shared():
    """Return how many bytes of shared memory a block may have on this GPU."""
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(0)["sharedMemPerBlockOptin"]


def fitting(rungs, progress=print):
    """Return those of the rungs, given by name, that fit on this GPU. progress: is told why others don't."""
    reasons = {name: why_not(rung) for name, rung in rungs.items()}
    for reason in filter(None, reasons.values()):
        progress(reason)
    return {name: rung for name, rung in rungs.items() if not reasons[name]}


def round_rows(array, multiple=8):
    """Return a float32 matrix as bfloat16, the 16 bits of each as an integer, its rows filled up with zeros."""
    import cupy

    rows, columns = array.shape
    out = cupy.empty((rows, -(-columns // multiple) * multiple), np.uint16)
    kernel = kernels.load(RUNGS["bf16"].file).get_function("round_rows")
    kernel((min(4096, -(-out.size // 256)),), (256,), (array, out, np.int32(rows), np.int32(columns)))
    return out


@cache
def _kernel(rung):
    kernel = kernels.load(rung.file, **dict(rung.macros)).get_function("matmul")
    kernel.max_dynamic_shared_size_bytes = rung.shared  # more than 48 KiB has to be asked for
    return kernel


def cublas(precision, a, b):
    """Return a function that has cuBLAS multiply, and the array that it writes. a, b: as `prepare` gets them.

    precision: "float32", "tf32", or "bf16" for arrays that are rounded before.
    """
    import cupy
    from cupy.cuda import cublas as library

    (m, k), n = a.shape, b.shape[1]
    a, b = (cupy.ascontiguousarray(array) for array in (a, b))
    steps = k, n  # from a row to the next
    if precision == "bf16":
        a, b = round_rows(a), round_rows(b)
        steps = a.shape[1], b.shape[1]
    c = cupy.empty((m, n), np.float32)
    kind = {"float32": 0, "tf32": 0, "bf16": 14}[precision]  # CUDA_R_32F, CUDA_R_16BF
    compute = {"float32": 68, "tf32": 77, "bf16": 68}[precision]  # CUBLAS_COMPUTE_32F, .._32F_FAST_TF32
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    handle = cupy.cuda.device.get_cublas_handle()

    def call():  # cuBLAS stores by columns, which makes a row-wise c = a b the product of b and a
        library.setMathMode(handle, 0)
        library.gemmEx(
            *(handle, 0, 0, n, m, k, one.ctypes.data, b.data.ptr, kind, steps[1], a.data.ptr, kind, steps[0]),
            *(zero.ctypes.data, c.data.ptr, 0, n, compute, -1),
        )

    return call, c


# What a kernel takes


def flops(m, n, k):
    """Return the multiplications and additions of a product."""
    return 2 * m * n * k


def least_bytes(m, n, k):
    """Return the bytes of a, b and c: what has to come from memory, and go there, at least."""
    return 4 * (m * k + k * n + m * n)


def resources(rung, arch="sm_90"):
    """Return what a rung's kernel takes on a chip, by the compiler's account: no GPU is needed.

    shared_bytes: those of the launch, too. Raises FileNotFoundError where the assembler is not installed.
    """
    found = kernels.resources(rung.file, arch, **dict(rung.macros))["matmul"]
    return asdict(found) | {"shared_bytes": found.shared_bytes + rung.shared, "threads": rung.threads_a_block}


def occupancy(rung):
    """Return what the kernel takes on this GPU, how many blocks of it fit on a multiprocessor, and what part that is.

    The part is of the threads that a multiprocessor can hold.
    """
    import cupy

    kernel, threads = _kernel(rung), rung.threads_a_block
    blocks = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.kernel.ptr, threads, rung.shared)
    most = cupy.cuda.runtime.getDeviceProperties(0)["maxThreadsPerMultiProcessor"]
    return {
        "registers": kernel.num_regs,
        "shared_bytes": kernel.shared_size_bytes + rung.shared,
        "spilled_bytes": kernel.local_size_bytes,
        "threads": threads,
        "blocks": blocks,
        "occupancy": blocks * threads / most,
    }


# Measuring


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each rung at each size, taken in turns, each of calls that fill `sample_ms`.

    most_calls: of a sample. patience_ms: a rung that takes longer for one call is not measured at that size. shapes,
    cubes: the sizes, those of layers and those with m = n = k. transposed: rows and columns of the matrix to transpose.
    """

    samples: int = 9
    sample_ms: float = 10.0
    most_calls: int = 100
    patience_ms: float = 300.0
    shapes: tuple[tuple[int, int, int], ...] = ((128, 128, 784), (784, 128, 128), (2048, 128, 784))  # m, n, k
    cubes: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    transposed: int = 8192


USUAL = Plan()


def run(save=results.save, progress=print, plan=USUAL):
    """Measure everything on this machine's GPU, and return the record.

    save: is called with the record whenever something was added. progress: is called with what is being done, a text.
    Raises ValueError where there is no GPU, and AssertionError where a product or a transpose is wrong.
    """
    if reason := gpu.why_not():
        raise ValueError(f"the experiment matmul_ladder needs an NVIDIA GPU: {reason}.")
    import cupy

    versions = {"cupy": cupy.__version__, "nvrtc": cupy.cuda.nvrtc.getVersion()}
    versions["cublas"] = cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    record = results.new("matmul_ladder", plan=asdict(plan), versions=versions)
    parts = (_resources, _limits, _products, _transposes, _limits)  # limits: before and after
    return results.collect(record, chain.from_iterable(part(plan, progress) for part in parts), save)


def _resources(plan, progress):
    for name, rung in fitting(RUNGS, progress).items():
        progress(f"compiling {name}")
        yield {"kind": "resources", "rung": name} | occupancy(rung)


def _limits(plan, progress):
    progress("multiply-adds and a copy")
    calls, work, moved = limits()
    samples = in_turns(calls, plan)
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
    shapes = [("layer", shape) for shape in plan.shapes] + [("cube", (size,) * 3) for size in plan.cubes]
    for group, (m, n, k) in shapes:
        progress(f"{m} x {k} times {k} x {n}")
        for name, found in rates((m, n, k), plan).items():
            yield {"kind": "product", "group": group, "m": m, "n": n, "k": k, "way": name} | found


def rates(shape, plan=USUAL, rungs=None):
    """Return microseconds a call, a list of samples, and the error, for each rung and for cuBLAS in each precision.

    rungs: by name; those that fit on this GPU where it is None. Raises AssertionError where a product is wrong.
    Functions of one size are timed in turns.
    """
    import cupy

    m, n, k = shape
    rng = cupy.random.default_rng(0)
    a, b = (rng.random(size, np.float32) - np.float32(0.5) for size in ((m, k), (k, n)))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    norm = cupy.linalg.norm(wanted)
    calls: dict[str, Callable] = {}
    errors: dict[str, float] = {}
    rungs = fitting(RUNGS, lambda reason: None) if rungs is None else rungs
    for name, (precision, ready) in _ways(a, b, rungs).items():
        call, c = ready()
        c.fill(np.nan)
        if microseconds(call) > plan.patience_ms * 1e3:
            continue
        errors[name] = float(cupy.linalg.norm(c - wanted) / norm)
        if not errors[name] < ERRORS[precision]:  # nor where it is NaN
            raise AssertionError(f"the product of {name} is off by {errors[name]:.1e} of its norm at {shape}")
        calls[name] = call
    samples = in_turns(calls, plan)
    return {name: {"error": errors[name], "samples_us": samples[name]} for name in calls}


def _ways(a, b, rungs):
    """Return (precision, a function that makes it ready) for cuBLAS in each precision, and for each rung, by name."""
    ways = {f"cublas_{precision}": (precision, partial(cublas, precision, a, b)) for precision in ERRORS}
    return ways | {name: (rung.precision, partial(prepare, rung, a, b)) for name, rung in rungs.items()}


def in_turns(calls, plan=USUAL):
    """Return microseconds a call for each of the functions, given by name: a list of samples each."""
    times = {name: min(microseconds(call, 2) for _ in range(2)) for name, call in calls.items()}
    times = {name: max(1, min(plan.most_calls, int(plan.sample_ms * 1e3 / us))) for name, us in times.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(plan.samples):
        for name, call in calls.items():
            samples[name].append(round(microseconds(call, times[name]), 3))
    return samples


def microseconds(call, times=1):
    """Return the microseconds that a call takes the GPU, as the mean of so many in a row.

    They are queued behind a kernel that does nothing for a while: Python is slower than a small kernel, and what is
    timed is the GPU, never waiting for Python.
    """
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    _waiter()((1,), (1,), (np.int64(50_000 + 40_000 * times),))
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return 1e3 * cupy.cuda.get_elapsed_time(start, end) / times


@cache
def _waiter():
    return kernels.load("roofs").get_function("wait")


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
    for name, samples in in_turns(calls, plan).items():
        moved = 2 * source.nbytes
        yield {"kind": "transpose", "way": name, "bytes": moved, "samples_gbps": [moved / us / 1e3 for us in samples]}


TRANSPOSES: dict[str, tuple[str, dict[str, int]]] = {
    "direct": ("direct", {}),
    "tiled, rows of 32": ("tiled", {"PAD": 0}),
    "tiled, rows of 33": ("tiled", {"PAD": 1}),
}


def transpose(a, out, kernel="tiled", **macros):
    """Write the transpose of a (rows, columns) into out (columns, rows), by a kernel of `transpose.cu`."""
    rows, columns = a.shape
    blocks = -(-columns // 32), -(-rows // 32)
    launch = kernels.load("transpose", **macros).get_function(kernel)
    launch(blocks, (32, 8), (a, out, np.int32(rows), np.int32(columns)))


# What the record says


def median_us(record, way, m, n, k):
    """Return a way's microseconds at a size, the median of the samples; None where it was not measured."""
    found = results.runs(record, kind="product", way=way, m=m, n=n, k=k)
    return results.median(found[0]) if found else None


def gflops(record, way, m, n, k):
    """Return a way's GFLOP/s at a size, None where it was not measured."""
    us = median_us(record, way, m, n, k)
    return flops(m, n, k) / us / 1e3 if us else None


def share(record, way, m, n, k):
    """Return a rung's rate as a part of cuBLAS's in the same precision at the same size, None without either."""
    ours, theirs = (gflops(record, name, m, n, k) for name in (way, f"cublas_{RUNGS[way].precision}"))
    return ours / theirs if ours and theirs else None


def roofs(record):
    """Return the highest GFLOP/s of multiply-adds and the highest GB/s of a copy that the record has."""
    return tuple(
        max(sample for run in results.runs(record, kind=kind) for sample in run[samples])
        for kind, samples in (("peak", "samples_gflops"), ("copy", "samples_gbps"))
    )


def table(record):
    """Return the record as text for the terminal: both limits, what each kernel takes, each rung at each size."""
    peak, copy = roofs(record)
    lines = [f"multiply-adds {peak / 1e3:.1f} TFLOP/s, copy {copy:,.0f} GB/s"]
    lines += [_resources_line(run) for run in results.runs(record, kind="resources")]
    shapes = dict.fromkeys((run["m"], run["n"], run["k"]) for run in results.runs(record, kind="product"))
    for m, n, k in shapes:
        lines.append(f"{m} x {k} times {k} x {n}")
        lines += [_way_line(record, run) for run in results.runs(record, kind="product", m=m, n=n, k=k)]
    for run in results.runs(record, kind="transpose"):
        lines.append(f"transpose {run['way']:<20}{np.median(run['samples_gbps']):>8,.0f} GB/s")
    return "\n".join(lines)


def _resources_line(run):
    return (
        f"  {run['rung']:<16}{run['registers']:>5} registers, {run['spilled_bytes']} B spilled, "
        f"{run['shared_bytes']:>7,} B shared, blocks of {run['threads']}, "
        f"{run['blocks']} on a multiprocessor, {run['occupancy']:.0%} of its threads"
    )


def _way_line(record, run):
    shape = run["m"], run["n"], run["k"]
    line = f"  {run['way']:<16}{median_us(record, run['way'], *shape):>12,.1f} us"
    line += f"{gflops(record, run['way'], *shape) / 1e3:>9.2f} TFLOP/s"
    part = share(record, run["way"], *shape) if run["way"] in RUNGS else None
    return line + (f"{part:>8.1%} of cuBLAS" if part else "") + f"   error {run['error']:.0e}"
