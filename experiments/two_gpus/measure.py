"""Make the record: each part in processes of its own, one a GPU."""

import os
import time
from functools import partial
from multiprocessing import get_context

import numpy as np

from experiments.lab import results
from mlpkit import engines
from mlpkit.kernels import gpu
from mlpkit.nn.models import FASHION_CNN, LENET5, RESIDUAL
from mlpkit.parallel import gpus

SIZES = [2**k for k in range(6, 27)]  # floats: 256 bytes to 256 MB
NETWORKS = {"fashion_cnn": FASHION_CNN, "residual": RESIDUAL, "lenet5": LENET5}
ENGINES = ("cuda_conv_graph", "cuda_conv_graph_tf32", "cuda_conv_graph_bf16")
HOWS = ("alone", "whole", "nccl")  # a batch, or all ranks' together, on one GPU; shared by all
PEERS = ("highest", "high", "bf16")  # of PyTorch, by its precision
SECONDS = 150  # for a part


def measure(save=results.save_part, progress=print, plan=None, ranks=2):
    """Return the record. plan: a list of parts, such as [("all_reduce",)]; None for all of them.

    Raises `engines.EngineUnavailable` where there are fewer GPUs.
    """
    found = 0 if gpu.why_not() else gpu.count()
    if found < ranks:
        raise engines.EngineUnavailable(f"two_gpus needs {ranks} GPUs, and this machine has {found}.")
    parts = plan or [
        ("all_reduce",),
        *(("ours", network, engine) for network in NETWORKS for engine in ENGINES),
        *(("pytorch", network, precision) for network in NETWORKS for precision in PEERS),
    ]
    record = results.new("two_gpus", ranks=ranks)
    return results.collect(record, (run for part in parts for run in _part(part, ranks, progress)), save)


def _part(part, ranks, progress):
    progress(" ".join(part))
    found = together(partial(globals()[f"_{part[0]}"], *part[1:]), ranks)
    return found[0]  # the first rank's


def together(work, ranks):
    """Return what work(rank, ranks, exchange) returns in processes, one a GPU; its error where one fails."""
    context = get_context("spawn")
    pairs = [context.Pipe() for _ in range(ranks)]
    processes = [context.Process(target=_run, args=(work, r, ranks, pairs[r][1]), daemon=True) for r in range(ranks)]
    for process in processes:
        process.start()
    ours, until = [pair[0] for pair in pairs], time.monotonic() + SECONDS
    try:
        while True:
            said = [_heard(pipe, process, until) for pipe, process in zip(ours, processes, strict=True)]
            if said[0][0] == "result":
                return [value for _, value in said]
            for pipe in ours:
                pipe.send([value for _, value in said])
    finally:
        for process in processes:
            process.kill()
            process.join()


def _heard(pipe, process, until):
    while not pipe.poll(0.01):
        if not process.is_alive() and not pipe.poll():
            raise RuntimeError(f"a rank has ended with {process.exitcode}.")
        if time.monotonic() > until:
            raise TimeoutError(f"a rank takes more than {SECONDS} s.")
    kind, value = pipe.recv()
    if kind == "error":
        raise RuntimeError(value)
    return kind, value


def _run(work, rank, ranks, pipe):
    def exchange(value):
        pipe.send(("all", value))
        return pipe.recv()

    try:
        pipe.send(("result", work(rank, ranks, exchange)))
    except BaseException as error:
        import traceback

        pipe.send(("error", f"rank {rank}: {error}\n{traceback.format_exc()[-1500:]}"))
    time.sleep(60)  # it is ended


# ---- All-reduce alone ----


def _all_reduce(rank, ranks, exchange):
    """Return a run for each size: us of one all-reduce in a graph of many, and asked for one by one."""
    import cupy as cp

    cp.cuda.Device(rank).use()
    mean, runs = _nccl(rank, ranks, exchange), []
    for size in SIZES:
        vector = cp.full(size, rank + 1.0, cp.float32)
        mean(vector)
        right = float(cp.abs(vector - (ranks + 1) / 2).max()) == 0
        times = 200 if size < 1 << 20 else 20
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            for _ in range(times):
                mean(vector)
            graph = stream.end_capture()
            many = partial(_repeat, partial(mean, vector), times)
            samples = {"graph": _samples(graph.launch, times, exchange), "calls": _samples(many, times, exchange)}
        runs.append({"part": "all_reduce", "how": "nccl", "floats": size, "right": right, "us": samples})
        exchange(None)
        del vector
    return runs


