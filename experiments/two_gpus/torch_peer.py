"""PyTorch on several GPUs, each way of it: alone, with one all-reduce of one long gradient, and with DDP."""

import time
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from experiments.lab import peers
from experiments.lab.peers.pytorch_cuda_compiled import Training, loss_of
from experiments.lab.peers.pytorch_cuda_graph import capture
from mlpkit.training.recipe import Recipe

STEPS = 300


def samples(name, model, precision, rank, exchange, n):
    """Yield (how, us of a step) of each way; in place of samples, the error's text where one can't be had."""
    for how, make in VARIANTS.items():
        exchange(None)
        try:
            problem = peers.problem(Recipe(model=model, lr=0.01, batch_size=n))
            training = Training(torch.device("cuda", rank), problem, precision, last=precision == "bf16")
            step = make(training, model, precision)
            for _ in range(20):
                step()
            yield how, [_us(step, exchange) for _ in range(5)]
        except Exception as error:
            yield how, f"{type(error).__name__}: {error}"[:300]


def _us(step, exchange):
    torch.cuda.synchronize()
    exchange(None)
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS * 1e6


def alone(training, model, precision):
    return capture(training.step, training.state).replay


def flat(training, model, precision):
    """One graph: the compiled gradient as one vector, NCCL's all-reduce, the compiled update."""
    return capture(_flat_step(training, model, precision), training.state, warmup=12).replay


def _flat_step(training, model, precision):
    theta, rows, row = _parts(training)
    loss_of_batch, cells = partial(loss_of, model.layers, precision == "bf16"), [p.numel() for p in theta]

    @torch.compile(dynamic=False, fullgraph=True)
    def gradient(X, y):
        index = rows.index_select(0, row)[0]
        gradients, loss = torch.func.grad_and_value(loss_of_batch)(theta, X[index], y[index])
        return torch.cat([g.reshape(-1) for g in gradients]), loss

    @torch.compile(dynamic=False, fullgraph=True)
    def update(vector, loss):
        for p, g in zip(theta, vector.split(cells), strict=True):
            p.sub_(training.lr * g.view(p.shape))
        training.losses.index_copy_(0, row, loss[None])
        row.copy_((row + 1) % len(rows))

    def step():
        vector, loss = gradient(training.X, training.y)
        dist.all_reduce(vector, op=dist.ReduceOp.AVG)
        update(vector, loss)

    return step


class Module(torch.nn.Module):  # type: ignore[misc]
    """The network and its loss, as DDP wants them."""

    def __init__(self, model, theta, short):
        super().__init__()
        self.theta = torch.nn.ParameterList(torch.nn.Parameter(p.clone()) for p in theta)
        self.loss = partial(loss_of, model.layers, short)

    def forward(self, x, labels):
        return self.loss(list(self.theta), x, labels)


def ddp(training, model, precision):
    return _ddp_step(training, model, precision)


def ddp_graph(training, model, precision):
    """DDP's step, captured: PyTorch asks for eleven steps on the side before it, and DDP made there."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step = _ddp_step(training, model, precision)
    torch.cuda.synchronize()
    return capture(step, [], warmup=12).replay


def _ddp_step(training, model, precision):
    theta, rows, row = _parts(training)
    module = DistributedDataParallel(
        Module(model, theta, precision == "bf16"), gradient_as_bucket_view=True, static_graph=True
    )
    compiled = torch.compile(module, dynamic=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=training.lr, fused=True)

    def step():
        index = rows.index_select(0, row)[0]
        loss = compiled(training.X[index], training.y[index])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        row.copy_((row + 1) % len(rows))

    return step


def _parts(training):
    return training.theta, training.rows, training.row


VARIANTS = {"alone": alone, "flat, graph": flat, "ddp": ddp, "ddp, graph": ddp_graph}
