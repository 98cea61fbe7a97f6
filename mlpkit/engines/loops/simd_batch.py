"""A SIMD batch is as many images as a vector register holds elements: their elements of one place lie side by side.

So an array of images (n, c, h, w) becomes SIMD batches (c, h, w, lanes), and one instruction does for all its images
what the mathematics says for one. No channel count is too small for it, no stride too odd, and a sum over c, p and q
never leaves its register: what costs a convolution its speed in other layouts isn't there. A batch that is no multiple
of `lanes` ends in a SIMD batch whose other images are zero: a batch of 1 takes as long as one of `lanes`.

`_products` and `_slopes` are the two sums of a convolution, forward and for the weights, each for as many results as
fit into the registers. They read through tables of distances in bytes, which know of padding, stride and kernel.
Like those of `simd`, the functions here take addresses, and check nothing.
"""

from functools import partial

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from .compiler import compiled
from .simd import ADDRESS, BYTES, INDEX, REGISTERS, address, everywhere, transpose, written

# Results that are summed at once, by the rows of a block: how many columns. Together with what a step reads, they fill
# the registers: 24 of 32, or 10 to 12 of 16. Of the weights' gradient both factors are vectors, and LLVM loads a step's
# first of all: so there are fewer sums, that none of them goes to memory and back in each step.
COLUMNS = {8: 3, 6: 4, 4: 6, 2: 8} if REGISTERS == 32 else {4: 3, 2: 5}
SLOPE_COLUMNS = {4: 4, 2: 6} if REGISTERS == 32 else {4: 3, 2: 4}
_S4, _S2 = SLOPE_COLUMNS.values()
ROWS, SLOPE_ROWS = max(COLUMNS), max(SLOPE_COLUMNS)
MOST = max(rows * columns for rows, columns in SLOPE_COLUMNS.items())
NONE = 255  # stands for no number of a window
SPARE = max(COLUMNS.values())  # entries that a table of positions repeats at its end, so that columns are never lacking


def _products(rows, columns, code, w, taps, depth, x, x_at, out, out_at, out_row, start, valid, relu=False):
    """Write `start[r] + sum(w[t, r] * x[x_at[s] + taps[t]])`, t below depth, to `out[r * out_row + out_at[s]]`.

    w (depth, rows) and start (rows,) are scalars; x and out hold vectors. taps (depth,), x_at and out_at (columns,) are
    distances in bytes, int64. Only the first `valid` rows are written; with relu, 0 where they would be below.
    """
    builder, size = code.builder, code.kind.bitwidth // 8
    starts = [code.everywhere(code.at(start, r * size)) for r in range(rows)]
    totals = [code.totals([first] * columns) for first in starts]
    places = [code.at(x, code.distance(x_at, s)) for s in range(columns)]
    with cgutils.for_range(builder, depth) as loop:
        tap = code.distance(taps, loop.index)
        weights = code.at(w, builder.mul(loop.index, INDEX(rows * size)))
        pieces = [code.load(code.at(place, tap)) for place in places]
        for r in range(rows):
            factor = code.everywhere(code.at(weights, r * size))
            for s in range(columns):
                code.multiply_add(factor, pieces[s], totals[r][s])
    ends = [code.at(out, code.distance(out_at, s)) for s in range(columns)]
    for r in range(rows):
        with builder.if_then(builder.icmp_signed(">", valid, INDEX(r))):
            for end, total in zip(ends, totals[r], strict=True):
                value = builder.load(total)
                if relu:
                    (zero,) = code.zeros(1)
                    value = builder.select(builder.fcmp_ordered("<", value, zero), zero, value)
                code.store(value, code.at(end, builder.mul(INDEX(r), out_row)))