def _repeat(call, times):
    for _ in range(times):
        call()


def _samples(call, times, exchange, rounds=7):
    """Return samples of the us of one of `times`, by the GPU's events; all ranks begin together."""
    import cupy as cp

    samples, events = [], [cp.cuda.Event() for _ in range(2)]
    for _ in range(rounds):
        cp.cuda.get_current_stream().synchronize()
        exchange(None)
        events[0].record()
        call()
        events[1].record()
        events[1].synchronize()
        samples.append(1000 * cp.cuda.get_elapsed_time(*events) / times)
    return samples[2:]


def _nccl(rank, ranks, exchange):
    """Return a function that replaces a vector by the mean of all ranks'."""
    import cupy as cp

    nccl = gpus.nccl()
    identifier = exchange(nccl.get_unique_id() if rank == 0 else None)[0]
    communicator = nccl.NcclCommunicator(ranks, identifier, rank)
    average = 4  # ncclAvg

    def mean(vector):
        pointer, stream = vector.data.ptr, cp.cuda.get_current_stream().ptr
        communicator.allReduce(pointer, pointer, vector.size, nccl.NCCL_FLOAT32, average, stream)

    return mean


# ---- A training's step ----


def _ours(name, engine, rank, ranks, exchange):
    """Return runs of a network: us a step of a batch of 128 on one GPU, and on each of all."""
    import cupy as cp

    from mlpkit import executors
    from mlpkit.data import load
    from mlpkit.nn.network import Network
    from mlpkit.optim import SGD

    cp.cuda.Device(rank).use()
    data = load("mnist", scaled=True).train
    model, n = NETWORKS[name], 128
    steps = len(data.y) // (n * ranks)
    rows = np.arange(steps * n * ranks)
    orders = dict.fromkeys(HOWS, rows.reshape(steps, ranks, n)[:, rank].ravel()) | {"whole": rows}
    trainers, thetas, losses = {}, {}, {}
    for how in HOWS:
        network = Network(engine, model, seed=0)
        reduce = _nccl(rank, ranks, exchange) if how == "nccl" else None
        batch_size = n * ranks if how == "whole" else n
        X, y = map(network.engine.asarray, (data.X.reshape(-1, *model.input), data.y))
        trainers[how] = executors.trainer_of(network, SGD(network, 0.01, reduce=reduce), X, y, batch_size)
        losses[how] = network.engine.to_numpy(trainers[how].epoch(orders[how])).tolist()
        thetas[how] = network.engine.to_numpy(network.theta).tobytes()
    thetas, losses = exchange(thetas), exchange(losses)
    samples: dict = {how: [] for how in HOWS}
    for _ in range(5):
        for how in HOWS:
            samples[how].append(_seconds(trainers[how], orders[how], exchange) / steps * 1e6)
    together = {how: np.mean([each[how] for each in losses], axis=0).tolist() for how in HOWS}
    return [
        {"part": "ours", "network": name, "engine": engine, "how": how, "batch": n, "us": samples[how],
         "same_bits": len({each[how] for each in thetas}) == 1, "losses": together[how]}
        for how in HOWS
    ]  # fmt: skip


def _seconds(trainer, order, exchange):
    import cupy as cp

    cp.cuda.Device().synchronize()
    exchange(None)
    start = time.perf_counter()
    trainer.epoch(order)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - start


# ---- PyTorch ----


def _pytorch(name, precision, rank, ranks, exchange):
    """Return runs of PyTorch: alone; its compiled step in a graph with one all-reduce; and DDP, compiled."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=exchange(_free_port())[0])
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    from . import torch_peer

    runs = []
    for how, us in torch_peer.samples(name, NETWORKS[name], precision, rank, exchange):
        runs.append({"part": "pytorch", "network": name, "precision": precision, "how": how, "batch": 128, "us": us})
    return runs


def _free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])
