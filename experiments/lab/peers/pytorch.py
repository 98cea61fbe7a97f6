"""PyTorch: on the CPU, eager, a Sequential, its own loss, and its optimizers with the fused update."""

from itertools import cycle

import torch

from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def prepare(problem, compiled=False, device="cpu", memory_format=torch.contiguous_format):
    torch.set_float32_matmul_precision("highest")  # another peer of this process may want less
    torch.backends.cudnn.allow_tf32 = False  # convolutions would take TF32, which PyTorch allows them by default
    X, y, rows = (torch.from_numpy(array).to(device) for array in (problem.X, problem.y, problem.rows()))
    model, X = build(problem).to(device, memory_format=memory_format), X.contiguous(memory_format=memory_format)
    loss_of = torch.nn.CrossEntropyLoss()
    optimizer = OPTIMIZERS[problem.recipe.optimizer](model.parameters(), problem.recipe.lr, fused=True)
    forward = torch.compile(lambda x, labels: loss_of(model(x), labels), dynamic=False) if compiled else None
    batches = cycle(rows)

    def steps(n):
        losses = []
        for _ in range(n):
            index = next(batches)
            x, labels = X[index], y[index]
            loss = forward(x, labels) if forward else loss_of(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).cpu().numpy()

    return steps


def build(problem):
    """Return the network as torch modules, with the problem's first weights."""
    return sequential(problem.recipe.model.layers, iter(problem.parameters.values()))


def sequential(layers, arrays):
    return torch.nn.Sequential(*(MODULES[type(layer)](layer, arrays) for layer in layers))


def linear(layer, arrays):
    W, b = next(arrays), next(arrays)
    return with_parameters(torch.nn.Linear(*W.shape), W.T, b)


def conv(layer, arrays):
    W = next(arrays)
    module = torch.nn.Conv2d(W.shape[1], len(W), layer.size, layer.stride, layer.padding, bias=layer.bias)
    return with_parameters(module, W, next(arrays) if layer.bias else None)


def batch_norm(layer, arrays):
    gamma, beta = next(arrays), next(arrays)
    return with_parameters(torch.nn.BatchNorm2d(len(gamma), layer.eps, layer.momentum), gamma, beta)


def with_parameters(module, W, b):
    module.weight.data = torch.from_numpy(W.copy())
    if b is not None:
        module.bias.data = torch.from_numpy(b.copy())
    return module


class Sum(torch.nn.Module):  # type: ignore[misc]
    """What two modules make of what comes in."""

    def __init__(self, one, other):
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x):
        return self.one(x) + self.other(x)


MODULES = {
    Linear: linear,
    Conv: conv,
    BatchNorm: batch_norm,
    Residual: lambda layer, arrays: Sum(*(sequential(each, arrays) for each in layer.branches())),
    ReLU: lambda layer, arrays: torch.nn.ReLU(),
    MaxPool: lambda layer, arrays: torch.nn.MaxPool2d(layer.size, layer.stride),
    Flatten: lambda layer, arrays: torch.nn.Flatten(),
}
