"""How the record "mixed_precision" is made: a step of PyTorch's as a CUDA graph, for accuracies and for times."""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain

import numpy as np

from experiments.lab import clock, results
from mlpkit import data, engines
from mlpkit.data import epoch_order
from mlpkit.nn.models import mlp
from mlpkit.training.recipe import Recipe

from .variants import VARIANTS

RECIPE = Recipe()


@dataclass(frozen=True)
class Plan:
    """How much to measure. seeds: of the accuracies, after so many epochs of full batches. sizes: the width of the
    three hidden layers and the batch, for the times. samples: of each time, taken in turns, each of so many steps.
    """

    seeds: int = 10
    epochs: int = 5
    sizes: tuple[tuple[int, int], ...] = ((128, 128), (1024, 1024), (4096, 4096))
    samples: int = 9
    steps: int = 20


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, dataset=None):
    """Measure everything, and return the record. dataset: MNIST, where None is given.

    Raises `engines.EngineUnavailable` where there is no GPU, ImportError where there is no PyTorch.
    """
    engines.load("cupy_naive")  # or why there is none
    import torch

    dataset = dataset or data.load(scaled=True)
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    record = results.new("mixed_precision", plan=asdict(plan), recipe=RECIPE.to_dict(), versions=versions)
    parts = _accuracies(dataset, plan, progress), _times(plan, progress)
    return results.collect(record, chain.from_iterable(parts), save)


class Training:
    """A network of torch's modules with a recipe's first weights, and a step of stochastic gradient descent.

    X, y: all examples, on the GPU. A step takes the examples whose numbers stand in `index`.
    """

    def __init__(self, way, recipe, X, y):
        import torch

        self.way, self.lr, self.X, self.y = way, recipe.lr, X, y
        network, layers = recipe.make_network(), []
        arrays = [torch.from_numpy(view.copy()) for view in network.views(network.theta).values()]
        for W, b in zip(arrays[::2], arrays[1::2], strict=True):
            linear = torch.nn.Linear(*W.shape)
            linear.weight.data, linear.bias.data = W.T.contiguous(), b
            layers += [linear, torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*layers[:-1]).to("cuda", getattr(torch, way.weights))
        self.index = torch.arange(recipe.batch_size, device="cuda")

    def set_precision(self):
        """Tell PyTorch, which asks once for all, whether float32 may be multiplied as TF32."""
        import torch

        torch.set_float32_matmul_precision("high" if self.way.products == "tf32" else "highest")

    def step(self):
        """Take a step, and return its loss, a tensor."""
        import torch

        x, labels = self.X[self.index], self.y[self.index]
        with torch.autocast("cuda", getattr(torch, self.products), self.products != "float32", cache_enabled=False):
            logits = self.model(x.to(getattr(torch, self.way.weights)))
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        weights = list(self.model.parameters())
        gradients = torch.autograd.grad(loss * self.way.scale, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= self.lr / self.way.scale * gradient
        return loss.detach()

    @property
    def products(self):
        """What autocast is told: TF32 is no type of numbers, but a way to multiply float32."""
        return "float32" if self.way.products == "tf32" else self.way.products

    def accuracy(self, X, y):
        """Return the part of the examples that the network names rightly, with products in float32."""
        import torch

        torch.set_float32_matmul_precision("highest")
        with torch.no_grad():
            return float((self.model.float()(X).argmax(1) == y).float().mean())


def captured(training):
    """Return a CUDA graph of a training's step, and the loss that it writes; three steps are taken before."""
    import torch

    training.set_precision()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # where PyTorch wants the steps before a capture
        for _ in range(3):
            training.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = training.step()
    return graph, loss


def _accuracies(dataset, plan, progress):
    import torch

    X, y, X_test, y_test = (torch.from_numpy(a).to("cuda") for a in (*dataset.train, *dataset.test))
    n = RECIPE.batch_size
    for name, way in VARIANTS.items():
        progress(f"{plan.seeds} networks, {name}")
        found: dict = {"test_accuracy": [], "train_loss": []}
        for seed in range(plan.seeds):
            recipe = RECIPE.but(seed=seed)
            training = Training(way, recipe, X, y)
            first = [weight.detach().clone() for weight in training.model.parameters()]
            graph, loss = captured(training)
            with torch.no_grad():
                for weight, before in zip(training.model.parameters(), first, strict=True):
                    weight.copy_(before)
            for epoch in range(plan.epochs):
                order = torch.from_numpy(epoch_order(len(y), seed, epoch)).to("cuda")
                total = torch.zeros((), device="cuda")
                for rows in order[: len(order) // n * n].reshape(-1, n):
                    training.index.copy_(rows)
                    graph.replay()
                    total += loss
            found["train_loss"].append(float(total) / (len(y) // n))
            found["test_accuracy"].append(training.accuracy(X_test, y_test))
        yield {"kind": "accuracy", "way": name, "epochs": plan.epochs} | found


def _times(plan, progress):
    import torch

    for width, batch in plan.sizes:
        progress(f"steps, width {width}, batch {batch}")
        recipe = RECIPE.but(model=mlp(784, width, width, width, 10), batch_size=batch, lr=1e-3)
        rng = np.random.default_rng(0)
        X = torch.from_numpy(rng.random((batch, 784), np.float32)).to("cuda")
        y = torch.from_numpy(rng.integers(0, 10, batch)).to("cuda")
        # They are kept: a graph keeps no tensor alive.
        trainings = {name: Training(way, recipe, X, y) for name, way in VARIANTS.items()}
        graphs = {name: captured(training)[0] for name, training in trainings.items()}
        calls = {name: partial(clock.device_us, graph.replay, plan.steps) for name, graph in graphs.items()}
        for name, samples in clock.in_turns(calls, plan.samples).items():
            yield {"kind": "step", "way": name, "width": width, "batch_size": batch, "samples_us": samples}
