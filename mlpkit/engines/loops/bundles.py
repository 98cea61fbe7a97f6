"""A bundle is as many images as a vector register holds numbers: their numbers of one place lie side by side.

So an array of images (n, c, h, w) becomes bundles (c, h, w, lanes), and one instruction does for all images of a bundle
what the mathematics says for one. No channel count is too small for it, no stride too odd, and a sum over c, p and q
never leaves its register: what costs a convolution its speed in other layouts isn't there. A batch that is no multiple
of `lanes` ends in a bundle whose other images are zero: a batch of 1 takes as long as one of `lanes`.

`products` and `slopes` are the two sums of a convolution, forward and for the weights, each for as many results as fit
into the registers. They read through tables of distances in bytes, which know of padding, stride and kernel: `tables`.
Like those of `simd`, the functions here take addresses, and check nothing.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiler import compiled
from .simd import BYTES, INDEX, REGISTERS, declare_fma, everywhere, transpose

ADDRESS = np.dtype(np.int64).itemsize

# Results that are summed at once, by the rows of a block: how many columns. Together with what a step reads, they fill
# the registers: 24 of 32, or 8 to 12 of 16.
COLUMNS = {8: 3, 6: 4, 4: 6, 2: 8} if REGISTERS == 32 else {8: 1, 6: 2, 4: 2, 2: 4}
ROWS = max(COLUMNS)
LEAST = min(COLUMNS.values())
MOST = max(rows * columns for rows, columns in COLUMNS.items())
NONE = 255  # stands for no number of a window
SPARE = max(COLUMNS.values())  # entries that a table of positions repeats at its end, so that columns are never lacking


class Writer:
    """What writes LLVM's instructions for numbers of one kind, and for vectors of them."""

    def __init__(self, context, builder, kind):
        self.builder, self.kind = builder, kind
        self.number = context.get_data_type(kind)
        self.vector = ir.VectorType(self.number, BYTES * 8 // kind.bitwidth)
        self.fma = declare_fma(builder, self.vector, kind)

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

    def store(self, value, address):
        place = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, place, align=self.kind.bitwidth // 8)

    def everywhere(self, address):
        """Return a vector with the number at an address in each lane."""
        return everywhere(self.builder, self.vector, self.load(address, self.number))

    def multiply_add(self, x, y, total):
        """Add a product to a total, which is a variable."""
        self.builder.store(self.builder.call(self.fma, [x, y, self.builder.load(total)]), total)

    def totals(self, starts):
        return [cgutils.alloca_once_value(self.builder, start) for start in starts]

    def zeros(self, n):
        return [ir.Constant(self.vector, None)] * n


def _products(rows, columns):
    """Return the intrinsic that makes so many rows and columns of results."""

    @intrinsic
    def products(typingctx, dtype, w, taps, depth, x, x_at, out, out_at, out_row, start, valid):
        """Write `start[r] + sum(w[t, r] * x[x_at[s] + taps[t]])`, t below depth, to `out[r * out_row + out_at[s]]`.

        w (depth, rows) and start (rows,) are numbers; x and out hold vectors. taps (depth,), x_at and out_at (columns,)
        are distances in bytes, int64. Only the first `valid` rows are written.
        """
        signature = types.void(dtype, *[types.intp] * 10)
        kind = dtype.dtype

        def generate(context, builder, signature, arguments):
            _, w, taps, depth, x, x_at, out, out_at, out_row, start, valid = arguments
            code, size = Writer(context, builder, kind), kind.bitwidth // 8
            starts = [code.everywhere(code.at(start, r * size)) for r in range(rows)]
            totals = [code.totals([first] * columns) for first in starts]
            places = [code.at(x, code.load(code.at(x_at, s * ADDRESS), INDEX)) for s in range(columns)]
            with cgutils.for_range(builder, depth) as loop:
                tap = code.load(code.at(taps, builder.mul(loop.index, INDEX(ADDRESS))), INDEX)
                weights = code.at(w, builder.mul(loop.index, INDEX(rows * size)))
                pieces = [code.load(code.at(place, tap)) for place in places]
                for r in range(rows):
                    factor = code.everywhere(code.at(weights, r * size))
                    for s in range(columns):
                        code.multiply_add(factor, pieces[s], totals[r][s])
            ends = [code.at(out, code.load(code.at(out_at, s * ADDRESS), INDEX)) for s in range(columns)]
            for r in range(rows):
                with builder.if_then(builder.icmp_signed(">", valid, INDEX(r))):
                    for end, total in zip(ends, totals[r], strict=True):
                        code.store(builder.load(total), code.at(end, builder.mul(INDEX(r), out_row)))
            return context.get_dummy_value()

        return signature, generate

    return products


def _slopes(rows, columns):
    """Return the intrinsic that makes so many rows and columns of the weights' gradient."""

    @intrinsic
    def slopes(typingctx, dtype, dz, dz_row, dz_at, x, x_at, depth, taps, out, valid):
        """Add `sum(dz[r * dz_row + dz_at[t]] * x[x_at[t] + taps[s]])`, t below depth, to the numbers out[r, s].

        The sum is over the lanes, too: dz and x hold vectors, and out (rows, columns) numbers, one after another, in as
        many vectors as they need. dz_at, x_at (depth,) and taps (columns,) are distances in bytes, int64. Only the
        first `valid` rows have a meaning.
        """
        signature = types.void(dtype, *[types.intp] * 9)
        kind = dtype.dtype

        def generate(context, builder, signature, arguments):
            _, dz, dz_row, dz_at, x, x_at, depth, taps, out, valid = arguments
            code = Writer(context, builder, kind)
            totals = [code.totals(code.zeros(columns)) for _ in range(rows)]
            places = [code.at(x, code.load(code.at(taps, s * ADDRESS), INDEX)) for s in range(columns)]
            starts = [code.at(dz, builder.mul(INDEX(r), dz_row)) for r in range(rows)]
            for r in range(1, rows):  # a row that isn't there is read as the first one
                starts[r] = builder.select(builder.icmp_signed(">", valid, INDEX(r)), starts[r], dz)
            with cgutils.for_range(builder, depth) as loop:
                step = builder.mul(loop.index, INDEX(ADDRESS))
                from_x, from_dz = (code.load(code.at(table, step), INDEX) for table in (x_at, dz_at))
                pieces = [code.load(code.at(place, from_x)) for place in places]
                for r in range(rows):
                    factor = code.load(code.at(starts[r], from_dz))
                    for s in range(columns):
                        code.multiply_add(factor, pieces[s], totals[r][s])
            sums = _sums(code, [builder.load(total) for row in totals for total in row])
            for i, value in enumerate(sums):
                place = code.at(out, i * BYTES)
                code.store(builder.fadd(code.load(place), value), place)
            return context.get_dummy_value()

        return signature, generate

    return slopes


def _sums(code, vectors):
    """Return vectors that hold the sum of each vector's lanes, one after another.

    Vectors are added in pairs, half of one and half of the other, so that each instruction works for many sums.
    """
    builder, lanes = code.builder, code.vector.count

    def pick(one, other, places):
        return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), lanes), places))

    found = []
    for first in range(0, len(vectors), lanes):
        level, step = vectors[first : first + lanes], lanes // 2
        level += code.zeros((1 << (len(level) - 1).bit_length()) - len(level))
        apart = lanes // len(level)  # in the end, how many lanes from a sum to the next
        while step:
            low = [lane + (lanes - step if lane & step else 0) for lane in range(lanes)]
            high = [lane + (lanes if lane & step else step) for lane in range(lanes)]
            half = len(level) // 2 or 1  # the last vector is added to itself
            level = [builder.fadd(pick(one, other, low), pick(one, other, high))
                     for one, other in zip(level[:half], level[-half:], strict=True)]  # fmt: skip
            step //= 2
        found.append(
            level[0] if apart == 1 else pick(level[0], level[0], [lane * apart % lanes for lane in range(lanes)])
        )
    return found


