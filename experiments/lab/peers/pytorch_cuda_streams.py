"""PyTorch, graph, streams: a step by hand, of products into places that are there, captured and replayed.

The chain from the images to the first layer's gradient is on one stream; each other layer's gradient is on its own, as
soon as it can be. (A step keeps what that reads until its end: else its memory is used again.) A product
with bias and ReLU is one call, which cuBLASLt takes; all parameters are one vector, and so are their gradients, so that
the update is one kernel. `torch.compile` makes kernels of the rest: next batch, loss, masks, update. Which batch is
next, its rate, and the losses so far, are known on the GPU only.
"""

import math
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from .pytorch_cuda_graph import capture


def prepare(problem, precision="highest", dtype=torch.float32):
    return on("cuda", problem, precision, dtype)


def on(device, problem, precision="highest", dtype=torch.float32):
    """Return the steps of a training on "cuda", or on "cpu", where the tests take some."""
    torch._dynamo.reset()  # else what earlier recipes compiled counts towards its limit
    rows = problem.rows()
    training = Training(device, problem, rows.size, precision, dtype)
    training.begin(rows.ravel(), np.full(len(rows), problem.recipe.lr))
    step = training.replayed(rows.shape[1])
    longest, taken = len(rows), 0

    def steps(n):
        nonlocal taken
        losses = []
        while n > 0:
            count = min(n, longest - taken)
            for _ in range(count):
                step()
            losses.append(training.losses[taken : taken + count].clone().cpu().numpy())
            taken, n = (taken + count) % longest, n - count
            if not taken:
                training.counts[0] = 0
        return np.concatenate(losses)

    return steps


class Training:
    """Everything that training needs and changes, on a device; `step(n)` takes the next step, on a batch of n.

    examples: of an epoch. dtype: of what is multiplied; parameters and their averages are float32 in any case.
    """

    def __init__(self, device, problem, examples, precision="highest", dtype=torch.float32):
        torch.set_float32_matmul_precision(precision)
        self.recipe = recipe = problem.recipe
        self.X, self.y = torch.tensor(problem.X, device=device).to(dtype), torch.tensor(problem.y, device=device)
        self.arrays = arrays = [*problem.weights, *problem.biases]
        self.theta = torch.zeros(sum(array.size for array in arrays), device=device)
        self.decaying = sum(W.size for W in problem.weights) if recipe.weight_decay else 0
        self.moments = torch.zeros(2 if recipe.optimizer != "sgd" else 0, len(self.theta), device=device)
        self.rounded = self.theta if dtype == torch.float32 else self.theta.to(dtype)
        self.gradient = torch.zeros(len(self.theta), dtype=dtype, device=device)
        self.layers = list(zip(*views(self.rounded, arrays), strict=True))
        self.gradients = list(zip(*views(self.gradient, arrays), strict=True))
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)  # steps, of the epoch and in all
        self.order = torch.zeros(examples, dtype=torch.int64, device=device)
        self.rates, self.losses = torch.zeros(2, -(-examples // recipe.batch_size), device=device)
        self.sides = [torch.cuda.Stream() for _ in self.layers[1:]] if device == "cuda" else []
        self.restart(problem)

    def restart(self, problem):
        """Begin with a problem's first weights."""
        arrays = [array.ravel() for array in (*problem.weights, *problem.biases)]
        self.theta.copy_(torch.from_numpy(np.concatenate(arrays)))
        self.rounded.copy_(self.theta)
        self.moments.zero_()
        self.counts.zero_()

    def begin(self, order, rates):
        """Begin an epoch: order (n,) and rates (steps,) are sent to where its steps read them."""
        self.order.copy_(torch.from_numpy(order), non_blocking=True)
        self.rates.copy_(torch.from_numpy(rates), non_blocking=True)
        self.counts[0] = 0

    def replayed(self, n):
        """Return a function that takes the next step, on a batch of n."""
        if not self.sides:
            return lambda: self.step(n)
        state = [self.theta, self.rounded, self.moments, self.counts, self.losses]
        return capture(lambda: self.step(n), state).replay

    def step(self, n):
        x, labels = next_batch(self.X, self.y, self.order, self.counts, self.recipe.batch_size, n)
        outputs = [x]
        *hidden, (W, b) = self.layers
        for V, c in hidden:
            outputs.append(torch._addmm_activation(c, outputs[-1], V))  # with a ReLU
        slopes = [softmax(torch.addmm(b, outputs[-1], W), labels, self.losses, self.counts, self.gradients[-1][1])]
        self.beside(-1, partial(self.counts.add_, 1))
        for i in reversed(range(1, len(self.layers))):
            self.beside(i - 1, partial(torch.mm, outputs[i].T, slopes[-1], out=self.gradients[i][0]))
            slopes.append(mask(slopes[-1] @ self.layers[i][0].T, outputs[i], self.gradients[i - 1][1]))
        torch.mm(x.T, slopes[-1], out=self.gradients[0][0])
        for stream in self.sides:
            torch.cuda.current_stream().wait_stream(stream)
        arrays = self.theta, self.rounded, self.gradient, self.moments, self.rates, self.counts
        update(*arrays, self.recipe.weight_decay, self.decaying)

    def beside(self, i, work):
        """Do the work on a stream of its own, after what has been asked for so far."""
        if not self.sides:
            return work()
        self.sides[i].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.sides[i]):
            work()


def views(vector, arrays):
    """Return the weights and the biases in a vector that holds arrays of these shapes."""
    parts = torch.split(vector, [array.size for array in arrays])
    found = [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
    return found[: len(found) // 2], found[len(found) // 2 :]


@torch.compile(dynamic=False)
def next_batch(X, y, order, counts, batch_size, n):
    index = order[counts[0] * batch_size + torch.arange(n, device=X.device)]
    return X[index], y[index]


@torch.compile(dynamic=False)
def softmax(z, labels, losses, counts, of_biases):
    logs = F.log_softmax(z.float(), 1)
    is_label = labels[:, None] == torch.arange(z.shape[1], device=z.device)
    losses.index_copy_(0, counts[:1], -(logs * is_label).sum().reshape(1) / len(z))
    dz = (torch.exp(logs) - is_label.float()) / len(z)
    of_biases.copy_(dz.sum(0))
    return dz.to(z.dtype)


@torch.compile(dynamic=False)
def mask(da, a, of_biases):
    dz = torch.where(a > 0, da, 0)
    of_biases.copy_(dz.sum(0, dtype=torch.float32))
    return dz


@torch.compile(dynamic=False)
def update(theta, rounded, gradient, moments, rates, counts, decay, decaying, beta1=0.9, beta2=0.999, eps=1e-8):
    g, rate, t = gradient.float(), rates.index_select(0, counts[:1] - 1), counts[1].float()  # this step is counted
    shrunk = theta
    if decaying:
        shrunk = theta * (1 - rate * decay * (torch.arange(len(theta), device=theta.device) < decaying))
    if len(moments):
        m, v = moments[0], moments[1]
        m.mul_(beta1).add_((1 - beta1) * g)
        v.mul_(beta2).add_((1 - beta2) * g * g)
        c1, c2 = (-torch.expm1(t * math.log(beta)) for beta in (beta1, beta2))  # 1 - beta**t
        g = (m / c1) / (torch.sqrt(v / c2) + eps)
    theta.copy_(shrunk - rate * g)
    if rounded is not theta:
        rounded.copy_(theta)
