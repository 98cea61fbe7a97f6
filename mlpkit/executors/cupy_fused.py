"""The whole step of `cupy_fused`: its calls, all but the update's, made ready once and asked for one after another."""

import ctypes
from contextlib import suppress
from functools import cache, partial

import cupy as cp
import numpy as np

from mlpkit.engines.cuda import cublas
from mlpkit.engines.cuda.copies import Copies
from mlpkit.engines.cuda.cublas import Product
from mlpkit.engines.cuda.launch import ready
from mlpkit.engines.cupy_fused import add_bias_relu, asarray, cross_entropy_call, gather_call, relu_backward_into
from mlpkit.nn.losses import SoftmaxCrossEntropy

from . import plain
from .cuda.evaluation import Rehearsed
from .cuda.transfers import as_labels
from .plain import Prediction as Prediction
from .plain import StepByStep, mlps_only

NAME = "cupy_fused"
STEP_BACK = 25_000  # nanoseconds that an evaluation leaves to the next epoch's kernel, to place its blocks first


def why_not(model, optimizer, batch_size):
    """Return None for a multilayer perceptron, else a sentence. See `executors`."""
    return mlps_only(NAME, model)


class Trainer(StepByStep):
    """Trains step by step, with all calls but the update's made ready ahead. See `executors.protocol.Trainer`."""

    def __init__(self, network, optimizer, X, y, batch_size):
        super().__init__(network, optimizer, X, as_labels(y), batch_size)
        self.batch = cache(partial(Batch, network, cp.ascontiguousarray(self.X), self.y))  # one for each size
        for n in {min(batch_size, len(y)), len(y) % batch_size or batch_size}:
            self.batch(n)

    def epoch(self, order):
        """Return the losses of the epoch's steps, an array."""
        order, n, stream = asarray(order, np.int64), self.batch_size, cp.cuda.get_current_stream().ptr
        losses = cp.empty(-(-len(order) // n), self.network.dtype)
        index, loss = order.data.ptr, losses.data.ptr
        for start in range(0, len(order), n):
            batch = self.batch(min(n, len(order) - start))
            batch.index.value, batch.loss.value = index, loss
            for call in batch.calls(stream):
                call()
            self.optimizer.step()
            index, loss = index + n * order.itemsize, loss + losses.itemsize
        return losses


class Batch:
    """A batch of n rows of X and y, and the calls that gather it and compute its gradient, made ready once.

    index, loss: where the numbers of the rows are (n,) int64, and where the loss goes: addresses, as numbers of ctypes.
    """

    def __init__(self, network, X, y, n):
        self.X, self.y, self.x, self.labels = X, y, cp.empty((n, *X.shape[1:]), X.dtype), cp.empty(n, np.int64)
        self.index, self.loss, self.gradient = ctypes.c_void_p(), ctypes.c_void_p(), Gradient(network, n)
        self.calls = cache(self.make_ready)

    def make_ready(self, stream):
        """Return the calls, for the stream of now, at this address."""
        gather = ready(*gather_call(self.X, self.index, self.x, self.y, self.labels))
        return [gather, *self.gradient.calls(self.x, self.labels, self.loss)]


class Gradient:
    """A network's products for batches of n, and the arrays that they write.

    Call it with x (n, inputs) in the network's type, contiguous, and labels (n,) int64: it writes the gradient of the
    batch's loss into `network.grad`, and the loss into losses[step]. step: an int32 on the GPU, which then goes on by
    one; without it the loss is losses[0].
    """

    def __init__(self, network, n):
        dtype, (inputs, *outputs) = network.dtype, network.model.sizes()
        self.layers, x = linear_layers(network), cp.empty((n, inputs), dtype)
        self.a = [cp.empty((n, features), dtype) for features in outputs]  # the last one holds the logits
        self.dz = [*(cp.empty_like(a) for a in self.a[:-1]), self.a[-1]]  # which become their gradient
        self.masks = [cublas.mask(n, features) for features in outputs]
        self.forward = [self.plan_forward(i, source) for i, source in enumerate([x, *self.a[:-1]])]
        self.weights = [self.plan_weights(i, source) for i, source in enumerate([x, *self.a[:-1]])]
        self.back = [None, *(self.plan_back(i) for i in range(1, len(outputs)))]

    def plan_forward(self, i, x):
        """Return what makes the product ready that writes layer i's activations, or its logits without the bias."""
        layer, out, hidden = self.layers[i], self.a[i], i < len(self.a) - 1
        if not hidden:
            return Product(x, layer.W, out).ready  # `cross_entropy` adds the bias
        try:
            return Product(x, layer.W, out, cublas.RELU_AUX_BIAS, layer.b, self.masks[i]).ready
        except cublas.Unsupported:
            self.masks[i] = None
            return _then(Product(x, layer.W, out).ready, lambda: add_bias_relu(out, layer.b))

    def plan_weights(self, i, x):
        """Return what makes the product ready that writes layer i's dW and db."""
        layer, dz = self.layers[i], self.dz[i]
        try:
            return Product(x.T, dz, layer.dW, cublas.BGRADA, layer.db).ready
        except cublas.Unsupported:
            return _then(Product(x.T, dz, layer.dW).ready, lambda: np.sum(dz, axis=0, out=layer.db))

    def plan_back(self, i):
        """Return what makes the product ready that writes the `dz` of the layer before layer i."""
        W, dz, a, out = self.layers[i].W, self.dz[i], self.a[i - 1], self.dz[i - 1]
        if self.masks[i - 1] is not None:
            with suppress(cublas.Unsupported):
                return Product(dz, W.T, out, cublas.DRELU, mask=self.masks[i - 1]).ready
        return _then(Product(dz, W.T, out).ready, lambda: relu_backward_into(a, out, out))

    def __call__(self, x, labels, losses, step=None):
        for call in self.calls(x, labels, losses, step):
            call()

    def calls(self, x, labels, losses, step=None):
        """Return the calls, made ready for these arrays and the stream of now. losses: an array, or its address."""
        a, dz, last = self.a, self.dz, len(self.layers) - 1
        forward = zip(self.forward, self.layers, [x, *a[:-1]], a, strict=True)
        calls = [product(source, layer.W, out) for product, layer, source, out in forward]
        calls.append(ready(*cross_entropy_call(a[-1], self.layers[-1].b, labels, losses, step)))
        for i in range(last, 0, -1):
            calls.append(self.weights[i](a[i - 1].T, dz[i], self.layers[i].dW))
            calls.append(self.back[i](dz[i], self.layers[i].W.T, dz[i - 1]))
        return [*calls, self.weights[0](x.T, dz[0], self.layers[0].dW)]


def Evaluation(network, X, y):
    """Return what tells the loss and the metrics on X, y, see `executors.protocol.Evaluation`.

    It is planned ahead, unless the loss has metrics beside the accuracy.
    """
    usual = network.model.loss == SoftmaxCrossEntropy()
    return Rehearsed(PlannedEvaluation if usual else plain.Evaluation, network, X, y)


class PlannedEvaluation:
    """The mean loss and the accuracy on X, y, with all products planned ahead. See `executors.protocol.Evaluation`.

    It looks at a copy of the parameters, on a stream of its own: so the next epoch need not wait for it.
    """

    def __init__(self, network, X, y):
        X = network.as_input(X)  # pixels become values once
        self.network, self.theta, self.x, self.y = network, network.theta.copy(), X, as_labels(y)
        views = tuple(network.views(self.theta).values())
        self.W, self.b = views[::2], views[1::2]
        self.a = [cp.empty((len(X), len(b)), network.dtype) for b in self.b]
        self.found = cp.empty((2, len(X)), network.dtype)
        self.stream = cp.cuda.Stream(non_blocking=True)
        with self.stream:
            sources = enumerate([X, *self.a[:-1]])
            self.products = [self.plan(i, source)(source, self.W[i], self.a[i]) for i, source in sources]
        self.done = self.stream.record()

    def plan(self, i, x):
        """Return what makes the product ready that writes layer i's activations, or its logits without the bias."""
        W, b, out = self.W[i], self.b[i], self.a[i]
        if i == len(self.a) - 1:
            return Product(x, W, out, workspace=0).ready
        try:
            return Product(x, W, out, cublas.RELU_BIAS, b, workspace=0).ready
        except cublas.Unsupported:
            return _then(Product(x, W, out, workspace=0).ready, lambda: add_bias_relu(out, b))

    def __call__(self):
        current = cp.cuda.get_current_stream()
        current.wait_event(self.done)  # until then the copy is looked at
        self.theta[:] = self.network.theta
        self.stream.wait_event(current.record())
        with self.stream:
            step_back((1,), (1,), (np.int64(STEP_BACK),))
            for product in self.products:
                product()
            judge(self.y, self.a[-1], self.b[-1], self.a[-1].shape[1], *self.found)
            sums, n = Copies(self.stream, [self.found.sum(axis=1)], maker=self), len(self.x)
            self.done = sums.done

        def wait():
            totals = sums()[0]
            return dict(zip(("loss", "accuracy"), (float(total) / n for total in totals), strict=True))

        return wait


def _then(product, finish):
    """Return what makes a product ready, and after it what has no epilogue."""

    def make_ready(a, b, out):
        multiply = product(a, b, out)

        def run():
            multiply()
            finish()

        return run

    return make_ready


def linear_layers(network):
    """Return each linear layer, bound, the first one first: it has W, b, and their gradients dW and db."""
    return [at for at in network.layers if hasattr(at, "W")]


step_back = cp.RawKernel(
    r"""
    extern "C" __global__ void step_back(long long ns) {
        long long begin, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
        do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begin < ns);
    }""",
    "step_back",
)
judge = cp.ElementwiseKernel(
    "I label, raw T z, raw T b, int64 classes",
    "T loss, T right",
    """
    const long long row = i * classes;
    T largest = z[row] + b[0], total = 0;
    int answer = 0;  // the first of the largest
    for (int j = 1; j < classes; j++) {
        const T logit = z[row + j] + b[j];
        if (logit > largest) largest = logit, answer = j;
    }
    for (int j = 0; j < classes; j++) total += exp(z[row + j] + b[j] - largest);
    loss = log(total) - (z[row + label] + b[label] - largest);
    right = answer == label;
    """,
    "judge",
)
