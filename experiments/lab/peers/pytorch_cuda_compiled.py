"""PyTorch on the GPU, compiled: gather, network, loss, gradients and update are one function.

It is a function of tensors, differentiated by `torch.func`, without modules and optimizers, and `torch.compile` fuses
what it can across all of its parts. On an H200 that takes a third to a half of eager's time; with network and loss
alone compiled, a step takes longer than eager, and two thirds of it in the mode "reduce-overhead". Which batch is next,
and the losses so far, are known on the GPU only. The images are there as float32; uint8 is as fast.
"""

import math
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual


def prepare(problem):
    return on("cuda", problem)


def on(device, problem, **how):
    """Return the steps of a training on "cuda", or on "cpu", where the tests take some. how: as `Training` has it."""
    training = Training(device, problem, **how)
    return training.repeat(training.step)


class Training:
    """Everything that training needs and changes, in `state`, on a device; `step()` takes the next step.

    precision: PyTorch's name, of float32 products; or "bf16", for products of 16 bits by its autocast. last: whether
    images and filters lie channels last: on an H200 a step of the 896,522-parameter network takes 274 us so in bf16,
    and 286 with channels first. With float32 it is the other way round, 553 and 525. options: of `torch.compile`.
    """

    def __init__(self, device, problem, precision="highest", last=False, options=None):
        torch.set_float32_matmul_precision("highest" if precision == "bf16" else precision)
        torch.backends.cudnn.allow_tf32 = precision != "highest"
        torch.backends.cudnn.benchmark = True
        arrays = [problem.X, problem.y, problem.rows(), *problem.parameters.values()]
        X, y, rows, *theta = (torch.tensor(array, device=device) for array in arrays)
        if last:
            X, *theta = (_channels_last(tensor) for tensor in (X, *theta))
        moments, t = [torch.zeros_like(p) for p in 2 * theta], torch.zeros((), device=device)
        adam = (moments[: len(theta)], moments[len(theta) :], t) if problem.recipe.optimizer == "adam" else ()
        self.X, self.y, self.rows, self.theta, self.lr = X, y, rows, theta, problem.recipe.lr
        self.row = torch.zeros(1, dtype=torch.int64, device=device)  # of the next batch
        self.losses = torch.zeros(len(rows), device=device)  # each row's latest
        self.state = [*theta, *moments, t, self.row, self.losses]
        torch._dynamo.reset()  # else what earlier recipes compiled counts towards its limit
        compiled = torch.compile(step, dynamic=False, fullgraph=True, options=options)
        loss_of_batch = partial(loss_of, problem.recipe.model.layers, precision == "bf16")
        self.step = lambda: compiled(loss_of_batch, X, y, rows, self.row, self.losses, theta, problem.recipe.lr, adam)

    def repeat(self, step):
        """Return steps(n), which calls `step` n times, and waits for the losses of an epoch at a time."""
        longest = len(self.losses)

        def steps(n):
            counts = [longest] * (n // longest) + [n % longest] * (n % longest > 0)
            return np.concatenate([self._take(step, count) for count in counts])

        return steps

    def _take(self, step, count):
        for _ in range(count):
            step()
        oldest_first = np.roll(self.losses.cpu().numpy(), -int(self.row))
        return oldest_first[-count:]


def _channels_last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def step(loss_of_batch, X, y, rows, row, losses, theta, lr, adam):
    index = rows.index_select(0, row)[0]
    gradients, loss = torch.func.grad_and_value(loss_of_batch)(theta, X[index], y[index])
    if adam:
        update_adam(theta, gradients, lr, *adam)
    else:
        for p, g in zip(theta, gradients, strict=True):
            p.sub_(lr * g)
    losses.index_copy_(0, row, loss[None])
    row.copy_((row + 1) % len(rows))


def loss_of(layers, short, theta, x, labels):
    with torch.autocast(x.device.type, torch.bfloat16, enabled=short):
        x = through(layers, iter(theta), x)
    return F.cross_entropy(x.float(), labels)


def through(layers, arrays, x):
    """Return the output of the layers, which take their parameters from `arrays`, one after another."""
    for layer in layers:
        x = APPLY[type(layer)](layer, arrays, x)
    return x


def linear(layer, arrays, x):
    W, b = next(arrays), next(arrays)
    return torch.addmm(b, x, W)


def conv(layer, arrays, x):
    W = next(arrays)
    return F.conv2d(x, W, next(arrays) if layer.bias else None, layer.stride, layer.padding)


def batch_norm(layer, arrays, x):
    """By the batch's statistics; running averages, which training does not read, are left out."""
    gamma, beta = next(arrays), next(arrays)
    return F.batch_norm(x, None, None, gamma, beta, training=True, eps=layer.eps)


APPLY = {
    Linear: linear,
    Conv: conv,
    BatchNorm: batch_norm,
    MaxPool: lambda layer, arrays, x: F.max_pool2d(x, layer.size, layer.stride),
    Residual: lambda layer, arrays, x: through(layer.layers, arrays, x) + through(layer.shortcut, arrays, x),
    ReLU: lambda layer, arrays, x: torch.relu(x),
    Flatten: lambda layer, arrays, x: x.flatten(1),
}


def update_adam(theta, gradients, lr, ms, vs, t, beta1=0.9, beta2=0.999, eps=1e-8):
    t.add_(1)
    c1, c2 = (-torch.expm1(t * math.log(beta)) for beta in (beta1, beta2))  # 1 - beta**t
    for p, g, m, v in zip(theta, gradients, ms, vs, strict=True):
        m.mul_(beta1).add_((1 - beta1) * g)
        v.mul_(beta2).add_((1 - beta2) * g * g)
        p.sub_(lr * (m / c1) / (torch.sqrt(v / c2) + eps))
