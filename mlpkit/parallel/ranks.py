"""Start the ranks of a training, hear from them, and end all of them where one has died.

The first rank writes checkpoints, and says after each epoch what it has, so that Ctrl-C loses no epoch that has ended.
"""

import os
import signal
import warnings
from contextlib import suppress
from multiprocessing import connection, current_process, get_context, parent_process
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from unittest.mock import patch

from mlpkit import engines, interrupts, machine
from mlpkit.checks import check_count
from mlpkit.files import write_atomically
from mlpkit.paths import expanded
from mlpkit.training.fit import fit
from mlpkit.training.history import History
from mlpkit.training.refusals import check_norms

from . import gpus as gpu_ranks
from .ring import RankLost, Ring
from .shares import engine_of

THREADS = ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")
LAST_WORDS = 5  # seconds for a rank to say, or to show by its end, why another has waited for it in vain
UNGUARDED = 117  # the exit code of a rank whose script starts ranks when it is imported


def train(recipe, dataset, engine=engines.BASELINE, *, ranks=2, gpus=False, on_epoch=None, **options):
    """Train as `recipe.train` does, in so many processes; return the network and the history.

    gpus: whether each rank has a GPU of its own, by NCCL. options: of `fit`. The batch size is that of all ranks
    together, so a training can be resumed with another number of ranks. What a batch norm or the loss `Detection`
    divides by is that of a rank's share. Raises what `fit` raises, ValueError for ranks that can't be had, OSError for
    too little shared memory, and RankLost where one has died: the last checkpoint is kept.
    """
    if getattr(current_process(), "_inheriting", False):  # a rank imports the script that has started it
        os._exit(UNGUARDED)
    ranks = check_ranks(recipe, engine, ranks, gpus)
    network, context = recipe.make_network(engine), get_context("spawn")  # or why there is none
    check_norms(network.model, len(dataset.train.y), recipe.batch_size, ranks)
    identifier = gpu_ranks.check(ranks) if gpus else None
    longest = max(network.layout.size, len(network.statistics), len(dataset.train.y))
    memory, barrier = (None, None) if gpus else _where_to_meet(context, ranks, 8 * -(-longest // ranks))
    parts, started = (dataset.train, dataset.validation), []
    try:
        threads = dict.fromkeys(THREADS, str(max(1, machine.cores() // ranks)))
        with TemporaryDirectory() as folder, patch.dict(os.environ, threads):
            own = [_options(options, rank, Path(folder, str(rank))) for rank in range(ranks)]
            for rank in range(ranks):
                ours, theirs = context.Pipe()
                meeting = rank, ranks, memory and memory.name, barrier, identifier
                process = context.Process(target=_rank, args=(theirs, *meeting), daemon=True)
                with interrupts.put_off(starts=True):
                    process.start()
                    started.append((ours, process))
                theirs.close()  # so that its end is seen here
            for (ours, _), each in zip(started, own, strict=True):
                with suppress(ConnectionError):  # it is dead already, as is seen below
                    ours.send((recipe, parts, engine, each))  # not by `start`, which would wait for it for ever
            return _heard(network, dict(started), on_epoch)
    finally:
        for _, process in started:
            process.kill()  # one that was killed in the barrier has left it locked, so nobody can be told there
            process.join()
        _give_back(memory)


def _give_back(memory):
    if memory:
        memory.close()
        memory.unlink()


def _where_to_meet(context, ranks, size):
    """Return a memory of mailboxes of so many bytes, all of them there, and a barrier. Raises OSError for too little.

    Memory that is not reserved would end a rank by SIGBUS when it first writes to it.
    """
    memory, advice = None, "give a container more of it, as by --shm-size=1g, or train without ranks"
    try:
        barrier, memory = context.Barrier(ranks), SharedMemory(create=True, size=ranks * size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(memory._fd, 0, ranks * size)  # type: ignore[attr-defined]
        return memory, barrier
    except OSError as error:
        _give_back(memory)
        why = f"{ranks * size:,} bytes of shared memory, where ranks meet, can't be had ({error.strerror or error})"
        raise OSError(f"{why}: {advice}.") from error


def check_ranks(recipe, engine, ranks, gpus):
    """Return `ranks` as an int. Raises ValueError or TypeError where a recipe can't be trained by so many."""
    ranks = check_count("gpus" if gpus else "ranks", ranks)
    if gpus != engines.on_gpu(engine):
        here, wanted = ("CPU", "ranks") if gpus else ("GPU", "gpus")
        raise ValueError(
            f"{engine} computes on the {here}: say how many {wanted}, or take an engine of the other kind."
        )
    if ranks > (most := max(8, machine.cores())):
        raise ValueError(f"{ranks} ranks are too many for {machine.cores()} cores: take {most} at most.")
    if recipe.batch_size % ranks:
        raise ValueError(
            f"a batch of {recipe.batch_size} can't be shared by {ranks} ranks: take a multiple of {ranks}."
        )
    return ranks


def _options(options, rank, folder):
    """Return `fit`'s options for a rank: the first one keeps checkpoints, the others read a copy where they resume."""
    if rank == 0:
        return options
    own = {name: value for name, value in options.items() if name not in ("checkpoints", "resume")}
    last = expanded(options.get("checkpoints") or ".") / "last.npz"
    if options.get("resume") and last.exists():
        write_atomically(folder / last.name, last.read_bytes())
        own |= {"checkpoints": str(folder), "resume": True}
    return own


def _rank(pipe, rank, ranks, memory, barrier, identifier):
    """Be a rank: hear what to train, train, and tell what was found."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides
    Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
    warnings.showwarning = lambda message, *_, **__: pipe.send(("warning", message)) if rank == 0 else None
    try:
        recipe, parts, engine, options = _job(pipe)
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


def _job(pipe):
    """Return the recipe, the data, the engine's name and the options, which whoever has started this rank sends."""
    try:
        return pipe.recv()
    except (AttributeError, ImportError) as error:
        advice = "put your own layers, losses and functions into a file beside the notebook or script, and import them"
        raise ValueError(f"a rank does not find what it is to train ({error}): {advice}.") from None


def _end_with(process):
    """End this process with the one that has started it."""
    process.join()
    os._exit(1)


def _heard(network, pipes, on_epoch):
    """Return the network and the history that the ranks have found. Raises their error, RankLost where one is dead."""
    history, names = History(), {pipe: number for number, pipe in enumerate(pipes)}
    ready: Any
    lost: Any = None  # what a rank says that has waited for another in vain; the other knows more, if it can speak
    try:
        while names:
            ready = connection.wait([*names], LAST_WORDS if lost else None)
            for pipe in ready:
                try:
                    kind, *what = pipe.recv()
                except (EOFError, OSError):  # in the middle of a message, too
                    pipes[pipe].join(1)
                    if code := pipes[pipe].exitcode:
                        raise _lost(names[pipe], code) from None
                    del names[pipe]
                    continue
                if kind == "error":
                    lost = what[0]
                    if isinstance(lost, RankLost):
                        continue
                    raise lost
                if kind == "warning":
                    warnings.warn(what[0], stacklevel=3)
                    continue
                history, theta, statistics = what
                network.set_theta(theta)
                network.set_statistics(statistics)
                if kind == "epoch" and on_epoch:
                    on_epoch(history)
                if kind == "done":
                    return network, history
            if not ready:
                break
        raise lost or RankLost("the ranks have ended too early: resume the training, where there are checkpoints.")
    except KeyboardInterrupt:
        history.stopped = "interrupted"
        return network, history


def _lost(rank, code):
    """Return the error of a rank that has ended with an exit code."""
    if code == UNGUARDED:
        what = 'put what your script does under `if __name__ == "__main__":`'
        return ValueError(f"each rank imports the script that starts it, and would start ranks of its own: {what}.")
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return RankLost(f"rank {rank} {how}, and the others were stopped: resume it, where there are checkpoints.")
