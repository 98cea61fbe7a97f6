"""one CUDA kernel, an image a block: a network that sees, from its pixels to all its gradients.

See `kernels/cnn/limit.cu` for how, and `limit_portable.cu` for what is else before Hopper, and after. The kernel is
built for networks like LeNet-5: float32, one to three times Conv (of at most 7 x 7, stride 1), ReLU and MaxPool(2),
then one to four Linear layers with ReLU between them. It knows SGD, Adam and AdamW. Its sizes are known when it is
compiled. All blocks are on the GPU at once, and nothing else may hold its multiprocessors meanwhile: the launch is a
cooperative one, which CUDA refuses where they don't fit; and a block that waits in vain says so, for the host to raise.
"""

from itertools import pairwise
from math import prod

import cupy as cp
import numpy as np

from mlpkit.kernels import gpu
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.losses import SoftmaxCrossEntropy

from .cuda.evaluation import Evaluation as Evaluation
from .cuda.padded import check_dtype
from .cuda.rates import why_unknown
from .cuda.waiting import WaitingTrainer
from .plain import Prediction as Prediction

NAME = "cuda_conv_fused"
THREADS, MOST_BLOCKS, MOST_LAYERS, MOST_SIZE, MOST_PADDING = 512, 3, 4, 7, 2  # as in limit.cu
AWAITED = (  # as in limit_waits.cuh
    "the dense weights", "the convolutions' weights", "all slopes", "all gradients", "the neighbour's sums",
    "the other GPUs",
)  # fmt: skip
C_TYPES = {np.dtype(np.uint8): "unsigned char", np.dtype(np.float32): "float"}


def why_not(model, optimizer, batch_size):
    """Return None, or what the kernel is not made for, in one sentence."""
    found = shape_of(model)
    if isinstance(found, str):
        return found
    return why_unknown(optimizer, NAME, sends=True) or _too_large(model, *found)


def shape_of(model):
    """Return (channels, size, padding) of each convolution and the units of each dense layer, or why there are none."""
    layers, convs = list(model.layers), []
    while layers and type(layers[0]) is Conv:
        conv, rest = layers[0], layers[1:3]
        if len(rest) < 2 or {*map(type, rest)} != {MaxPool, ReLU} or not any(map(_pools_by_two, rest)):
            return _no("has ReLU and MaxPool(2) after each Conv")
        if conv.stride != 1 or conv.size > MOST_SIZE or conv.padding > MOST_PADDING or not conv.bias:
            return _no(f"convolves with stride 1, at most {MOST_SIZE} x {MOST_SIZE}, padding of at most {MOST_PADDING}")
        convs.append((conv.channels, conv.size, conv.padding))
        layers = layers[3:]
    if not 1 <= len(convs) <= MOST_BLOCKS:
        return _no(f"begins with 1 to {MOST_BLOCKS} blocks of Conv, ReLU and MaxPool(2)")
    dense = layers[1::2]
    ends = [Flatten, *[Linear, ReLU] * (len(dense) - 1), Linear]
    if not 1 <= len(dense) <= MOST_LAYERS or [*map(type, layers)] != ends:
        return _no(f"ends with Flatten and 1 to {MOST_LAYERS} Linear layers with ReLU between them")
    if type(model.loss) is not SoftmaxCrossEntropy:
        return _no("is trained with softmax cross-entropy")
    return tuple(convs), tuple(layer.units for layer in dense)


def _pools_by_two(layer):
    return type(layer) is MaxPool and layer.size == 2 and layer.stride in (None, 2)


def _no(what):
    return f"{NAME} trains a network that {what}: take another engine."


def _too_large(model, convs, dense):
    """Return the sentence for layers that a block's memory can't hold, or None."""
    need, there = _bytes_needed(model, convs, dense), gpu.shared_memory()
    if need is None:
        return _no("has an image of at least 2 x 2 before each MaxPool(2)")
    if need > there:
        return (
            f"{NAME} needs {-(-need >> 10)} KiB of shared memory for this model, and a block has {there >> 10}: "
            f"take another engine."
        )
    return None


# The kernels, the most demanding one first: see limit.cu and limit_portable.cu
HOPPERS, PORTABLE = "limit", "limit_portable"
KERNELS = {HOPPERS: gpu.Needs(90, alone=True), PORTABLE: gpu.Needs(80)}


def kernel_here():
    """Return the name of the file whose kernel this GPU runs: which of them hold all dense weights, and which don't."""
    return next(name for name, needs in KERNELS.items() if needs.are_met())


def _blocks():
    """Return how many blocks there are: pairs, one for each multiprocessor."""
    return gpu.multiprocessors() // 2 * 2


