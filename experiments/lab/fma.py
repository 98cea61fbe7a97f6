"""Fused multiply-adds in registers alone, and nothing else: what shows a core's peak."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mlpkit.engines.loops.compiler import compiled
from mlpkit.engines.loops.simd import LANES, REGISTERS, Writer, everywhere

DEPENDENCY_CHAINS = REGISTERS * 3 // 4  # of multiply-adds that wait for each other in `fma`: enough for any latency
FMA_FLOPS = 2 * DEPENDENCY_CHAINS * LANES  # floating point operations of one step of `fma`


@intrinsic
def _fma(typingctx, steps, factor):
    """Type and generate `fma`."""

    def generate(context, builder, signature, arguments):
        steps, factor = arguments
        code = Writer(context, builder, types.float32)
        factors = everywhere(builder, code.vector, factor)
        # From 2 on: 1 would stay 1, and LLVM sees that.
        totals = code.totals([ir.Constant(code.vector, [float(2 + c)] * LANES) for c in range(DEPENDENCY_CHAINS)])
        with cgutils.for_range(builder, steps):
            for total in totals:
                builder.store(builder.call(code.fma, [builder.load(total), factors, factors]), total)
        result = builder.load(totals[0])
        for total in totals[1:]:
            result = builder.fadd(result, builder.load(total))
        return builder.extract_element(result, ir.IntType(32)(0))

    return types.float32(types.intp, types.float32), generate


@compiled(__name__, nogil=True)
def fma(steps):
    """Run `steps` times FMA_FLOPS float32 operations in registers alone; return a number that depends on all."""
    return _fma(steps, np.float32(0.5))
