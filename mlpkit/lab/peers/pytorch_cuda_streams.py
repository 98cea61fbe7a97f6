"""PyTorch, graph, two streams: a step by hand, of products into places that are there, captured and replayed.

The chain from the images to the gradient before the first layer's ReLU is on one stream; each weight's gradient is on
another, as soon as it can be. (A step keeps what that reads until its end: else its memory is used again.) A product
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
                training.at.zero_()
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
        self.t, self.at = torch.zeros((), device=device), torch.zeros(1, dtype=torch.int64, device=device)
        self.order = torch.zeros(examples, dtype=torch.int64, device=device)
        self.rates, self.losses = torch.zeros(2, -(-examples // recipe.batch_size), device=device)
        self.side = torch.cuda.Stream() if device == "cuda" else None
        self.restart(problem)

    def restart(self, problem):
        """Begin with a problem's first weights."""
        arrays = [array.ravel() for array in (*problem.weights, *problem.biases)]
        self.theta.copy_(torch.from_numpy(np.concatenate(arrays)))
        self.rounded.copy_(self.theta)
        self.moments.zero_()
        self.t.zero_()

    def begin(self, order, rates):
        """Begin an epoch: order (n,) and rates (steps,) are sent to where its steps read them."""
        self.order.copy_(torch.from_numpy(order), non_blocking=True)
        self.rates.copy_(torch.from_numpy(rates), non_blocking=True)
        self.at.zero_()

    def replayed(self, n):
        """Return a function that takes the next step, on a batch of n."""
        if not self.side:
            return lambda: self.step(n)
        state = [self.theta, self.rounded, self.moments, self.t, self.at, self.losses]
        return capture(lambda: self.step(n), state).replay

    def step(self, n):
        x, labels = next_batch(self.X, self.y, self.order, self.at, self.recipe.batch_size, n)
        outputs = [x]
        *hidden, (W, b) = self.layers
        for V, c in hidden:
            outputs.append(torch._addmm_activation(c, outputs[-1], V))  # with a ReLU
        slopes = [softmax(torch.addmm(b, outputs[-1], W), labels, self.losses, self.at)]
        for i in reversed(range(len(self.layers))):
            self.beside(partial(self.put_gradients, i, outputs[i], slopes[-1]))
            if i:
                slopes.append(mask(slopes[-1] @ self.layers[i][0].T, outputs[i]))
        if self.side:
            torch.cuda.current_stream().wait_stream(self.side)
        arrays = self.theta, self.rounded, self.gradient, self.moments, self.rates, self.at, self.t
        update(*arrays, self.recipe.weight_decay, self.decaying)

    def beside(self, work):
        """Do the work on the other stream, after what has been asked for so far."""
        if not self.side:
            return work()
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            work()

    def put_gradients(self, i, x, dz):
        W, b = self.gradients[i]
        torch.mm(x.T, dz, out=W)
        torch.sum(dz, 0, out=b)


def views(vector, arrays):
    """Return the weights and the biases in a vector that holds arrays of these shapes."""
    parts = torch.split(vector, [array.size for array in arrays])
    found = [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
    return found[: len(found) // 2], found[len(found) // 2 :]


@torch.compile(dynamic=False)
def next_batch(X, y, order, at, batch_size, n):
    index = order[at * batch_size + torch.arange(n, device=X.device)]
    return X[index], y[index]


@torch.compile(dynamic=False)
def softmax(z, labels, losses, at):
    logs = F.log_softmax(z.float(), 1)
    is_label = labels[:, None] == torch.arange(z.shape[1], device=z.device)
    losses.index_copy_(0, at, -(logs * is_label).sum().reshape(1) / len(z))
    return ((torch.exp(logs) - is_label.float()) / len(z)).to(z.dtype)


@torch.compile(dynamic=False)
def mask(da, a):
    return torch.where(a > 0, da, 0)


@torch.compile(dynamic=False)
def update(theta, rounded, gradient, moments, rates, at, t, decay, decaying, beta1=0.9, beta2=0.999, eps=1e-8):
    g, rate = gradient.float(), rates.index_select(0, at)
    t.add_(1)
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
    at.add_(1)
