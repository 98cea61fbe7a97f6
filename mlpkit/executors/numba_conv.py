"""The whole step of `numba_conv` for a chain of convolutions and linear layers: three calls of compiled code.

Another model is trained an operation at a time. Predictions of networks that make pictures of pictures, by convolutions
without padding, are one call of compiled code, which asks for no batch: see `loops.rows`.
"""

from types import SimpleNamespace

import numpy as np

from mlpkit.engines.loops import convolve as _convolve
from mlpkit.engines.loops import pipeline as _pipeline
from mlpkit.engines.loops import rows as _rows
from mlpkit.engines.loops.compiler import Threads
from mlpkit.engines.loops.simd import BYTES
from mlpkit.engines.loops.simd_batch import NONE
from mlpkit.engines.numba_conv import rows_of
from mlpkit.engines.numba_serial import check_labels
from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.fold import fold
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.losses import SoftmaxCrossEntropy
from mlpkit.nn.one_pass import in_one_pass
from mlpkit.nn.residual import Residual
from mlpkit.nn.resize import Crop, PixelShuffle

from . import direct
from .plain import Evaluation as Evaluation
from .plain import Prediction as PlainPrediction
from .plain import StepByStep
from .plain import why_not as why_not


def pipeline_of(model):
    """Return the blocks of a chain of convolutions and the units of its dense layers; None for another model.

    A block is a list: channels, size, stride, padding, size and stride of the pooling, whether there is ReLU.
    """
    layers, blocks = [(one, shape) for path, one, shape, _ in model.walk if len(path) == 1], []

    def next_is(kind):
        return bool(layers) and type(layers[0][0]) is kind

    while next_is(Conv):
        one, shape = layers.pop(0)
        block = [one.channels, one.size, *one.steps((1, *shape)), 1, 1, False]
        while next_is(ReLU) or (next_is(MaxPool) and block[4:6] == [1, 1]):
            after, _ = layers.pop(0)
            if type(after) is MaxPool:
                block[4:6] = after.size, after.stride or after.size
            else:
                block[6] = True
        blocks.append(block)
    kinds = [type(one) for one, _ in layers]
    if not blocks or kinds != [Flatten, *[Linear, ReLU] * ((len(layers) - 2) // 2), Linear]:
        return None
    if type(model.loss) is not SoftmaxCrossEntropy or max(block[4] for block in blocks) ** 2 >= NONE:
        return None
    return blocks, [one.units for one, _ in layers[1::2]]


def keep_memory():
    """Let the process keep some 60 MB of what it frees, for what is asked for next.

    Else each operation's buffers are new pages, which the system hands out one by one, and which can cost more than the
    arithmetic. glibc's malloc keeps twice the largest block that it ever gave back, if that was below 32 MiB.
    """
    np.empty(31 << 20, np.uint8)


def _start(vector, view):
    """Return where in a vector a view of it begins."""
    return (view.ctypes.data - vector.ctypes.data) // vector.itemsize


class Trainer(StepByStep):
    """Takes a step of a chain in three calls of compiled code, and of another model an operation at a time.

    Its workspace is made once, for the largest batch, and is less than the activations of such a batch: of a
    convolution is kept what its pooling leaves.
    """

    def __init__(self, network, optimizer, X, y, batch_size):
        super().__init__(network, optimizer, X, y, batch_size)
        self.pipeline = pipeline_of(network.model)
        if self.pipeline is None:
            keep_memory()
            self.layers = in_one_pass(network.layers)
            return
        (blocks, units), dtype = self.pipeline, network.dtype
        bound = [at for at in network.layers if hasattr(at, "W")]
        begin = [(_start(network.theta, at.W), _start(network.theta, at.b) if hasattr(at, "b") else -1)
                 for at in bound]  # fmt: skip
        blocks = [(*block, *at) for block, at in zip(blocks, begin, strict=False)]
        dense = [(out, *at) for out, at in zip(units, begin[len(blocks) :], strict=True)]
        lanes, self.most = BYTES // dtype.itemsize, min(batch_size, len(y))
        self.blocks, self.dense, self.tables, self.workspace = _pipeline.lay_out(
            network.model.input, blocks, dense, lanes
        )
        simd_batches = -(-self.most // lanes)
        self.shares = min(Threads.most, simd_batches)
        shapes = {
            "packed": (1, self.workspace.packed), "kept": (simd_batches, self.workspace.kept),
            "scratch": (self.shares, self.workspace.scratch), "own": (self.shares, self.workspace.own),
            "rows": (1, self.workspace.rows * self.most), "slopes": (1, self.workspace.rows * self.most),
        }  # fmt: skip
        self.arrays = {name: _convolve.buffer(-(-n * m // lanes), network.theta).ravel()[: n * m].reshape(n, m)
                       for name, (n, m) in shapes.items()}  # fmt: skip
        self.arrays["marks"] = np.zeros((simd_batches, self.workspace.marks), np.uint8)

    def step(self, x, labels):
        if self.pipeline is None:
            return super().step(x, labels)
        network, n = self.network, len(x)
        wanted = self.most, *network.model.input
        if n > self.most or x.shape[1:] != wanted[1:]:  # compiled loops would read beyond their arrays
            raise ValueError(f"a batch here has at most the shape {wanted}, not {x.shape}.")
        labels = labels.astype(np.int64, copy=False)  # compiled once, whatever the labels' dtype
        check_labels(labels, n, network.model.output[0])
        arrays = SimpleNamespace(**self.arrays)
        packed, rows, slopes = arrays.packed[0], arrays.rows[0], arrays.slopes[0]
        losses = np.empty(min(self.shares, -(-n // (BYTES // network.dtype.itemsize))))
        _pipeline.pack(self.blocks, self.tables, network.theta, packed)
        _pipeline.backpropagate(
            self.blocks, self.dense, self.tables, self.workspace, rows_of(x), labels, network.theta, packed,
            arrays.kept, arrays.marks, arrays.scratch, arrays.own, rows, slopes, self.most, losses,
        )  # fmt: skip
        own = arrays.own[: len(losses)]
        _pipeline.parameter_gradients(
            self.blocks, self.dense, n, own, rows, slopes, self.most, network.grad, self.shares
        )  # fmt: skip
        self.optimizer.step()
        return losses.sum()


def steps_of(layers):
    """Return `loops.rows.Step`s, and the scale of the pixel shuffle behind them; None where there is another layer.

    layers: bound ones, of a network that is folded.
    """
    layers, scale = list(layers), 1
    if layers and type(layers[-1].layer) is PixelShuffle:
        scale = layers.pop().layer.scale
    beside = None
    if len(layers) == 1 and type(layers[0].layer) is Residual:
        layers, shortcut = layers[0].branches
        kinds = [type(at.layer) for at in shortcut]
        if kinds not in ([Conv], [Crop, Conv]) or not _plain(shortcut[-1]) or shortcut[-1].layer.bias:
            return None
        beside = shortcut[-1].W, shortcut[0].layer.size if kinds[0] is Crop else 0
    steps: list[_rows.Step] = []
    for at in layers:
        if type(at.layer) is ReLU and steps and not steps[-1].relu:
            steps[-1] = steps[-1]._replace(relu=True)
        elif type(at.layer) is Conv and _plain(at):
            steps.append(_rows.Step(at.W, at.b if at.layer.bias else np.zeros(len(at.W), at.W.dtype), False))
        else:
            return None
    if not steps or (beside and steps[-1].relu):
        return None
    return [*steps[:-1], steps[-1]._replace(beside=beside)], scale


def _plain(at):
    return type(at.layer) is Conv and (at.layer.stride, at.layer.padding) == (1, 0)


def Prediction(network, n, precision=None, calibration=None):
    """Return predictions in one call of compiled code: see `loops.rows` for pictures of pictures, else `direct`."""
    found = steps_of(fold(network).layers) if len(network.model.output) == 3 and precision != "int8" else None
    return RowsPrediction(network, n, *found) if found else direct.prediction(network, n, precision, calibration)


class RowsPrediction(PlainPrediction):
    """Predictions of a chain without padding. steps, scale: of `steps_of`."""

    def __init__(self, network, n, steps, scale):
        super().__init__(network, n)
        self.chain = _rows.Chain(steps, scale, network.model.input, network.dtype)
        self.forward = lambda x: self.chain(self.network.as_input(x))
