"""PyTorch on the CPU, eager: a Sequential, its own loss, and its optimizers with the fused update."""

import torch

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def prepare(problem, compiled=False):
    X, y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
    model = build(problem)
    loss_of = torch.nn.CrossEntropyLoss()
    optimizer = OPTIMIZERS[problem.recipe.optimizer](model.parameters(), problem.recipe.lr, fused=True)
    forward = torch.compile(lambda x, labels: loss_of(model(x), labels), dynamic=False) if compiled else None
    batches = problem.batches()

    def steps(n):
        losses = []
        for _ in range(n):
            index = torch.from_numpy(next(batches))
            x, labels = X[index], y[index]
            loss = forward(x, labels) if forward else loss_of(model(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).numpy()

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
