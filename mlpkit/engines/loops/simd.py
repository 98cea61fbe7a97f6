"""Vector instructions by hand: two pieces of machine code that no loop in Python makes Numba write.

A vector register holds several numbers (LANES of them), and one instruction multiplies all of them by those of a second
register and adds those of a third: a fused multiply-add. `fma` does nothing else, and so shows a core's peak. `tile`
does as much of a matrix product as the registers hold, and is the heart of `gemm`.

Both are Numba intrinsics: Python functions that write LLVM's intermediate language for vectors of a given length. LLVM
turns it into the machine's own instructions, such as those of AVX-512, of AVX2 with FMA, or of NEON.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .compiler import compiled

_MACHINE, _, _FEATURES = cpu_target.target_context.codegen().magic_tuple()  # that Numba compiles for
BYTES = 64 if "+avx512f" in _FEATURES else 32 if "+avx2" in _FEATURES else 16  # of a vector register
LANES = BYTES // 4  # float32 numbers in a register; half as many are float64
REGISTERS = 32 if BYTES == 64 or "aarch64" in _MACHINE or "arm64" in _MACHINE else 16
ROWS = 8  # of a tile: totals for a multiply-add of 4 cycles' latency in two units, which leave registers for a and b

CHAINS = REGISTERS * 3 // 4  # of multiply-adds that wait for each other in `fma`: enough for any latency
FMA_FLOPS = 2 * CHAINS * LANES  # floating point operations of one step of `fma`

_INDEX = ir.IntType(64)


@intrinsic
def tile(typingctx, dtype, a, a_row, a_column, b, b_row, out, out_row, depth, add):
    """Write a tile of a matrix product, out = a b, or add it to out where `add` is true.

    a (ROWS, depth), b (depth, one register), out (ROWS, one register) are addresses of the tile's first numbers, of
    the type `dtype`, float32 or float64. The next row of each is `row` bytes further on, the next column of a `column`
    bytes; columns of b and out are neighbours. The totals stay in registers from the first product to the last. Nothing
    is checked: the caller must know that the tiles lie within arrays, and keep these alive.
    """
    signature = types.void(dtype, *[types.intp] * 8, types.boolean)
    kind = dtype.dtype

    def generate(context, builder, signature, arguments):
        _, a, a_row, a_column, b, b_row, out, out_row, depth, add = arguments
        number = context.get_data_type(kind)
        vector = ir.VectorType(number, BYTES * 8 // kind.bitwidth)
        fma = _declare_fma(builder, vector, kind)

        def address(start, index, step, kind):
            return builder.inttoptr(builder.add(start, builder.mul(index, step)), kind.as_pointer())

        def load(address):
            return builder.load(address, align=kind.bitwidth // 8)

        totals = [cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in range(ROWS)]
        with cgutils.for_range(builder, depth) as loop:
            row_of_b = load(address(b, loop.index, b_row, vector))
            column = builder.add(a, builder.mul(loop.index, a_column))
            for r, total in enumerate(totals):
                factor = _everywhere(builder, vector, load(address(column, _INDEX(r), a_row, number)))
                builder.store(builder.call(fma, [factor, row_of_b, builder.load(total)]), total)
        for r, total in enumerate(totals):
            target = address(out, _INDEX(r), out_row, vector)
            with builder.if_then(add):
                builder.store(builder.fadd(builder.load(total), load(target)), total)
            builder.store(builder.load(total), target, align=kind.bitwidth // 8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _fma(typingctx, steps, factor):
    """Type and generate `fma`."""

    def generate(context, builder, signature, arguments):
        steps, factor = arguments
        vector = ir.VectorType(ir.FloatType(), LANES)
        fma = _declare_fma(builder, vector, types.float32)
        factors = _everywhere(builder, vector, factor)
        starts = [ir.Constant(vector, [float(2 + c)] * LANES) for c in range(CHAINS)]  # 1 would stay 1: LLVM sees that
        totals = [cgutils.alloca_once_value(builder, start) for start in starts]
        with cgutils.for_range(builder, steps):
            for total in totals:
                builder.store(builder.call(fma, [builder.load(total), factors, factors]), total)
        result = builder.load(totals[0])
        for total in totals[1:]:
            result = builder.fadd(result, builder.load(total))
        return builder.extract_element(result, ir.IntType(32)(0))

    return types.float32(types.intp, types.float32), generate


def _declare_fma(builder, vector, kind):
    name = f"llvm.fmuladd.v{vector.count}f{kind.bitwidth}"  # one instruction where the machine has it, else two
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)


def _everywhere(builder, vector, number):
    """Return a vector with the number in each lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))


@compiled(__name__, nogil=True)
def fma(steps):
    """Run `steps` times FMA_FLOPS float32 operations in registers alone; return a number that depends on all."""
    return _fma(steps, np.float32(0.5))