def _slopes(rows, columns, code, dz, dz_row, dz_at, x, x_at, depth, taps, out, valid):
    """Add `sum(dz[r * dz_row + dz_at[t]] * x[x_at[t] + taps[s]])`, t below depth, to the elements out[r, s].

    The sum is over the lanes, too: dz and x hold vectors, and out (rows, columns) scalars, one after another, in as
    many vectors as they need. dz_at, x_at (depth,) and taps (columns,) are distances in bytes, int64. Only the first
    `valid` rows have a meaning.
    """
    builder = code.builder
    totals = [code.totals(code.zeros(columns)) for _ in range(rows)]
    places = [code.at(x, code.distance(taps, s)) for s in range(columns)]
    starts = [code.at(dz, builder.mul(INDEX(r), dz_row)) for r in range(rows)]
    for r in range(1, rows):  # a row that isn't there is read as the first one
        starts[r] = builder.select(builder.icmp_signed(">", valid, INDEX(r)), starts[r], dz)
    with cgutils.for_range(builder, depth) as loop:
        from_x, from_dz = (code.distance(table, loop.index) for table in (x_at, dz_at))
        pieces = [code.load(code.at(place, from_x)) for place in places]
        for r in range(rows):
            factor = code.load(code.at(starts[r], from_dz))
            for s in range(columns):
                code.multiply_add(factor, pieces[s], totals[r][s])
    sums = _sums(code, [builder.load(total) for row in totals for total in row])
    for i, value in enumerate(sums):
        place = code.at(out, i * BYTES)
        code.store(builder.fadd(code.load(place), value), place)


def _sums(code, vectors):
    """Return vectors that hold the sum of each vector's lanes, one after another.

    Vectors are added in pairs, half of one and half of the other, so that each instruction works for many sums.
    """
    lanes = code.vector.count
    found = []
    for first in range(0, len(vectors), lanes):
        level, step = vectors[first : first + lanes], lanes // 2
        level += code.zeros((1 << (len(level) - 1).bit_length()) - len(level))
        apart = lanes // len(level)  # in the end, how many lanes from a sum to the next
        while step:
            low = [lane + (lanes - step if lane & step else 0) for lane in range(lanes)]
            high = [lane + (lanes if lane & step else step) for lane in range(lanes)]
            half = len(level) // 2 or 1  # the last vector is added to itself
            pairs = zip(level[:half], level[-half:], strict=True)
            level = [code.builder.fadd(code.pick(*pair, low), code.pick(*pair, high)) for pair in pairs]
            step //= 2
        places = [lane * apart % lanes for lane in range(lanes)]
        found.append(level[0] if apart == 1 else code.pick(level[0], level[0], places))
    return found


@compiled(__name__, nogil=True)
def rows_of(left):
    """Return how many rows the next block has, of which `left` are still to be made."""
    return min(ROWS, 8 if left > 6 else 6 if left > 4 else 4 if left > 2 else 2)


@compiled(__name__, nogil=True)
def whole_blocks(rows):
    """Return how many rows there are once they are filled up to whole blocks."""
    return (rows + ROWS - 1) // ROWS * ROWS


def _each_height(code, tiles, height, count):
    """Write a loop over `count` columns for each height of `tiles`, of which the one for `height` rows is run.

    Yield, for its body to be written, rows, columns, and as values of LLVM's the bytes done of a table and the turn.
    """
    builder = code.builder
    end = builder.mul(count, INDEX(ADDRESS))
    for rows, columns in tiles.items():
        chosen = builder.if_then(builder.icmp_signed("==", height, INDEX(rows)))
        loop = cgutils.for_range_slice(builder, INDEX(0), end, INDEX(ADDRESS * columns), INDEX)
        with chosen, loop as (done, turn):
            yield rows, columns, done, turn


def _results(relu, code, height, left, w, taps, depth, x, x_at, count, out, out_at, out_row, start):
    for rows, columns, done, _ in _each_height(code, COLUMNS, height, count):
        here, there = code.at(x_at, done), code.at(out_at, done)
        _products(rows, columns, code, w, taps, depth, x, here, out, there, out_row, start, left, relu)


_multiply, _multiply_relu = (written(partial(_results, relu)) for relu in (False, True))


@written
def _add_slopes(code, height, left, dz, dz_row, dz_at, x, x_at, depth, taps, count, out, piece):
    for rows, columns, done, turn in _each_height(code, SLOPE_COLUMNS, height, count):
        here, there = code.at(taps, done), code.at(out, code.builder.mul(turn, piece))
        _slopes(rows, columns, code, dz, dz_row, dz_at, x, x_at, depth, here, there, left)


@compiled(__name__, nogil=True)
def multiply(dtype, left, w, taps, depth, x, x_at, count, out, out_at, out_row, start):
    """Make a block of results, `_products`, at `count` positions; `left` rows are still to be made, which may be more.

    x_at, out_at (count + SPARE,): as `_products` wants them, their last entry repeated.
    """
    _multiply(dtype, rows_of(left), left, w, taps, depth, x, x_at, count, out, out_at, out_row, start)