_products_8, _products_6, _products_4, _products_2 = (_products(rows, COLUMNS[rows]) for rows in (8, 6, 4, 2))
_slopes_8, _slopes_6, _slopes_4, _slopes_2 = (_slopes(rows, COLUMNS[rows]) for rows in (8, 6, 4, 2))
_C8, _C6, _C4, _C2 = (COLUMNS[rows] for rows in (8, 6, 4, 2))


@compiled(__name__, nogil=True)
def rows_of(left):
    """Return how many rows the next block has, of which `left` are still to be made."""
    return 8 if left > 6 else 6 if left > 4 else 4 if left > 2 else 2


@compiled(__name__, nogil=True)
def multiply(dtype, left, w, taps, depth, x, x_at, count, out, out_at, out_row, start):
    """Make a block of results, `products`, at `count` positions; `left` rows are still to be made, which may be more.

    x_at, out_at (count + SPARE,): as `products` wants them, their last entry repeated.
    """
    rows = rows_of(left)
    if rows == 8:
        for i in range(0, ADDRESS * count, ADDRESS * _C8):
            _products_8(dtype, w, taps, depth, x, x_at + i, out, out_at + i, out_row, start, left)
    elif rows == 6:
        for i in range(0, ADDRESS * count, ADDRESS * _C6):
            _products_6(dtype, w, taps, depth, x, x_at + i, out, out_at + i, out_row, start, left)
    elif rows == 4:
        for i in range(0, ADDRESS * count, ADDRESS * _C4):
            _products_4(dtype, w, taps, depth, x, x_at + i, out, out_at + i, out_row, start, left)
    else:
        for i in range(0, ADDRESS * count, ADDRESS * _C2):
            _products_2(dtype, w, taps, depth, x, x_at + i, out, out_at + i, out_row, start, left)