def _bytes_needed(model, convs, dense, halves=1):
    """Return the shared memory of a block, at most, or None for too small an image; limit_shapes.cuh counts exactly.

    halves: how many blocks share an image.
    """
    streams, inputs = kernel_here() != HOPPERS, [model.input[0], *(out for out, _, _ in convs)][:-1]
    channels, height, width = model.input
    fixed, late, parts, routed, transposed = 1024, 16 * THREADS * 5, THREADS * 16, 0, 0
    for i, (out, size, padding) in enumerate(convs):
        rows, across, taps = height + 2 * padding, width + 2 * padding, channels * size**2
        ph, pw = (rows - size + 1) // 2, (across - size + 1) // 2
        if min(ph, pw) < 1:
            return None
        pieces = -(-pw // (5 if halves == 1 else 3))
        stride = max(across, 2 * -(-pw // pieces) * pieces + size - 1) + 8
        fixed += 4 * (channels * (rows * stride + 64) + (out + 4) * (taps + 1)) + out * ph * pw
        routed, transposed = routed + 8 * out * ph * pw, transposed + (4 * out * taps if i else 0)
        splits = min(channels, halves * THREADS // (out * ph * pieces))
        parts = max(parts, 16 * splits * out * ph * pw if splits > 1 else 0)
        least = _least_late if streams else _late
        late = max(late, least(channels, height, out, size, ph, pw) if i else 8 * out * ph * taps)
        fixed += 4 * channels * height * width // halves if halves > 1 and i else 0
        channels, height, width = out, ph, pw
    widths = [channels * height * width, *dense]
    layers = [(rows, -(-units // 4)) for rows, units in pairwise(widths)]
    layers[0] = layers[0][0] // halves, layers[0][1]
    weights = sum(_layer_bytes(rows, fours) for rows, fours in layers) - _kept(*max(layers, key=prod))
    fixed += 12 * (sum(widths) + 4 * len(widths))
    summed = sum(out * (before * size**2 + 1) for (out, size, _), before in zip(convs, inputs, strict=True))
    passes = -(-summed // (32 * _blocks()))  # in which a block adds up its part of the convolutions' gradients
    back = max(max(routed, THREADS // 8 * (max(dense) + 4)) + transposed, 4 * THREADS * (passes + 1))
    return fixed + (max(parts, back + 256 + late) if streams else max(parts, back) + max(late, weights))


def _layer_bytes(rows, fours):
    return 16 * rows * fours


def _kept(rows, fours):
    """Return how many bytes of a layer's weights, so many fours a row, the threads can have in their registers."""
    lanes = min(32, 1 << (fours - 1).bit_length())  # of a row; a lane has 12 fours at most
    slots, most = THREADS // lanes, 12 // -(-fours // lanes)
    others = max(0, -(-rows // slots) - most) * slots  # rows
    return _layer_bytes(rows - min(rows, others), fours)


def _halves(model, batch_size, blocks):
    """Return how many blocks share an image: two, if there are so many and two convolutions that can be halved."""
    convs, dense = shape_of(model)
    if len(convs) != 2 or 2 * batch_size > blocks or kernel_here() != HOPPERS:
        return 1
    (first, size, padding), (second, next_size, next_padding) = convs
    height, width = ((side + 2 * padding - size + 1) // 2 for side in model.input[1:])
    ph, pw = ((side + 2 * next_padding - next_size + 1) // 2 for side in (height, width))
    even = first % 2 == second % 2 == 0 == first * height * width % 8 == second * ph * pw % 8
    there = gpu.shared_memory()
    return 2 if even and _bytes_needed(model, convs, dense, 2) <= there else 1


def _late(channels, height, out, size, ph, pw):
    """Return how many bytes the way back through a convolution takes, but the first one."""
    chunks, lanes = -(-pw // 5), -(-channels * size // 32)
    span, groups = 2 * -(-pw // chunks) + size - 1, min(out, max(1, THREADS // 32 // (ph * chunks * lanes)))
    inputs = 8 * groups * ph * chunks * (span * (32 * lanes + height % 32) + 33)
    return inputs + 4 * out * channels * size**2 * ph * chunks


def _least_late(channels, height, out, size, ph, pw):
    """Return the same where the sums of one row take the place of the last one's, and one warp has all channels."""
    chunks, lanes = -(-pw // 5), -(-channels * size // 32)
    span = 2 * -(-pw // chunks) + size - 1
    return 8 * ph * chunks * (span * (32 * lanes + 1) + 33) + 4 * out * channels * size**2 + 32


class Trainer(WaitingTrainer):
    """Trains a network with one launch an epoch.

    X: uint8 pixels, or float32. macros: of the kernel, beside its own. Raises ValueError for a network that does not
    compute in float32.
    """

    engine, awaited = NAME, AWAITED

    def __init__(self, network, optimizer, X, y, batch_size, **macros):
        check_dtype(network, NAME)
        self.file = kernel_here()
        X = cp.ascontiguousarray(X.reshape(len(X), -1))
        macros = macros_for(network.model, optimizer, batch_size, X.dtype) | macros
        super().__init__(macros, optimizer, X, y, batch_size, (network.theta, *optimizer.state.values()))


def macros_for(model, optimizer, batch_size, dtype):
    """Return the kernel's macros for a model, on this GPU."""
    blocks = _blocks()
    convs, dense = shape_of(model)
    channels, height, width = model.input
    pairs = int(batch_size <= blocks and kernel_here() == HOPPERS)
    return {
        "PIXEL": C_TYPES[np.dtype(dtype)],
        "CHANNELS": channels, "HEIGHT": height, "WIDTH": width,
        "CONVS": ",".join(str(number) for conv in convs for number in conv), "DENSE": ",".join(map(str, dense)),
        "BATCH": batch_size, "GRID": blocks, "PAIRS": pairs, "BLOCK_THREADS": THREADS,
        "IMAGE_BLOCKS": _halves(model, batch_size, blocks),
        "ADAM": int(bool(optimizer.state)), "SHARED_LIMIT": gpu.shared_memory(),
    }  # fmt: skip
