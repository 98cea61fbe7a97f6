"""Ten ways to multiply two matrices on the GPU: each is a file of `kernels/matmul`, and how to launch it.

c (m, n) = a (m, k) b (k, n), all float32 and stored by rows; three rungs round a and b on the way. What a launch takes
(blocks, bytes fetched, registers by the compiler's account) can be said with no GPU; CuPy is imported where one is
needed.
"""

from dataclasses import asdict, dataclass
from functools import cache

import numpy as np

from experiments.lab import ptxas
from mlpkit import kernels
from mlpkit.kernels import gpu, tensor_map

ARCHITECTURES = ("sm_80", "sm_90")  # the oldest chips that the kernels run on, and those of the records
ERRORS = {"float32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}  # how far off a product may be, as a part of its norm
MOST_BLOCKS = 65535  # in y


@dataclass(frozen=True)
class Rung:
    """A kernel and how to launch it.

    tile: rows and columns of c that a block computes. threads: of a block. grid: how the blocks are numbered, "nm"
    along n in x and along m in y, "mn" the other way, "1" all in x. shared: bytes of shared memory that a block is
    given at its launch. reuse: rows and columns for which a number is fetched once, where that is not the tile. boxes:
    rows and columns of a, and of b, that the copy engine takes at a time; the kernel is given tensor maps of both.
    """

    label: str
    file: str
    tile: tuple[int, int]
    threads: tuple[int, ...]
    grid: str = "nm"
    shared: int = 0
    precision: str = "float32"
    reuse: tuple[int, int] | None = None
    boxes: tuple[tuple[int, int], ...] = ()

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


def _large(label, file, ring, precision="float32"):
    """Return a rung of 256 threads and a tile of 128 x 256. ring: (stages, bytes a number, numbers of a, of b)."""
    stages, size, a, b = ring
    return Rung(label, file, (128, 256), (256,), "1", stages * size * (a + b), precision)


# A ring's rows of a tile have some numbers more than the tile, so that they begin in different banks.
RUNGS = {
    "naive": Rung("a thread a number", "matmul_1_naive", (32, 32), (32, 32), grid="mn", reuse=(1, 1)),
    "coalesced": Rung("neighbours side by side", "matmul_2_coalesced", (32, 32), (32, 32), reuse=(1, 1)),
    "shared": Rung("tiles in shared memory", "matmul_3_shared", (32, 32), (32, 32)),
    "registers": Rung("tiles in registers", "matmul_4_registers", (128, 128), (256,)),
    "vectors": Rung("four numbers a load", "matmul_5_vectors", (128, 128), (256,)),
    "pipelined": _large("copies on their way", "matmul_6_pipelined", (5, 4, 8 * (128 + 4), 8 * 256)),
    "tf32": _large("tensor cores, TF32", "matmul_7_tf32", (5, 4, 128 * (16 + 4), 16 * (256 + 8)), "tf32"),
    "bf16": _large("tensor cores, bfloat16", "matmul_8_bf16", (3, 2, 128 * (64 + 8), 64 * (256 + 8)), "bf16"),
    "slices": Rung("a small C, slices of k", "matmul_9_slices", (8, 16), (512,)),
    "wgmma": Rung(
        *("Hopper's own instruction", "matmul_10_wgmma", (128, 256), (288,), "1"),
        *(4 * (2 * 64 * (128 + 256) + 2 * 8), "bf16"),  # four slots, and two barriers for each
        boxes=((128, 64), (64, 64)),
    ),
}


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
    found = ptxas.resources(rung.file, arch)["matmul"]
    return asdict(found) | {"shared_bytes": found.shared_bytes + rung.shared, "threads": rung.threads_a_block}


# On a GPU


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

    _check(a, b)
    (m, k), n, blocks = a.shape, b.shape[1], rung.blocks(len(a), b.shape[1])
    if max(blocks[1:], default=1) > MOST_BLOCKS:
        raise ValueError(
            f"{rung.file} can't multiply {(m, k)} and {(k, n)}: {blocks[1]} blocks in y, {MOST_BLOCKS} at most."
        )
    a, b = by_rows(rung.precision, a, b)
    c = cupy.empty((m, n), np.float32) if out is None else out
    operands = [tensor_map.encode(*found) for found in zip((a, b), (k, n), rung.boxes, strict=False)] or (a, b)
    kernel, arguments = _kernel(rung), (*operands, c, *map(np.int32, (m, n, k)))

    def call(kept=(a, b)):  # a tensor map keeps no array alive
        kernel(blocks, rung.threads, arguments, shared_mem=rung.shared)

    return call, c


def _check(a, b):
    if not (a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype == b.dtype == np.float32):
        raise ValueError(
            f"no product of {a.dtype} {a.shape} and {b.dtype} {b.shape}: float32 (m, k) and (k, n) needed."
        )
    if not (a.size and b.size):
        raise ValueError(f"no product of {a.shape} and {b.shape}: no number in them.")


def by_rows(precision, *arrays):
    """Return matrices stored by rows, and rounded where the precision is "bf16"."""
    import cupy

    arrays = tuple(cupy.ascontiguousarray(array) for array in arrays)
    return tuple(map(round_rows, arrays)) if precision == "bf16" else arrays


def round_rows(array, multiple=8):
    """Return a float32 matrix as bfloat16, the 16 bits of each as an integer, its rows filled up with zeros."""
    import cupy

    rows, columns = array.shape
    out = cupy.empty((rows, -(-columns // multiple) * multiple), np.uint16)
    kernel = kernels.load(RUNGS["bf16"].file).get_function("round_rows")
    kernel((min(4096, -(-out.size // 256)),), (256,), (array, out, np.int32(rows), np.int32(columns)))
    return out


def why_not(rung):
    """Return why a rung cannot run on this GPU, a sentence, or None where it can."""
    chip, here = kernels.chip(rung.file), _capability()
    if not kernels.is_for(rung.file, here):
        least, found = (f"{digits[:-1]}.{digits[-1]}" for digits in (chip[3:].rstrip("a"), here))
        others = "no older and no newer one" if chip.endswith("a") else "or newer"
        return f"{rung.file} needs compute capability {least}, {others}, and this GPU has {found}."
    if not rung.shared or rung.shared <= (most := _most_shared()):
        return None
    needed, most = -(-rung.shared // 1024), most // 1024  # KiB
    return f"{rung.file} does not fit on this GPU: its blocks need {needed} KiB of shared memory and may have {most}."


def _capability():
    """Return the compute capability that kernels are compiled for, as its digits, such as "90"."""
    return str(gpu.capability())


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


@cache
def _kernel(rung):
    kernel = kernels.load(rung.file).get_function("matmul")
    kernel.max_dynamic_shared_size_bytes = rung.shared  # more than 48 KiB has to be asked for
    return kernel


def occupancy(rung):
    """Return what the kernel takes on this GPU, how many blocks of it fit on a multiprocessor, and what part that is.

    The part is of the threads that a multiprocessor can hold.
    """
    import cupy

    kernel, threads = _kernel(rung), rung.threads_a_block
    blocks = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.kernel.ptr, threads, rung.shared)
    most = cupy.cuda.runtime.getDeviceProperties(0)["maxThreadsPerMultiProcessor"]
    return {
        "registers": kernel.compiled.num_regs,
        "shared_bytes": kernel.compiled.shared_size_bytes + rung.shared,
        "spilled_bytes": kernel.compiled.local_size_bytes,
        "threads": threads,
        "blocks": blocks,
        "occupancy": blocks * threads / most,
    }


def cublas(precision, a, b):
    """Return a function that has cuBLAS multiply, and the array that it writes. a, b: as `prepare` gets them.

    precision: "float32", "tf32", or "bf16" for arrays that are rounded before.
    """
    import cupy
    from cupy.cuda import cublas as library

    (m, k), n = a.shape, b.shape[1]
    a, b = by_rows(precision, a, b)
    c = cupy.empty((m, n), np.float32)
    kind = {"float32": 0, "tf32": 0, "bf16": 14}[precision]  # CUDA_R_32F, CUDA_R_16BF
    compute = {"float32": 68, "tf32": 77, "bf16": 68}[precision]  # CUBLAS_COMPUTE_32F, .._32F_FAST_TF32
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    handle = cupy.cuda.device.get_cublas_handle()

    def call():  # cuBLAS stores by columns, which makes a row-wise c = a b the product of b and a
        library.setMathMode(handle, 0)
        library.gemmEx(
            *(handle, 0, 0, n, m, k, one.ctypes.data, b.data.ptr, kind, b.shape[1], a.data.ptr, kind, a.shape[1]),
            *(zero.ctypes.data, c.data.ptr, 0, n, compute, -1),
        )

    return call, c