@compiled(__name__, nogil=True)
def add_slopes(dtype, left, dz, dz_row, dz_at, x, x_at, depth, taps, count, out, piece):
    """Add a block of the weights' gradient, `slopes`, for `count` taps; `left` rows are still to be made.

    taps (count + SPARE,): as `slopes` wants them, the last entry repeated. out: as many pieces as the block needs.
    piece: bytes of one. `collect` knows where in them a number is.
    """
    rows = rows_of(left)
    if rows == 8:
        for i in range(0, ADDRESS * count, ADDRESS * _C8):
            _slopes_8(dtype, dz, dz_row, dz_at, x, x_at, depth, taps + i, out, left)
            out += piece
    elif rows == 6:
        for i in range(0, ADDRESS * count, ADDRESS * _C6):
            _slopes_6(dtype, dz, dz_row, dz_at, x, x_at, depth, taps + i, out, left)
            out += piece
    elif rows == 4:
        for i in range(0, ADDRESS * count, ADDRESS * _C4):
            _slopes_4(dtype, dz, dz_row, dz_at, x, x_at, depth, taps + i, out, left)
            out += piece
    else:
        for i in range(0, ADDRESS * count, ADDRESS * _C2):
            _slopes_2(dtype, dz, dz_row, dz_at, x, x_at, depth, taps + i, out, left)
            out += piece


@compiled(__name__, nogil=True)
def piece_of(lanes):
    """Return how many numbers a piece of the weights' gradient has, as `slopes` writes it: whole vectors."""
    return (MOST + lanes - 1) // lanes * lanes


@compiled(__name__, nogil=True)
def room_of(count, lanes):
    """Return how many numbers a block of the weights' gradient takes, for so many taps."""
    return (count + LEAST - 1) // LEAST * ((MOST + lanes - 1) // lanes * lanes)


