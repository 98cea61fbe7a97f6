"""PyTorch on the CPU: eager, with the fused update, and the rate of each step put into the optimizer's settings."""

import torch

from experiments.lab.peers.pytorch import OPTIMIZERS, build

BY_NAME = OPTIMIZERS | {"adamw": torch.optim.AdamW}


class Trainer:
    """Weights decay, biases do not."""

    def __init__(self, problem, rates, device="cpu"):
        torch.set_float32_matmul_precision("highest")
        self.X, self.y = (torch.from_numpy(array).to(device) for array in (problem.X, problem.y))
        self.rates, self.loss_of = rates, torch.nn.CrossEntropyLoss()

    def start(self, problem):
        recipe, self.model = problem.recipe, build(problem).to(self.X.device)
        self.batch_size, parameters = recipe.batch_size, list(self.model.parameters())
        groups = [
            {"params": parameters[::2], "weight_decay": recipe.weight_decay},
            {"params": parameters[1::2], "weight_decay": 0.0},
        ]
        self.optimizer = BY_NAME[recipe.optimizer](groups, recipe.lr, fused=True)

    def train(self, orders):
        losses = []
        for order, rates in zip(orders, self.rates, strict=True):
            batches = torch.from_numpy(order).to(self.X.device).split(self.batch_size)
            for index, rate in zip(batches, rates.tolist(), strict=True):
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                loss = self.loss_of(self.model(self.X[index]), self.y[index])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.detach())
        return torch.stack(losses).cpu().numpy()

    def parameters(self):
        layers = [layer for layer in self.model if isinstance(layer, torch.nn.Linear)]
        return [part.detach().cpu().numpy() for layer in layers for part in (layer.weight.T, layer.bias)]
