"""Vector instructions by hand: pieces of machine code that no loop in Python makes Numba write.

A vector register holds some elements (LANES of them), and one instruction multiplies all of them by those of a second
register and adds those of a third: a fused multiply-add. `tile` does as much of a matrix product as a few registers
hold, `wide_tile` as much as most of 32 hold: they are the heart of `gemm`. `transpose` transposes a square of elements
in registers, and `fetch` asks for memory before it is needed.

All are Numba intrinsics: Python functions that write LLVM's intermediate language for vectors of a given length. LLVM
turns it into the machine's own instructions, such as those of AVX-512, of AVX2 with FMA, or of NEON.
"""

from functools import partial
from inspect import Parameter, Signature, signature

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

_MACHINE, _NAME, _FEATURES = cpu_target.target_context.codegen().magic_tuple()  # that Numba compiles for
BYTES = 64 if "+avx512f" in _FEATURES else 32 if "+avx2" in _FEATURES else 16  # of a vector register
LANES = BYTES // 4  # float32 elements in a register; half as many are float64
ARM = _MACHINE.startswith(("aarch64", "arm64"))  # Linux's name, and Apple's
REGISTERS = 32 if BYTES == 64 or ARM else 16
ROWS = 8  # of a tile: totals for a multiply-add of 4 cycles' latency in two units, which leave registers for a and b
WIDE = 2 if REGISTERS == 32 else 1  # registers side by side in a wide tile: a number of a is loaded once for all
LINE = 64  # bytes of a cache line on most machines

INDEX = ir.IntType(64)
ADDRESS = np.dtype(np.int64).itemsize


class Writer:
    """What writes LLVM's instructions for numbers of one kind, and for vectors of them."""

    def __init__(self, context, builder, kind):
        self.context, self.builder, self.kind = context, builder, kind
        self.number = context.get_data_type(kind)
        self.vector = ir.VectorType(self.number, BYTES * 8 // kind.bitwidth)
        self.fma = None if isinstance(kind, types.Integer) else declare_fma(builder, self.vector, kind)

    def at(self, start, *distances):
        """Return an address, so many bytes on; a distance is an instruction's result or a Python integer."""
        for distance in distances:
            start = self.builder.add(start, INDEX(distance) if isinstance(distance, int) else distance)
        return start

    def within(self, start, row, column, i, j):
        """Return the address of number (i, j), i and j Python integers, row and column being bytes between them."""
        return self.at(start, self.builder.mul(INDEX(i), row), self.builder.mul(INDEX(j), column))

    def load(self, address, kind=None):
        kind = kind or self.vector
        align = ADDRESS if kind is INDEX else self.kind.bitwidth // 8
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def distance(self, table, i):
        """Return entry i of a table, an instruction's result or a Python integer: int64."""
        step = i * ADDRESS if isinstance(i, int) else self.builder.mul(i, INDEX(ADDRESS))
        return self.load(self.at(table, step), INDEX)

    def store(self, value, address):
        place = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, place, align=self.kind.bitwidth // 8)

    def everywhere(self, address):
        """Return a vector with the number at an address in each lane."""
        return everywhere(self.builder, self.vector, self.load(address, self.number))

    def pick(self, one, other, lanes):
        """Return a vector of numbers of two, the other's counted on from the one's."""
        return self.builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))

    def multiply_add(self, x, y, total):
        """Add a product to a total, which is a variable."""
        self.builder.store(self.builder.call(self.fma, [x, y, self.builder.load(total)]), total)

    def totals(self, starts):
        return [cgutils.alloca_once_value(self.builder, start) for start in starts]

    def zeros(self, n):
        return [ir.Constant(self.vector, None)] * n


def written(write, *others):
    """Return the intrinsic whose instructions `write` writes. It takes a dtype, integers, and `others`, Numba's types.

    write: gets a `Writer`, and then the arguments behind the dtype, as values of LLVM's.
    """
    names = ["typingctx", "dtype", *list(signature(write).parameters)[1:]]
    integers = [types.intp] * (len(names) - 2 - len(others))

    def made(typingctx, dtype, *_):
        def generate(context, builder, signature, arguments):
            write(Writer(context, builder, dtype.dtype), *arguments[1:])
            return context.get_dummy_value()

        return types.void(dtype, *integers, *others), generate

    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    made.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what Numba takes the arguments from
    return intrinsic(made)