@compiled(__name__, nogil=True)
def places_of(left, count, lanes):
    """Return where in a block's pieces each tap of its first row is, and how far it is to the next row."""
    columns = columns_of(rows_of(left))
    found = np.empty(count, np.int64)
    for t in range(count):
        found[t] = t // columns * piece_of(lanes) + t % columns
    return found, columns


@compiled(__name__, nogil=True)
def columns_of(rows):
    """Return how many columns of results are summed at once, for blocks of so many rows."""
    return _C8 if rows == 8 else _C6 if rows == 6 else _C4 if rows == 4 else _C2


@compiled(__name__, nogil=True)
def collect(own, at, rows, first, out):
    """Write rows of the weights' gradient from row `first` on into out (some, count), of `rows` in all.

    own (shares, ...): each share's blocks from the number `at` on, which are added up.
    """
    count, lanes = out.shape[1], BYTES // out.itemsize
    for i in range(len(out)):
        block = (first + i) // ROWS * ROWS
        places, columns = places_of(rows - block, count, lanes)
        begin = at + block // ROWS * room_of(count, lanes) + (first + i - block) * columns
        for t in range(count):
            total = own[0, begin + places[t]]
            for share in range(1, len(own)):
                total += own[share, begin + places[t]]
            out[i, t] = total


