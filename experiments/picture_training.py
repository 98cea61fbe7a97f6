"""How fast does a processor train networks that make pictures, and a detector, beside PyTorch in both layouts?

Networks of chapters 23 to 25 on one core and on two, in batches and with patches as there, on random numbers, with Adam
and the mean squared error. Each takes part in a process of its own, several times, in turns. All begin with the same
weights, and the losses of the first steps must be the same.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from experiments.lab import results
from experiments.lab.on_cores import in_turns, reply, samples_us
from mlpkit import machine
from mlpkit.executors import trainer_of
from mlpkit.nn.enlarging import enlarger, srcnn
from mlpkit.nn.losses import MeanSquaredError
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network
from mlpkit.nn.painting import painter
from mlpkit.optim import Adam
from mlpkit.words import counted

from .find.models import detector

RATE, STEPS = 1e-3, 4  # of Adam; steps that a sample has
MOST = 1e-3  # how much a loss of the first steps may differ, relatively
NETWORKS: dict[str, tuple[Callable[[], Model], int]] = {  # and a batch
    "enlarger": (partial(enlarger, 38, 2), 32),
    "srcnn": (partial(srcnn, 60, 5), 32),
    "painter": (partial(painter, (3, 256, 256)), 4),
    "detector": (detector, 64),
}


@dataclass(frozen=True)
class Plan:
    """networks: see `NETWORKS`. peers: see `PEERS`. cores: that each may use. rounds: processes. samples: of each."""

    networks: tuple[str, ...] = tuple(NETWORKS)
    peers: tuple[str, ...] = ("numba_conv", "pytorch", "pytorch_last")
    cores: tuple[int, ...] = (1, 2)
    rounds: int = 3
    samples: int = 5


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure each peer, in turns, and return the record. Raises ValueError where losses are not the same."""
    record = results.new("picture_training", libraries={name: machine.version(name) for name in ("torch", "numba")})
    return results.collect(record, _runs(plan, progress), save)


def _runs(plan, progress):
    first: dict = {}  # losses of each network's first peer
    abouts = ({"network": network, "engine": who, "cores": cores}
              for network in plan.networks for cores in plan.cores for who in plan.peers)  # fmt: skip
    for run in in_turns(__name__, [(about, {"samples": plan.samples}) for about in abouts], plan.rounds, progress):
        if not run["why_not"]:
            off = np.abs(np.divide(run["losses"], first.setdefault(run["network"], run["losses"])) - 1).max()
            if not off <= MOST:
                who = f"{run['engine']}'s losses of the {run['network']}"
                raise ValueError(f"{who} differ by {off:.2g} from the first one's.")
        yield run


def us(record, network, who, cores):
    """Return the microseconds of a step: the median of all samples, None where there are none."""
    return results.pooled_us(record, network=network, engine=who, cores=cores)


def gain(record, network, cores):
    """Return how many times as long as numba_conv's a step of PyTorch takes, in the layout that is better for it."""
    found = (us(record, network, who, cores) for who in ("pytorch", "pytorch_last"))
    ours, theirs = us(record, network, "numba_conv", cores), [each for each in found if each]
    return min(theirs) / ours if ours and theirs else None


@results.reads
def table(record):
    """Return the record as a table for the terminal: milliseconds of a step."""
    where = dict.fromkeys((run["network"], run["cores"]) for run in record["runs"])
    columns = {f"{network}, {counted(cores, 'core')}": (network, cores) for network, cores in where}

    def ms(who, key):
        found = us(record, key[0], who, key[1])
        return None if found is None else found / 1e3

    return results.by_engine(record, "milliseconds", columns, ms, ",.1f", (14, 18))


# In a process of its own


def problem(name):
    """Return the model with its loss, a batch's size, and data of some steps: X float32, y as the loss wants it."""
    make, n = NETWORKS[name]
    model, rng = make(), np.random.default_rng(0)
    model = Model(model.input, model.layers, MeanSquaredError(peak=1.0))
    X = rng.random((STEPS * n, *model.input), np.float32)
    return model, n, X, rng.integers(0, 256, (STEPS * n, *model.output), np.uint8)


def numba_conv(model, n, X, y):
    network = Network("numba_conv", model, seed=0)
    trainer = trainer_of(network, Adam(network, RATE), X, y, n)
    return lambda: [float(loss) for loss in trainer.epoch(np.arange(len(X)))]


def pytorch(model, n, X, y, last=False):
    import torch

    from .paint.peer import module

    layout = torch.channels_last if last else torch.contiguous_format
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    one = module(Network("numba_conv", model, seed=0).layers).to(memory_format=layout)
    optimizer = torch.optim.Adam(one.parameters(), RATE, fused=True)
    X, y = torch.from_numpy(X).contiguous(memory_format=layout), torch.from_numpy(y).float() / 255

    def epoch():
        losses = []
        for start in range(0, len(X), n):
            loss = torch.nn.functional.mse_loss(one(X[start : start + n]), y[start : start + n])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return epoch


PEERS: dict[str, Any] = {"numba_conv": numba_conv, "pytorch": pytorch, "pytorch_last": partial(pytorch, last=True)}


def measured(settings):
    """Return the losses of a peer's first steps, and samples, microseconds of a step each."""
    epoch = PEERS[settings["engine"]](*problem(settings["network"]))
    losses = epoch()
    return {"losses": losses, "samples_us": [us / STEPS for us in samples_us(epoch, settings["samples"])]}


if __name__ == "__main__":
    reply(measured)
