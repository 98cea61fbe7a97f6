"""PyTorch: on the CPU, eager, a Sequential, its own loss, and its optimizers with the fused update."""

from itertools import cycle

import torch

from mlpkit.nn.conv import Conv, MaxPool
from mlpkit.nn.layers import Flatten, Linear, ReLU

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def prepare(problem, compiled=False, device="cpu", memory_format=torch.contiguous_format):
    torch.set_float32_matmul_precision("highest")  # another peer of this process may want less
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
    arrays = zip(problem.weights, problem.biases, strict=True)
    return torch.nn.Sequential(*(MODULES[type(layer)](layer, arrays) for layer in problem.recipe.model.layers))


def linear(layer, arrays):
    W, b = next(arrays)
    return with_parameters(torch.nn.Linear(*W.shape), W.T, b)


def conv(layer, arrays):
    W, b = next(arrays)
    return with_parameters(torch.nn.Conv2d(W.shape[1], len(W), layer.size, layer.stride, layer.padding), W, b)


def with_parameters(module, W, b):
    module.weight.data, module.bias.data = torch.from_numpy(W.copy()), torch.from_numpy(b.copy())
    return module


MODULES = {
    Linear: linear,
    Conv: conv,
    ReLU: lambda layer, arrays: torch.nn.ReLU(),
    MaxPool: lambda layer, arrays: torch.nn.MaxPool2d(layer.size, layer.stride),
    Flatten: lambda layer, arrays: torch.nn.Flatten(),
}
