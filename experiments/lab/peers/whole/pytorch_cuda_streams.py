"""PyTorch, two streams: one graph of a full batch and one of an epoch's last, both captured before the training."""

import torch

from experiments.lab.peers.pytorch_cuda_streams import Training, views


class Trainer:
    def __init__(self, problem, rates, device="cuda"):
        n, self.rates = problem.recipe.batch_size, rates
        self.training = Training(device, problem, len(problem.y))
        sizes = [min(n, len(problem.y) - start) for start in range(0, len(problem.y), n)]
        steps = {size: self.training.replayed(size) for size in sorted(set(sizes))}
        self.epoch = [steps[size] for size in sizes]

    def start(self, problem):
        self.training.restart(problem)

    def train(self, orders):
        losses = []
        for order, rates in zip(orders, self.rates, strict=True):
            self.training.begin(order, rates)
            for step in self.epoch:
                step()
            losses.append(self.training.losses.clone())
        return torch.cat(losses).cpu().numpy()

    def parameters(self):
        weights, biases = views(self.training.theta, self.training.arrays)
        return [part.cpu().numpy() for layer in zip(weights, biases, strict=True) for part in layer]
