"""Start the ranks of a training, hear from them, and end all of them where one has died.

The first rank writes checkpoints, and says after each epoch what it has, so that Ctrl-C loses no epoch that has ended.
"""

import os
import shutil
import signal
from multiprocessing import connection, get_context, parent_process
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from unittest.mock import patch

from mlpkit import engines, machine
from mlpkit.checks import check_count
from mlpkit.paths import expanded
from mlpkit.training.fit import fit
from mlpkit.training.history import History
from mlpkit.training.refusals import check_norms

from . import gpus as gpu_ranks
from .ring import RankLost, Ring
from .shares import engine_of

THREADS = ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")


def train(recipe, dataset, engine=engines.BASELINE, *, ranks=2, gpus=False, on_epoch=None, **options):
    """Train as `recipe.train` does, in so many processes; return the network and the history.

    gpus: whether each rank has a GPU of its own, by NCCL. options: of `fit`. The batch size is that of all ranks
    together, so a training can be resumed with another number of ranks. Raises what `fit` raises, ValueError for ranks
    that can't be had, and RankLost where one has died: the last checkpoint is kept.
    """
    ranks = check_ranks(recipe, engine, ranks, gpus)
    network, context = recipe.make_network(engine), get_context("spawn")  # or why there is none
    check_norms(network.model, len(dataset.train.y), recipe.batch_size, ranks)
    identifier = gpu_ranks.check(ranks) if gpus else None
    size = 8 * max(network.layout.size, len(network.statistics), len(dataset.train.y))
    memory = None if gpus else SharedMemory(create=True, size=ranks * size)
    barrier, parts = context.Barrier(ranks), (dataset.train, dataset.validation)
    started = []
    try:
        threads = dict.fromkeys(THREADS, str(max(1, machine.cores() // ranks)))
        with TemporaryDirectory() as folder, patch.dict(os.environ, threads):
            for rank in range(ranks):
                ours, theirs = context.Pipe()
                meeting = rank, ranks, memory and memory.name, barrier, identifier
                job = recipe, parts, engine, _options(options, rank, Path(folder, str(rank)))
                process = context.Process(target=_rank, args=(theirs, *meeting, *job), daemon=True)
                process.start()
                theirs.close()  # so that its end is seen here
                started.append((ours, process))
            return _heard(network, dict(started), on_epoch)
    finally:
        for _, process in started:
            process.kill()  # one that was killed in the barrier has left it locked, so nobody can be told there
            process.join()
        if memory:
            memory.close()
            memory.unlink()


def check_ranks(recipe, engine, ranks, gpus):
    """Return `ranks` as an int. Raises ValueError or TypeError where a recipe can't be trained by so many."""
    ranks = check_count("ranks", ranks)
    if gpus != engines.on_gpu(engine):
        here, wanted = ("CPU", "ranks") if gpus else ("GPU", "gpus")
        raise ValueError(f"{engine} computes on the {here}: say how many {wanted} there shall be.")
    if recipe.batch_size % ranks:
        raise ValueError(
            f"a batch of {recipe.batch_size} can't be shared by {ranks} ranks: take a multiple of {ranks}."
        )
    if ranks > (most := max(8, machine.cores())):
        raise ValueError(f"{ranks} ranks are more than this machine has cores: take {most} at most.")
    return ranks


def _options(options, rank, folder):
    """Return `fit`'s options for a rank: the first one keeps checkpoints, the others read a copy where they resume."""
    if rank == 0:
        return options
    own = {name: value for name, value in options.items() if name not in ("checkpoints", "resume")}
    last = expanded(options.get("checkpoints") or ".") / "last.npz"
    if options.get("resume") and last.exists():
        folder.mkdir()
        shutil.copy(last, folder)
        own |= {"checkpoints": str(folder), "resume": True}
    return own


def _rank(pipe, rank, ranks, memory, barrier, identifier, recipe, parts, engine, options):
    """Be a rank: train, and tell what was found."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides
    Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
    try:
        if identifier:
            gpu_ranks.take(rank)
        communicator = gpu_ranks.Nccl(rank, ranks, identifier) if identifier else Ring(rank, ranks, memory, barrier)
        network = recipe.make_network(engine_of(engines.load(engine), communicator))

        def tell(history, kind="epoch"):
            if rank == 0:
                pipe.send((kind, history, *map(network.engine.to_numpy, (network.theta, network.statistics))))

        chosen = {name: getattr(recipe, name) for name in ("epochs", "batch_size", "seed", "augment")}
        optimizer, (train, validation) = recipe.make_optimizer(network, len(parts[0].y)), parts
        tell(fit(network, optimizer, train, validation, on_epoch=tell, **chosen, **options), "done")
        communicator.close()
    except Exception as error:
        pipe.send(("error", error))
        os._exit(0)  # at once: the error's frames still hold shared memory, which would complain


def _end_with(process):
    """End this process with the one that has started it."""
    process.join()
    os._exit(1)


def _heard(network, pipes, on_epoch):
    """Return the network and the history that the ranks have found. Raises their error, RankLost where one is dead."""
    history, names = History(), {pipe: number for number, pipe in enumerate(pipes)}
    ready: Any
    try:
        while names:
            ready = connection.wait([*names])
            for pipe in ready:
                try:
                    kind, *what = pipe.recv()
                except EOFError:
                    pipes[pipe].join(1)
                    if code := pipes[pipe].exitcode:
                        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
                        what = f"rank {names[pipe]} {how}, and the others were stopped"
                        raise RankLost(f"{what}: resume it, where there are checkpoints.") from None
                    del names[pipe]
                    continue
                if kind == "error" and not isinstance(what[0], RankLost):
                    raise what[0]
                if kind != "error":
                    history, theta, statistics = what
                    network.set_theta(theta)
                    network.set_statistics(statistics)
                if kind == "epoch" and on_epoch:
                    on_epoch(history)
                if kind == "done":
                    return network, history
        raise RankLost("the ranks have lost each other: resume the training.")
    except KeyboardInterrupt:
        history.stopped = "interrupted"
        return network, history