def _tile(registers, code, a, a_row, a_column, b, b_row, out, out_row, depth, add):
    """Write a tile of a matrix product, out = a b, or add the products one by one to out where `add` is true.

    a (ROWS, depth), b (depth, registers), out (ROWS, registers) are addresses of the tile's first elements, of the type
    `dtype`, float32 or float64. The next row of each is `row` bytes further on, the next column of a `column` bytes;
    columns of b and out are neighbours. The totals stay in registers from the first product to the last. Nothing is
    checked: the caller must know that the tiles lie within arrays, and keep these alive.
    """
    builder = code.builder

    def row(start, index, step):
        """Return the addresses of the vectors in row `index`."""
        first = code.at(start, builder.mul(index, step))
        return [code.at(first, c * BYTES) for c in range(registers)]

    places = [place for r in range(ROWS) for place in row(out, INDEX(r), out_row)]
    totals = code.totals(code.zeros(len(places)))
    with builder.if_then(add):
        for total, place in zip(totals, places, strict=True):
            builder.store(code.load(place), total)
    with cgutils.for_range(builder, depth) as loop:
        pieces = [code.load(place) for place in row(b, loop.index, b_row)]
        column = code.at(a, builder.mul(loop.index, a_column))
        for r in range(ROWS):
            factor = code.everywhere(code.at(column, builder.mul(INDEX(r), a_row)))
            for piece, total in zip(pieces, totals[r * registers :], strict=False):
                code.multiply_add(factor, piece, total)
    for total, place in zip(totals, places, strict=True):
        code.store(builder.load(total), place)


tile, wide_tile = (written(partial(_tile, registers), types.boolean) for registers in (1, WIDE))


@written
def transpose(code, a, a_row, out, out_row):
    """Write the transpose of a square of elements of the type `dtype`, as many rows as a register has.

    a, out: addresses of the first elements; the next row is `row` bytes further on. Nothing is checked.
    """
    n = code.vector.count

    def places(start, step):
        return [code.at(start, code.builder.mul(INDEX(r), step)) for r in range(n)]

    rows = [code.load(place) for place in places(a, a_row)]
    for step in (1 << bit for bit in range(n.bit_length() - 1)):  # squares of `step` elements change places
        for r in (r for r in range(n) if not r & step):
            one, other = rows[r], rows[r + step]
            rows[r] = code.pick(one, other, [n + c - step if c & step else c for c in range(n)])
            rows[r + step] = code.pick(one, other, [n + c if c & step else c + step for c in range(n)])
    for row, place in zip(rows, places(out, out_row), strict=True):
        code.store(row, place)


@intrinsic
def fetch(typingctx, start, size):
    """Ask for `size` bytes from the address `start` on to be brought to this core's cache, and do not wait for them."""

    def generate(context, builder, signature, arguments):
        start, size = arguments
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, *[number] * 3])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        with cgutils.for_range_slice(builder, INDEX(0), size, INDEX(LINE), INDEX) as (i, _):
            to_read, near, data = number(0), number(2), number(1)
            builder.call(prefetch, [builder.inttoptr(builder.add(start, i), byte), to_read, near, data])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def address(typingctx, array):
    """Return where an array's first number lies: of one type with distances in bytes, which `ctypes.data` is not.

    A function that takes addresses is compiled once then, and not for each mixture with and without a sign.
    """

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(context.make_array(array)(context, builder, arguments[0]).data, INDEX)

    return types.intp(array), generate


@intrinsic
def named(typingctx, kind, start):
    """Return the `NamedTuple` of a class, whose fields are int64, of those that lie from an address on.

    Each is loaded once. Numba's `to_fixed_tuple` copies the whole tuple for each of them.
    """
    made = types.NamedUniTuple(types.int64, len(kind.instance_class._fields), kind.instance_class)

    def generate(context, builder, signature, arguments):
        code = Writer(context, builder, types.int64)
        return context.make_tuple(builder, made, [code.distance(arguments[1], i) for i in range(len(made))])

    return made(kind, types.intp), generate


def declare_fma(builder, vector, kind):
    name = f"llvm.fmuladd.v{vector.count}f{kind.bitwidth}"  # one instruction where the machine has it, else two
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)


def everywhere(builder, vector, number):
    """Return a vector with the number in each lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None))