@compiled(__name__, nogil=True)
def aligned(n, like):
    """Return a new vector of n numbers of the dtype of `like` that begins where a register's worth of memory does."""
    room = np.empty(n + BYTES // like.itemsize, like.dtype)
    first = -room.ctypes.data % BYTES // like.itemsize
    return room[first : first + n]


@compiled(__name__, nogil=True)
def bundle(x, out):
    """Write x (images, numbers), at most as many images as there are lanes, into out (numbers, lanes).

    Lanes for which there is no image become zero.
    """
    n, m = x.shape
    size, lanes = x.itemsize, out.shape[1]
    done = 0
    if n == lanes:
        for i in range(0, m - lanes + 1, lanes):
            transpose(x.dtype, x.ctypes.data + i * size, x.strides[0], out.ctypes.data + i * BYTES, BYTES)
            done = i + lanes
    for i in range(done, m):
        for lane in range(lanes):
            out[i, lane] = x[lane, i] if lane < n else 0


@compiled(__name__, nogil=True)
def unbundle(x, out):
    """Write x (numbers, lanes) into out (images, numbers), at most as many images as there are lanes."""
    n, m = out.shape
    size, lanes = x.itemsize, x.shape[1]
    done = 0
    if n == lanes:
        for i in range(0, m - lanes + 1, lanes):
            transpose(x.dtype, x.ctypes.data + i * BYTES, BYTES, out.ctypes.data + i * size, out.strides[0])
            done = i + lanes
    for i in range(done, m):
        for lane in range(n):
            out[lane, i] = x[i, lane]


@intrinsic
def _largest(typingctx, dtype, x, taps, count, relu, y, index):
    """Write the largest of the vectors `x[taps[t]]`, t below count, to y, and which t it is, a byte a lane, to index.

    With `relu`, a number below 0 becomes 0, and its byte is NONE, as that of a 0. count: below NONE. A NaN is the
    largest of all. taps (count,): distances in bytes, int64; x, y, index: addresses.
    """
    kind = dtype.dtype

    def generate(context, builder, signature, arguments):
        _, x, taps, count, relu, y, index = arguments
        code = Writer(context, builder, kind)
        lanes = code.vector.count
        marks = ir.VectorType(ir.IntType(kind.bitwidth), lanes)
        zero, none = ir.Constant(code.vector, None), ir.Constant(marks, [NONE] * lanes)
        best = cgutils.alloca_once_value(builder, code.load(code.at(x, code.load(taps, INDEX))))
        place = cgutils.alloca_once_value(builder, ir.Constant(marks, None))
        with cgutils.for_range_slice(builder, INDEX(1), count, INDEX(1), INDEX) as (t, _):
            tap = code.load(code.at(taps, builder.mul(t, INDEX(ADDRESS))), INDEX)
            value, old = code.load(code.at(x, tap)), builder.load(best)
            more = builder.or_(builder.fcmp_ordered(">", value, old), builder.fcmp_unordered("uno", value, value))
            number = builder.trunc(t, marks.element) if kind.bitwidth < 64 else t
            undefined = ir.Constant(marks, ir.Undefined)
            first = builder.insert_element(undefined, number, ir.IntType(32)(0))
            mask = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
            builder.store(builder.select(more, value, old), best)
            builder.store(
                builder.select(more, builder.shuffle_vector(first, undefined, mask), builder.load(place)), place
            )
        with builder.if_then(builder.icmp_signed("!=", relu, INDEX(0))):
            value = builder.load(best)
            builder.store(builder.select(builder.fcmp_ordered(">", value, zero), builder.load(place), none), place)
            builder.store(builder.select(builder.fcmp_ordered("<", value, zero), zero, value), best)
        code.store(builder.load(best), y)
        bytes_ = builder.trunc(builder.load(place), ir.VectorType(ir.IntType(8), lanes))
        builder.store(bytes_, builder.inttoptr(index, bytes_.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(dtype, *[types.intp] * 6), generate


@intrinsic
def _share_out(typingctx, dtype, dy, index, taps, count, add, dx):
    """Write dy, a vector, to each of `dx[taps[t]]`, t below count, in the lanes where the byte of index is t, else 0.

    add: whether to add it to what is there. taps (count,): distances in bytes, int64; dy, index, dx: addresses.
    """
    kind = dtype.dtype

    def generate(context, builder, signature, arguments):
        _, dy, index, taps, count, add, dx = arguments
        add = builder.icmp_signed("!=", add, INDEX(0))
        code = Writer(context, builder, kind)
        lanes = code.vector.count
        byte = ir.VectorType(ir.IntType(8), lanes)
        value, zero = code.load(dy), ir.Constant(code.vector, None)
        place = builder.load(builder.inttoptr(index, byte.as_pointer()), align=1)
        undefined, mask = ir.Constant(byte, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
        with cgutils.for_range(builder, count) as loop:
            at = code.at(dx, code.load(code.at(taps, builder.mul(loop.index, INDEX(ADDRESS))), INDEX))
            first = builder.insert_element(undefined, builder.trunc(loop.index, byte.element), ir.IntType(32)(0))
            here = builder.icmp_unsigned("==", place, builder.shuffle_vector(first, undefined, mask))
            old = builder.select(add, code.load(at), zero)
            code.store(builder.fadd(old, builder.select(here, value, zero)), at)
        return context.get_dummy_value()

    return types.void(dtype, *[types.intp] * 6), generate


@compiled(__name__, nogil=True)
def pool(dtype, lanes, z, row, plane, stride, taps, count, relu, planes, down, right, y, y_row, y_plane, index):
    """Make the largest of each of down x right windows of each plane of z; see `_largest`.

    row, plane, y_row, y_plane: bytes between rows and planes of z and of y. stride: vectors between windows.
    """
    for i in range(planes):
        for p in range(down):
            start, end = z + i * plane + p * stride * row, y + i * y_plane + p * y_row
            for q in range(right):
                _largest(dtype, start + q * stride * BYTES, taps, count, relu, end + q * BYTES, index)
                index += lanes


@compiled(__name__, nogil=True)
def pool_backward(dtype, lanes, dy, index, stride, taps, count, planes, down, right, add, dz, row, plane):
    """Write the gradients dy (planes, down, right, lanes) to where in dz the largest numbers were; see `pool`.

    The other numbers of a window become 0, and those of no window stay as they are. add: whether windows overlap.
    """
    for i in range(planes):
        for p in range(down):
            start = dz + i * plane + p * stride * row
            for q in range(right):
                _share_out(dtype, dy, index, taps, count, add, start + q * stride * BYTES)
                dy += BYTES
                index += lanes
