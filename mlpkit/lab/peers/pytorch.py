"""PyTorch: on the CPU, eager, a Sequential, its own loss, and its optimizers with the fused update."""

from itertools import cycle

import torch

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def prepare(problem, compiled=False, device="cpu"):
    torch.set_float32_matmul_precision("highest")  # another peer of this process may want less
    X, y, rows = (torch.from_numpy(array).to(device) for array in (problem.X, problem.y, problem.rows()))
    model = build(problem).to(device)
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
    layers = []
    for W, b in zip(problem.weights, problem.biases, strict=True):
        linear = torch.nn.Linear(*W.shape)
        linear.weight.data = torch.from_numpy(W.T.copy())
        linear.bias.data = torch.from_numpy(b.copy())
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])
