"""Dot products by hand: tiles of a matrix product in float32, and of bytes, whose sums are integers of 32 bits.

A step of bytes multiplies four of an input by four weights, and adds the products to one sum of 32 bits in each lane.
Which instructions do that depends on the processor, and never changes a bit:

    vnni     vpdpbusd, one instruction (AVX-512 VNNI, AVX-VNNI)
    maddubs  vpmaddubsw, whose sums of two products have 16 bits, vpmaddwd, vpaddd. The first saturates beyond 32,767,
             which it can't reach: the weights of a pair are chosen so that their sum is within 128; see `nn.quantize`.
             Where two steps' sums stay within it together, they are added in 16 bits: five instructions for six
    usdot    one instruction of ARM's (its feature i8mm, as in Apple's M2 and Neoverse V1)
    sdot     one of ARM's for inputs with a sign (dotprod: M1, Cortex-A76). So 128 is taken from each, which turns its
             first bit, and made up for in the bias
    plain    bytes that are widened and multiplied, for any other processor

A tile is the outputs of a few pixels for a block of channels. Its sums begin at the bias and stay in registers until
they are done. Then comes the largest of each pooling window, ReLU, and for bytes the way back to 8 bits. Numba compiles
for this processor, or for what NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say; these decide here, too.
"""

from functools import cache, reduce

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils

from .simd import _FEATURES, _MACHINE, _NAME, ADDRESS, ARM, BYTES, INDEX, LANES, REGISTERS, Writer, everywhere, written

_HAS = frozenset(_FEATURES.split(","))
BYTE, INT, LONG = (ir.IntType(bits) for bits in (8, 32, 64))
ALONE = 4  # vectors of channels of a tile of one pixel, whose weights come from afar
WIDE = 2  # of one of several pixels: each of its weights is used for all of these
PIXELS = 8, 8 if REGISTERS == 32 else 4  # of a tile of one vector, and of a wide one
MIDDLE = 128  # of unsigned bytes


def way():
    """Return which instructions add products of bytes here: "vnni", "maddubs", "usdot", "sdot" or "plain"."""
    if ARM:
        return neon(_MACHINE, _NAME, _FEATURES)
    if {"+avx512vnni"} <= _HAS if BYTES == 64 else "+avxvnni" in _HAS or {"+avx512vnni", "+avx512vl"} <= _HAS:
        return "vnni"
    return "maddubs" if "+avx512bw" in _HAS or (BYTES == 32 and "+avx2" in _HAS) else "plain"


def offset():
    """Return what is taken from each byte of an input, before it is multiplied."""
    return MIDDLE if way() == "sdot" else 0


SUM = """
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
define i32 @sum(<16 x i8> %x, <16 x i8> %weights) {{
  %one = {} <16 x i8> %x to <16 x i32>
  %other = sext <16 x i8> %weights to <16 x i32>
  %products = mul <16 x i32> %one, %other
  %sum = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %products)
  ret i32 %sum
}}
"""


@cache
def neon(machine, name, features):
    """Return "usdot" or "sdot" if an ARM processor has it, else "plain": what LLVM makes of a sum of products.

    It knows that by the processor's name. Among the features that it finds on Linux is neither.
    """
    target = binding.Target.from_triple(machine).create_target_machine(cpu=name, features=features)
    for extend, instruction in ("zext", "usdot"), ("sext", "sdot"):  # Apple writes sdot.4s
        if f"\t{instruction}" in target.emit_assembly(binding.parse_assembly(SUM.format(extend))):
            return instruction
    return "plain"


class Floats:
    """float32: a step is one value times one weight."""

    def __init__(self, code):
        self.code, self.builder, self.vector = code, code.builder, code.vector

    def step(self, total, factors):
        return self.builder.call(self.code.fma, [*factors, total])

    def largest(self, one, other):
        return self.builder.select(self.builder.fcmp_ordered(">", one, other), one, other)  # NaN stays where it is

    def prepare(self, width, end, low, *_):
        kind = self.vector.element
        low = self.builder.select(self.builder.icmp_signed("==", low, INDEX(0)), kind(0.0), kind(-np.inf))
        self.low = everywhere(self.builder, self.vector, low)

    def finish(self, totals):
        """Return the totals, not below `low`: 0 for ReLU, and any other number for none."""
        return [self.largest(self.low, total) for total in totals]