@compiled(__name__, nogil=True)
def multiply_relu(dtype, left, w, taps, depth, x, x_at, count, out, out_at, out_row, start):
    """Do what `multiply` does, with ReLU behind it."""
    _multiply_relu(dtype, rows_of(left), left, w, taps, depth, x, x_at, count, out, out_at, out_row, start)


@compiled(__name__, nogil=True)
def add_slopes(dtype, left, dz, dz_row, dz_at, x, x_at, depth, taps, count, out, piece):
    """Add SLOPE_ROWS rows of the weights' gradient, `_slopes`, for `count` taps; `left` rows are still to be made.

    taps (count + SPARE,): as `_slopes` wants them, the last entry repeated. out: as many pieces as the block needs.
    piece: bytes of one. `collect` knows where in them a number is.
    """
    _add_slopes(dtype, slope_rows(left), left, dz, dz_row, dz_at, x, x_at, depth, taps, count, out, piece)


@compiled(__name__, nogil=True)
def slope_rows(left):
    """Return how many rows the next block of the weights' gradient has, of which `left` are still to be made."""
    return 4 if left > 2 else 2


@compiled(__name__, nogil=True)
def slope_blocks(rows):
    """Return how many blocks so many rows of the weights' gradient are."""
    return (rows + SLOPE_ROWS - 1) // SLOPE_ROWS


@compiled(__name__, nogil=True)
def piece_of(lanes):
    """Return how many elements a piece of the weights' gradient has, as `_slopes` writes it: whole vectors."""
    return (MOST + lanes - 1) // lanes * lanes


@compiled(__name__, nogil=True)
def block_elements(count, lanes):
    """Return how many elements a block of the weights' gradient takes, for so many taps."""
    return (count + _S4 - 1) // _S4 * ((MOST + lanes - 1) // lanes * lanes)


@compiled(__name__, nogil=True)
def places_of(left, count, lanes):
    """Return where in a block's pieces each tap of its first row is, and how far it is to the next row."""
    columns = _S4 if slope_rows(left) == 4 else _S2
    found = np.empty(count, np.int64)
    for t in range(count):
        found[t] = t // columns * piece_of(lanes) + t % columns
    return found, columns


@compiled(__name__, nogil=True)
def collect(own, at, rows, first, out):
    """Write rows of the weights' gradient from row `first` on into out (some, count), of `rows` in all.

    own (shares, ...): each share's blocks from the number `at` on, which are added up.
    """
    count, lanes = out.shape[1], BYTES // out.itemsize
    for i in range(len(out)):
        block = (first + i) // SLOPE_ROWS
        places, columns = places_of(rows - block * SLOPE_ROWS, count, lanes)
        begin = at + block * block_elements(count, lanes) + (first + i) % SLOPE_ROWS * columns
        for t in range(count):
            total = own[0, begin + places[t]]
            for share in range(1, len(own)):
                total += own[share, begin + places[t]]
            out[i, t] = total


