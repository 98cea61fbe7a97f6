"""PyTorch's detector: the same network, losses, weights, batches and optimizer, compiled, its whole step a CUDA graph.

`python -m experiments.find.peer RESULT [GO]` waits until a file GO is there, and then measures steps of ours and of
PyTorch's in turns, on a GPU that does nothing else.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from experiments.find.models import detector
from experiments.find.scenes import scenes
from experiments.lab.clock import in_turns
from experiments.lab.peers import pytorch
from experiments.lab.peers.pytorch_cuda_graph import capture
from mlpkit.executors import trainer_of
from mlpkit.nn.concat import Concat
from mlpkit.nn.network import Network
from mlpkit.optim import AdamW

OURS = {"float32": "cuda_conv_graph", "tf32": "cuda_conv_graph_tf32", "bf16": "cuda_conv_graph_bf16"}
BATCH, RATE, DECAY, SCENES = 64, 1e-3, 0.02, 2048
STEPS, ROUNDS, GATE = 32, 8, 8  # of a sample, samples, and first losses that are compared


class Side(torch.nn.Module):  # type: ignore[misc]
    """Chains side by side, as `Concat`."""

    def __init__(self, branches):
        super().__init__()
        self.branches = torch.nn.ModuleList(branches)

    def forward(self, x):
        return torch.cat([chain(x) for chain in self.branches], 1)


pytorch.MODULES[Concat] = lambda layer, arrays: Side([pytorch.sequential(each, arrays) for each in layer.branches()])


def loss_of(loss, outputs, targets):
    """Return the loss of `Detection`, written for PyTorch's own gradient."""
    share, total = 1 / (targets[:, 0] >= 0).sum().clamp(min=1), 0
    for (*_, before), (z, boxes) in zip(loss.grids, loss.levels(outputs), strict=True):
        of = targets[:, :, before : before + z.shape[2]]
        right = of[:, :1] == torch.arange(loss.classes, device=z.device)[:, None]
        z = torch.where(right, z + loss.offset, -(z + loss.offset))
        surprise = -F.logsigmoid(z)
        weight = torch.where(right, loss.alpha, 1 - loss.alpha)
        total = total + share * (weight * torch.sigmoid(-z) ** loss.gamma * surprise).sum()
        low, high = boxes[:, :2] - boxes[:, 2:].exp() / 2, boxes[:, :2] + boxes[:, 2:].exp() / 2
        both = (torch.minimum(high, of[:, 3:]) - torch.maximum(low, of[:, 1:3])).clamp(min=0)
        around = torch.maximum(high, of[:, 3:]) - torch.minimum(low, of[:, 1:3])
        met, all_of = both[:, 0] * both[:, 1], around[:, 0] * around[:, 1]
        edges, others = high - low, of[:, 3:] - of[:, 1:3]
        union = edges[:, 0] * edges[:, 1] + others[:, 0] * others[:, 1] - met
        off = torch.where(of[:, 0] >= 0, 2 - met / union - union / all_of, 0)
        total = total + loss.box_weight * share * off.sum()
    return total


def steps_of(network, data, order, precision="float32", device="cuda", last=False):
    """Return a function that takes one step on the next batch, and the tensor of the losses that it fills."""
    torch._dynamo.reset()
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    form = torch.channels_last if last else torch.contiguous_format
    parameters = network.views(network.engine.to_numpy(network.theta))
    module = pytorch.sequential(network.model.layers, iter(parameters.values())).to(device, memory_format=form)
    X, y, rows = (torch.from_numpy(each).to(device) for each in (*data, order.reshape(-1, BATCH)))
    optimizer = torch.optim.AdamW(
        module.parameters(), RATE, weight_decay=DECAY, fused=True, capturable=device == "cuda"
    )
    count, losses = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros(len(rows), device=device)

    def forward(index):
        x = (X[index].float() / 255).contiguous(memory_format=form)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            outputs = module(x)
        return loss_of(network.model.loss, outputs.float(), y[index])

    compiled = torch.compile(forward, dynamic=False) if device == "cuda" else forward

    def step():
        loss = compiled(rows[count % len(rows)][0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.index_copy_(0, count % len(rows), loss.detach()[None])
        count.add_(1)

    if device == "cpu":
        return step, losses
    state = [*module.parameters(), *module.buffers(), count, losses]
    graph = capture(step, state)
    for of in optimizer.state.values():
        for tensor in of.values():
            tensor.zero_()
    return graph.replay, losses


def ours(engine, data, order):
    """Return a function that takes some steps and waits, and one that tells the first losses."""
    network = Network(engine, detector())
    X, y = map(network.engine.asarray, data)
    trainer = trainer_of(network, AdamW(network, RATE, weight_decay=DECAY), X, y, BATCH)
    first = network.engine.to_numpy(trainer.epoch(order[: GATE * BATCH]))

    def sample():
        start = time.perf_counter()
        trainer.epoch(order[: STEPS * BATCH])
        network.engine.synchronize()
        return (time.perf_counter() - start) / STEPS

    return sample, first


def theirs(data, order, **options):
    """Return what `ours` does, of PyTorch."""
    step, losses = steps_of(Network("numpy_baseline", detector()), data, order, **options)
    for _ in range(GATE):
        step()
    torch.cuda.synchronize()
    first = losses[:GATE].cpu().numpy()

    def sample():
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / STEPS

    return sample, first


def main(result, go=None):
    found = scenes(SCENES, seed=3)
    data = found.images, detector().loss.match(found.truth)
    order = np.arange(SCENES)
    made = {f"ours {precision}": partial(ours, engine, data, order) for precision, engine in OURS.items()}
    for precision in OURS:
        for last in (False, True):
            name = f"pytorch {precision}" + (" channels last" if last else "")
            made[name] = partial(theirs, data, order, precision=precision, last=last)
    calls, first = {}, {}
    for name, make in made.items():
        calls[name], losses = make()
        first[name] = np.round(losses.astype(float), 6).tolist()
        print(name, first[name][:3], first[name][-1], flush=True)
    while go and not Path(go).exists():
        time.sleep(0.5)
    for call in calls.values():
        call()
    samples = in_turns(calls, ROUNDS)
    runs = [
        {"kind": "step", "who": name, "batch": BATCH, "first": first[name], "seconds": samples[name]} for name in calls
    ]
    Path(result).write_text(json.dumps(runs))
    print({name: round(1e6 * float(np.median(each))) for name, each in samples.items()}, "us a step")


if __name__ == "__main__":
    main(*sys.argv[1:])