class Bytes:
    """Four bytes times four weights a step, added to 32 bits."""

    def __init__(self, code):
        self.code, self.builder, self.vector = code, code.builder, code.vector
        self.bytes, shorts = ir.VectorType(BYTE, BYTES), ir.VectorType(ir.IntType(16), BYTES // 2)
        ones = ir.Constant(shorts, [1] * shorts.count)
        if way() == "maddubs":  # by what LLVM can't look into: else ones are the first to lose their register
            self.ones = self.builder.asm(ir.FunctionType(shorts, [shorts]), "", "=x,0", [ones], True)

    def step(self, total, *factors):
        """Return a total and the products of (x, weights); for "maddubs" of two, whose sums fit into 16 bits, too."""
        return getattr(self, f"_{way()}")(total, *factors)

    def _call(self, name, out, *arguments):
        kind = ir.FunctionType(out, [each.type for each in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def _vnni(self, total, factors):
        return self._call(f"llvm.x86.avx512.vpdpbusd.{8 * BYTES}", self.vector, total, *factors)

    def _maddubs(self, total, *factors):
        two, four = ("avx512.pmaddubs.w.512", "avx512.pmaddw.d.512") if BYTES == 64 else ("avx2.pmadd.ub.sw",
                                                                                          "avx2.pmadd.wd")  # fmt: skip
        shorts = ir.VectorType(ir.IntType(16), BYTES // 2)
        pairs = [[self.builder.bitcast(each, self.bytes) for each in pair] for pair in factors]
        sums = reduce(self.builder.add, [self._call(f"llvm.x86.{two}", shorts, *pair) for pair in pairs])
        return self.builder.add(total, self._call(f"llvm.x86.{four}", self.vector, sums, self.ones))

    def _usdot(self, total, factors):
        return self._neon("usdot", total, *(self.builder.bitcast(each, self.bytes) for each in factors))

    def _sdot(self, total, factors):
        x, weights = (self.builder.bitcast(each, self.bytes) for each in factors)
        return self._neon("sdot", total, self.builder.xor(x, ir.Constant(self.bytes, [MIDDLE] * BYTES)), weights)

    def _neon(self, name, *arguments):
        return self._call(f"llvm.aarch64.neon.{name}.v{LANES}i32.v{BYTES}i8", self.vector, *arguments)

    def _plain(self, total, factors):
        wide, builder = ir.VectorType(INT, BYTES), self.builder
        x, weights = (builder.bitcast(each, self.bytes) for each in factors)
        products = builder.mul(builder.zext(x, wide), builder.sext(weights, wide))
        for i in range(4):
            lanes = ir.Constant(ir.VectorType(INT, LANES), list(range(i, BYTES, 4)))
            total = builder.add(total, builder.shuffle_vector(products, products, lanes))
        return total

    def largest(self, one, other):
        return self.builder.select(self.builder.icmp_signed(">", one, other), one, other)


class Requantized(Bytes):
    """Sums become bytes again: `min(max((sum * multiplier + half) >> shift, low), 255)`, the product in 64 bits."""

    def prepare(self, width, end, low, shift, zero):
        builder, longs = self.builder, ir.VectorType(LONG, LANES // 2)
        half = builder.shl(LONG(1), builder.sub(shift, LONG(1)))
        half = builder.add(half, builder.shl(zero, shift))
        above = LONG(2**62)  # all is positive with it, and AVX2 shifts nothing else; products are less than 2^62
        half, back = builder.add(half, above), builder.trunc(builder.lshr(above, shift), INT)
        self.half, self.shift = (everywhere(builder, longs, each) for each in (half, shift))
        self.back, self.low = (everywhere(builder, self.vector, each) for each in (back, builder.trunc(low, INT)))
        self.multipliers = [self.code.at(end, i * BYTES) for i in range(width)]

    def _apart(self, vector):
        """Return each second number, as 64 bits, and those between."""
        longs, builder = self.half.type, self.builder
        vector, word = builder.bitcast(vector, longs), ir.Constant(longs, [32] * longs.count)
        return builder.ashr(vector, word), builder.ashr(builder.shl(vector, word), word)

    def finish(self, totals):
        builder, word = self.builder, ir.Constant(self.half.type, [32] * self.half.type.count)
        most, out = ir.Constant(self.vector, [255] * LANES), ir.VectorType(BYTE, LANES)
        found = []
        for total, multiplier in zip(totals, self.multipliers, strict=True):
            odd, even = (
                builder.lshr(builder.add(builder.mul(*each), self.half), self.shift)
                for each in zip(self._apart(total), self._apart(self.code.load(multiplier)), strict=True)
            )
            even = builder.lshr(builder.shl(even, word), word)
            value = builder.bitcast(builder.or_(even, builder.shl(odd, word)), self.vector)
            value = self.largest(builder.sub(value, self.back), self.low)
            value = builder.select(builder.icmp_signed("<", value, most), value, most)
            found.append(builder.trunc(value, out))
        return found


class Dequantized(Bytes):
    """Sums become float32: `float(sum) * scale`."""

    def prepare(self, width, end, *_):
        floats = ir.VectorType(ir.FloatType(), LANES)
        self.scales = [self.code.load(self.code.at(end, i * BYTES), floats) for i in range(width)]

    def finish(self, totals):
        return [self.builder.fmul(self.builder.sitofp(total, scale.type), scale)
                for total, scale in zip(totals, self.scales, strict=True)]  # fmt: skip


def _tiles(kind, pixels, width, group, code, n, x, x_at, y, y_at, weights, begin, end, pairs, steps, along, lanes,
           *about):  # fmt: skip
    """Write the outputs of n tiles whose pixels follow each other in the tables; of each `group` of pixels the largest.

    x, y: addresses of an image's inputs and outputs; x_at, y_at: of tables of distances in bytes, to each window's
    corner and to each output. weights (steps, width, a register), begin, end (width, a register): addresses; bias in
    begin, what `finish` multiplies by in end. along: the address of a table of distances to each step's 4 bytes. pairs:
    so many of the first steps are done by two. lanes: channels from the block's first one on. about: low, shift and
    zero, for `finish`. Nothing is checked.
    """
    does, builder = kind(code), code.builder
    does.prepare(width, end, *about)
    bias = [code.load(code.at(begin, q * BYTES)) for q in range(width)]
    masks = [_below(code, builder.sub(lanes, INDEX(q * LANES))) for q in range(width)]
    with cgutils.for_range(builder, n) as tile:
        first = builder.mul(tile.index, INDEX(pixels * ADDRESS))
        to = code.at(y_at, builder.udiv(first, INDEX(group)))
        corners = [code.at(x, code.distance(code.at(x_at, first), p)) for p in range(pixels)]
        totals = code.totals(bias * pixels)
        _add(does, totals, corners, weights, along, pairs, builder.sub(steps, builder.shl(pairs, INDEX(1))))
        for g in range(pixels // group):
            found = [builder.load(total) for total in totals[g * group * width : (g * group + 1) * width]]
            for p in range(g * group + 1, (g + 1) * group):
                found = [does.largest(builder.load(totals[p * width + q]), each) for q, each in enumerate(found)]
            _store(code, does.finish(found), code.at(y, code.distance(to, g)), lanes, masks)


def _add(does, totals, corners, weights, along, pairs, single):
    """Add the products of all steps to totals (pixels, width): those of so many pairs of steps, and of single ones."""
    code, builder, width = does.code, does.builder, len(totals) // len(corners)
    place, path = (cgutils.alloca_once_value(builder, each) for each in (weights, along))
    number, both = does.vector.element.as_pointer(), isinstance(does, Bytes) and way() == "maddubs"
    for count, together in ((pairs, 2), (single, 1))[not both :]:
        with cgutils.for_range(builder, count):
            at, distances = builder.load(place), builder.load(path)
            distances = [code.distance(distances, i) for i in range(together)]
            vectors = [code.load(code.at(at, q * BYTES)) for q in range(together * width)]
            for p, corner in enumerate(corners):
                values = [builder.load(builder.inttoptr(code.at(corner, each), number), align=1) for each in distances]
                values = [everywhere(builder, does.vector, value) for value in values]
                for q, total in enumerate(totals[p * width : (p + 1) * width]):
                    factors = zip(values, vectors[q::width], strict=True)
                    builder.store(does.step(builder.load(total), *factors), total)
            builder.store(code.at(at, together * width * BYTES), place)
            builder.store(code.at(builder.load(path), together * ADDRESS), path)


def _below(code, n):
    """Return which lanes are the first n."""
    numbers = ir.VectorType(INDEX, LANES)
    return code.builder.icmp_signed("<", ir.Constant(numbers, list(range(LANES))), everywhere(code.builder, numbers, n))


def _store(code, vectors, place, lanes, masks):
    """Store vectors side by side, so many of whose lanes are there: those of the masks."""
    builder = code.builder
    for q, (vector, mask) in enumerate(zip(vectors, masks, strict=True)):
        size = getattr(vector.type.element, "width", 32) // 8
        to = builder.inttoptr(code.at(place, q * LANES * size), vector.type.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [vector.type, to.type, INT, mask.type])
        name = f"llvm.masked.store.v{LANES}{'i8' if size == 1 else 'f32'}.p0"
        with builder.if_else(builder.icmp_signed(">=", lanes, INDEX((q + 1) * LANES))) as (whole, part):
            with whole:
                builder.store(vector, to, align=1)
            with part:
                if size == 1 and "+avx512bw" not in _HAS:
                    _store_bytes(code, vector, code.at(place, q * LANES), builder.sub(lanes, INDEX(q * LANES)))
                else:
                    masked = cgutils.get_or_insert_function(builder.module, kind, name)
                    builder.call(masked, [vector, to, INT(1), mask])


def _store_bytes(code, vector, place, n):
    """Store the first n bytes of a vector, in pieces: without a mask for bytes LLVM stores them one by one."""
    builder, size = code.builder, LANES // 2
    left = builder.bitcast(vector, ir.IntType(8 * LANES))
    n = builder.select(builder.icmp_signed(">", n, INDEX(0)), n, INDEX(0))
    place, left = cgutils.alloca_once_value(builder, place), cgutils.alloca_once_value(builder, left)
    while size:
        with builder.if_then(builder.icmp_signed("!=", builder.and_(n, INDEX(size)), INDEX(0))):
            piece, value, at = ir.IntType(8 * size), builder.load(left), builder.load(place)
            to = builder.inttoptr(at, piece.as_pointer())
            builder.store(builder.trunc(value, piece), to, align=1)
            builder.store(builder.lshr(value, value.type(8 * size)), left)
            builder.store(code.at(at, size), place)
        size //= 2


SHAPES = [
    *((1, width, 1) for width in (1, ALONE)),
    *((pixels, width, group) for pixels, width in zip(PIXELS, (1, WIDE), strict=True) for group in (1, 4)),
]
KINDS = 0, 1, 2  # of VARIANTS: float32, bytes to bytes, bytes to float32
VARIANTS = [(kind, *shape) for kind in (Floats, Requantized, Dequantized) for shape in SHAPES]


@written
def tiles(code, variant, n, x, x_at, y, y_at, weights, begin, end, pairs, steps, along, lanes, low, shift, zero):
    """Write n tiles of the kind, pixels, width and group that VARIANTS[variant] names. See `_tiles`."""
    arguments = n, x, x_at, y, y_at, weights, begin, end, pairs, steps, along, lanes, low, shift, zero
    for i, (kind, pixels, width, group) in enumerate(VARIANTS):
        with code.builder.if_then(code.builder.icmp_signed("==", variant, INDEX(i))):
            inner = code if kind is Floats else Writer(code.context, code.builder, types.int32)
            _tiles(kind, pixels, width, group, inner, *arguments)
