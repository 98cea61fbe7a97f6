"""The channel-blocked layout: a pass of two arrays as they come, by the kernels that engines are made of.

See `mlpkit.kernels.conv.blocked`. Images become planes, and filters get their order, before the call. To make halves of
either is part of it.
"""

from functools import partial

import numpy as np

from mlpkit import kernels
from mlpkit.kernels.conv import blocked, portable

from . import Prepared, Rung


def prepare(mode, shape, which, a, b, tiling=None):
    """Return a pass that is ready; see `Rung`. tiling: instead of the most promising one.

    Raises ValueError where the mode can't.
    """
    import cupy

    if reason := blocked.why_not(mode, shape, which):
        raise ValueError(reason)
    images, fp16_parts = blocked.images_as_blocked(a, mode), None
    if which == "weight_gradient":
        others, block = blocked.images_as_blocked(b, mode), None
    else:
        b = b if which == "forward" else b.swapaxes(0, 1)
        found = blocked.launches(mode, shape, which, tiling)
        orders = [blocked.filters_in_order(b[:, :, one.rows, one.columns], mode, one.tiling).ravel() for one in found]
        others, block = cupy.concatenate(orders), found[0].tiling.block(mode)
    operands, workspace = [blocked.Stored(images), blocked.Stored(others)], 0
    if mode.fp16_parts:
        empty = (cupy.empty(mode.parts * each.size, np.uint16) for each in (images, others))
        operands = [blocked.Stored(each, blocked.new_scale()) for each in empty]
        fp16_parts = [_pieces(images, operands[0].array), _pieces(others, operands[1].array, block)]
        workspace = sum(each.array.nbytes + each.scale.nbytes for each in operands)
    if which == "weight_gradient":
        result, sums = cupy.empty(shape.w, np.float32), blocked.empty_sums(mode, shape)
        product = partial(blocked.weight_gradient, mode, shape, operands[0], operands[1], result, partial_sums=sums)
        workspace += sums.nbytes
    else:
        channels = shape.channels_out if which == "forward" else shape.channels
        result = blocked.empty_blocked(mode, shape.batch, channels, *shape.operands(which)[2][2:])
        product = partial(blocked.convolve, mode, shape, which, operands[0], operands[1], result, tiling)

    def call():
        if fp16_parts:
            _split(mode, fp16_parts, [each.scale for each in operands])
        product()

    finish = (lambda: result) if which == "weight_gradient" else (lambda: blocked_as_images(result, channels))
    return Prepared(call, finish, workspace, (images, others, *operands))


def blocked_as_images(array, channels):
    """Return blocked images as float32 images (n, channels, h, w)."""
    import cupy

    n, _, h, w, _ = array.shape
    array = (array.astype(cupy.uint32) << 16).view(cupy.float32) if array.dtype == cupy.uint16 else array
    return cupy.ascontiguousarray(array.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :channels])


def as_operand(mode, array, scale=None):
    """Return blocked (n, c / s, h, w, s), float32 or bfloat16 as `mode` has them, as `Stored`: fp16 is made here."""
    if not mode.fp16_parts:
        return blocked.Stored(array)
    n, groups, height, width, each = array.shape
    found = blocked.empty_operand(mode, n, groups * each, height, width, scale)
    _split(mode, [_pieces(array, found.array)], [scale])
    return found


def _pieces(array, made, block=None):
    """Return the argument `Pieces` of the kernel `split`. block: of an array's pieces, see there; all where None."""
    area = array.shape[2] * array.shape[3] if array.ndim == 5 else 1
    values = [array.data.ptr, made.data.ptr, array.size // 8 | area << 32, block or array.size // 8]
    return np.array(values, np.uint64).view("V32")


def _split(mode, pieces, scales):
    """Ask for the fp16 parts of one or two arrays."""
    if len(pieces) == 1:
        pieces, scales = [*pieces, np.zeros(4, np.uint64).view("V32")], [*scales, np.uintp(0)]
    split = kernels.load(blocked.OPERANDS, MODE=mode.number).get_function("split").kernel
    split((blocked.multiprocessors(),), (1024,), (*pieces, *scales), shared_mem=32, enable_cooperative_groups=True)


def _rung(mode, label):
    module = mode.products or blocked
    files = module.FORWARD, module.WEIGHTS
    return Rung(label, files, mode.precision, "nc8hw8", partial(prepare, mode), partial(blocked.why_not, mode))


RUNGS = {
    "planes_bf16": _rung(blocked.MODES["bf16"], "channel-blocked, bfloat16"),
    "planes_tf32": _rung(blocked.MODES["tf32"], "channel-blocked, TF32"),
    "planes_fp16": _rung(blocked.MODES["fp16"], "channel-blocked, fp16"),
    "planes_fp16x3": _rung(blocked.MODES["fp16x3"], "channel-blocked, three products of fp16"),
}
# The same by mma.sync, on any chip since Turing
PORTABLE = {f"portable_{name}": _rung(mode, f"portable, {name}") for name, mode in portable.MODES.items()}