@compiled(__name__, nogil=True)
def aligned(n, like):
    """Return a new vector of n elements of the dtype of `like` that begins where a register's worth of memory does."""
    buffer = np.empty(n + BYTES // like.itemsize, like.dtype)
    first = -address(buffer) % BYTES // like.itemsize
    return buffer[first : first + n]


@compiled(__name__, nogil=True)
def zeros(n, like):
    """Return n zeros of the dtype of `like`: in a function with `prange`, `np.zeros` would be compiled as one more."""
    return np.zeros(n, like.dtype)


@compiled(__name__, nogil=True)
def copy(x, out):
    """Copy an array to the first elements of another, of a contiguous one each.

    What is assigned to a slice is compiled with all that makes an error's message, which is several times as much.
    """
    x, out = x.reshape(-1), out.reshape(-1)
    for i in range(len(x)):
        out[i] = x[i]


@compiled(__name__, nogil=True)
def pack_simd(x, out):
    """Write x (images, elements), at most as many images as there are lanes, into out (elements, lanes).

    Lanes for which there is no image become zero.
    """
    n, m = x.shape
    size, lanes = x.itemsize, out.shape[1]
    done = 0
    if n == lanes:
        for i in range(0, m - lanes + 1, lanes):
            transpose(x.dtype, address(x) + i * size, x.strides[0], address(out) + i * BYTES, BYTES)
            done = i + lanes
    for i in range(done, m):
        for lane in range(lanes):
            out[i, lane] = x[lane, i] if lane < n else 0


@compiled(__name__, nogil=True)
def unpack_simd(x, out):
    """Write x (elements, lanes) into out (images, elements), at most as many images as there are lanes."""
    n, m = out.shape
    size, lanes = x.itemsize, x.shape[1]
    done = 0
    if n == lanes:
        for i in range(0, m - lanes + 1, lanes):
            transpose(x.dtype, address(x) + i * BYTES, BYTES, address(out) + i * size, out.strides[0])
            done = i + lanes
    for i in range(done, m):
        for lane in range(n):
            out[lane, i] = x[i, lane]


@written
def _largest(code, x, taps, count, relu, y, index):
    """Write the largest of the vectors `x[taps[t]]`, t below count, to y, and which t it is, a byte a lane, to index.

    With `relu`, a number below 0 becomes 0, and its byte is NONE, as that of a 0. count: below NONE. A NaN is the
    largest of all. taps (count,): distances in bytes, int64; x, y, index: addresses.
    """
    builder, lanes, bits = code.builder, code.vector.count, code.kind.bitwidth
    marks = ir.VectorType(ir.IntType(bits), lanes)
    zero, none = ir.Constant(code.vector, None), ir.Constant(marks, [NONE] * lanes)
    best = cgutils.alloca_once_value(builder, code.load(code.at(x, code.distance(taps, 0))))
    place = cgutils.alloca_once_value(builder, ir.Constant(marks, None))
    with cgutils.for_range_slice(builder, INDEX(1), count, INDEX(1), INDEX) as (t, _):
        value, old = code.load(code.at(x, code.distance(taps, t))), builder.load(best)
        more = builder.or_(builder.fcmp_ordered(">", value, old), builder.fcmp_unordered("uno", value, value))
        here = everywhere(builder, marks, builder.trunc(t, marks.element) if bits < 64 else t)
        builder.store(builder.select(more, value, old), best)
        builder.store(builder.select(more, here, builder.load(place)), place)
    with builder.if_then(builder.icmp_signed("!=", relu, INDEX(0))):
        value = builder.load(best)
        builder.store(builder.select(builder.fcmp_ordered(">", value, zero), builder.load(place), none), place)
        builder.store(builder.select(builder.fcmp_ordered("<", value, zero), zero, value), best)
    code.store(builder.load(best), y)
    bytes_ = builder.trunc(builder.load(place), ir.VectorType(ir.IntType(8), lanes))
    builder.store(bytes_, builder.inttoptr(index, bytes_.type.as_pointer()), align=1)


@written
def _share_out(code, dy, index, taps, count, add, dx):
    """Write dy, a vector, to each of `dx[taps[t]]`, t below count, in the lanes where the byte of index is t, else 0.

    add: whether to add it to what is there. taps (count,): distances in bytes, int64; dy, index, dx: addresses.
    """
    builder, byte = code.builder, ir.VectorType(ir.IntType(8), code.vector.count)
    add = builder.icmp_signed("!=", add, INDEX(0))
    value, zero = code.load(dy), ir.Constant(code.vector, None)
    place = builder.load(builder.inttoptr(index, byte.as_pointer()), align=1)
    with cgutils.for_range(builder, count) as loop:
        at = code.at(dx, code.distance(taps, loop.index))
        number = everywhere(builder, byte, builder.trunc(loop.index, byte.element))
        here = builder.icmp_unsigned("==", place, number)
        old = builder.select(add, code.load(at), zero)
        code.store(builder.fadd(old, builder.select(here, value, zero)), at)


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
    """Write the gradients dy (planes, down, right, lanes) to where in dz the largest elements were; see `pool`.

    The other elements of a window become 0, and those of no window stay as they are. add: whether windows overlap.
    """
    for i in range(planes):
        for p in range(down):
            start = dz + i * plane + p * stride * row
            for q in range(right):
                _share_out(dtype, dy, index, taps, count, add, start + q * stride * BYTES)
                dy += BYTES
                index += lanes
