"""Make the record: each part in processes of its own, one a GPU."""

import os
import time
from functools import partial
from multiprocessing import get_context
from types import SimpleNamespace

import numpy as np

from experiments.lab import results
from mlpkit import engines, executors
from mlpkit.data import load
from mlpkit.kernels import gpu
from mlpkit.nn.models import FASHION_CNN, LENET5, MLP, RESIDUAL
from mlpkit.nn.network import Network
from mlpkit.optim import SGD
from mlpkit.parallel import gpus
from mlpkit.parallel.nvlink import MOST_FLOATS, NvlinkReduction
from mlpkit.parallel.shares import Reduction, engine_of

SIZES = [2**k for k in range(6, 27)]  # floats: 256 bytes to 256 MB
INSIDE = (1_024, 16_384, 61_706, 134_794, 262_144, 896_522)  # floats, within a kernel
NETWORKS = {"fashion_cnn": FASHION_CNN, "residual": RESIDUAL, "lenet5": LENET5, "mlp": MLP}
GRAPHS = ("cuda_conv_graph", "cuda_conv_graph_tf32", "cuda_conv_graph_bf16")
CASES = (  # network, engines, examples of a batch on each GPU
    ("fashion_cnn", GRAPHS, 128),
    ("residual", GRAPHS, 128),
    ("lenet5", ("cuda_conv_fused", "cuda_conv_graph"), 128),
    ("lenet5", ("cuda_conv_fused",), 64),
    ("mlp", ("cuda_persistent", "cuda_graph_epoch"), 128),
    ("mlp", ("cuda_persistent",), 64),
)
HOWS = ("alone", "whole", "nccl", "nvlink")  # a batch, or all ranks' together, on one GPU; shared by all
PEERS = ("highest", "high", "bf16")  # of PyTorch, by its precision
SECONDS = 280  # for a part
ROUNDS = 7


def measure(save=results.save_part, progress=print, plan=(("all_reduce",),), ranks=2):
    """Return the record. plan: parts, such as ("all_reduce",) or ("ours", network, engines, images a GPU).

    Raises `engines.EngineUnavailable` where there are fewer GPUs than ranks.
    """
    found = 0 if gpu.why_not() else gpu.count()
    if found < ranks:
        raise engines.EngineUnavailable(f"two_gpus needs {ranks} GPUs, and this machine has {found}.")
    return results.collect(results.new("two_gpus", ranks=ranks), parts_of(plan, ranks, progress), save)


def parts_of(plan, ranks, progress=print):
    """Yield the runs of all parts of a plan, each part in processes of its own."""
    for part in plan:
        progress(f"{ranks} GPUs: {' '.join(map(str, part))}")
        for run in together(partial(globals()[f"_{part[0]}"], *part[1:]), ranks)[0]:  # the first rank's
            yield {"ranks": ranks} | run


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
    """Return a run for each size and way: us of one all-reduce in a graph of many, and asked for one by one."""
    import cupy as cp

    cp.cuda.Device(rank).use()
    communicator, runs = _communicator(rank, ranks, exchange), []
    for size in SIZES:
        network = SimpleNamespace(engine=engines.load("cupy_fused"), dtype=np.dtype("f4"), n_weights=size)
        network.grad = cp.empty(size, cp.float32)
        for how, kind in (("nccl", Reduction), ("nvlink", NvlinkReduction))[: 1 + (size <= MOST_FLOATS)]:
            network.grad.fill(rank + 1)
            reduction = kind(communicator, network)
            network.grad.fill(rank + 1)
            call = partial(communicator.sum if how == "nccl" else reduction, network.grad)
            call()
            wanted = sum(range(1, ranks + 1)) / (1 if how == "nccl" else ranks)
            run = {"part": "all_reduce", "how": how, "floats": size, "right": bool((network.grad == wanted).all())}
            network.grad.fill(0)
            runs.append(run | {"us": _in_graphs_and_not(call, 200 if size < 1 << 20 else 20, exchange)})
            reduction.check(wait=True)
            exchange(None)
        del network.grad, reduction, call
    return runs


def _in_graphs_and_not(call, times, exchange):
    import cupy as cp

    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        _repeat(call, times)
        graph = stream.end_capture()
        many = partial(_repeat, call, times)
        return {"graph": _samples(graph.launch, times, exchange), "calls": _samples(many, times, exchange)}


def _inside(rank, ranks, exchange):
    """Return a run for each size: us of one all-reduce within a kernel that does 2,000 of them."""
    import cupy as cp

    from mlpkit import kernels
    from mlpkit.executors.cuda.waiting import Ranks

    cp.cuda.Device(rank).use()
    communicator, runs, times = _communicator(rank, ranks, exchange), [], 2000
    blocks, threads = cp.cuda.Device().attributes["MultiProcessorCount"], 512
    for size in INSIDE:
        network = SimpleNamespace(engine=engines.load("cupy_fused"), dtype=np.dtype("f4"), n_weights=size)
        network.grad = cp.full(size, rank + 1, cp.float32)
        among = Ranks(NvlinkReduction(communicator, network))
        among.open(size + blocks)
        kernel = kernels.load("inside", EACH=-(-size // (blocks * threads)), **among.macros).get_function("rounds")
        vector, failure = cp.full(size, rank + 1, cp.float32), cp.zeros(1, cp.uint64)

        def launch(count, vector=vector, failure=failure, kernel=kernel, among=among, size=size):
            arguments = vector, np.int32(size), np.int32(count), failure, among.argument()
            kernel((blocks,), (threads,), arguments, shared_mem=1024)
            among.count(count)

        launch(1)
        right = bool((vector == (ranks + 1) / 2).all())
        us = _samples(partial(launch, times), times, exchange)
        right &= bool(cp.allclose(vector, (ranks + 1) / 2)) and not int(failure[0])
        runs.append({"part": "all_reduce", "how": "inside", "floats": size, "right": right, "us": {"inside": us}})
        exchange(None)
    return runs


def _repeat(call, times):
    for _ in range(times):
        call()


def _samples(call, times, exchange, rounds=ROUNDS):
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


def _communicator(rank, ranks, exchange):
    identifier = exchange(gpus.nccl().get_unique_id() if rank == 0 else None)[0]
    return gpus.Nccl(rank, ranks, identifier)


# ---- A training's step ----


def _ours(name, names, n, rank, ranks, exchange):
    """Return runs of a network with some engines: us a step of n examples on one GPU, and on each of all."""
    import cupy as cp

    cp.cuda.Device(rank).use()
    communicator, runs = _communicator(rank, ranks, exchange), []
    kinds = {"nccl": Reduction, "nvlink": communicator.Reduction}
    for engine in names:
        trainers, refused = {}, {}
        for how in HOWS:
            communicator.Reduction = kinds.get(how)
            try:
                trainers[how] = _Trained(how, name, engine, n, communicator)
            except Exception as error:
                refused[how] = f"{type(error).__name__}: {error}"[:300]
        found = _times(trainers, exchange)
        for how in HOWS:
            run = {"part": "ours", "network": name, "engine": engine, "how": how, "batch": n}
            runs.append(run | (found[how] if how in found else {"refused": refused[how]}))
        for trained in trainers.values():
            trained.trainer.close()
        trainers.clear()
        exchange(None)
    return runs


class _Trained:
    """A network with its trainer, on the first GPU alone or on all."""

    def __init__(self, how, name, engine, n, communicator):
        model, ranks, data = NETWORKS[name], communicator.ranks, load("mnist", scaled=True).train
        together = n * ranks
        self.steps = len(data.y) // together
        rows = np.arange(self.steps * together)
        if how == "alone":
            rows = rows.reshape(self.steps, ranks, n)[:, communicator.rank].ravel()
        self.order, found = rows, engines.load(engine)
        shared = how in ("nccl", "nvlink")
        self.network = network = Network(engine_of(found, communicator) if shared else found, model, seed=0)
        X, y = map(network.engine.asarray, (data.X.reshape(-1, *model.input), data.y))
        batch_size = n if how == "alone" else together
        self.trainer = executors.trainer_of(network, SGD(network, 0.01), X, y, batch_size)
        self.losses = network.engine.to_numpy(self.trainer.epoch(self.order)).tolist()
        self.theta = network.engine.to_numpy(network.theta).tobytes()


def _times(trainers, exchange):
    """Return for each trainer samples, in turns, and what it came to."""
    told = exchange({how: (each.theta, each.losses) for how, each in trainers.items()})
    samples: dict = {how: [] for how in trainers}
    for _ in range(ROUNDS):
        for how, each in trainers.items():
            samples[how].append(_seconds(each.trainer, each.order, exchange) / each.steps * 1e6)
    return {
        how: {
            "us": samples[how],
            "same_bits": len({each[how][0] for each in told}) == 1,
            "losses": np.mean([each[how][1] for each in told], axis=0).tolist(),
        }
        for how in trainers
    }


def _seconds(trainer, order, exchange):
    import cupy as cp

    cp.cuda.Device().synchronize()
    exchange(None)
    start = time.perf_counter()
    trainer.epoch(order)
    cp.cuda.Device().synchronize()
    return time.perf_counter() - start


# ---- PyTorch ----


def _pytorch(name, precisions, n, rank, ranks, exchange):
    """Return runs of PyTorch: alone; its compiled step in a graph with one all-reduce; and DDP, compiled."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=exchange(_free_port())[0])
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # whose threads ask for events while a graph is captured
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    from . import torch_peer

    runs = []
    for precision in precisions:
        for how, us in torch_peer.samples(name, NETWORKS[name], precision, rank, exchange, n):
            run = {"part": "pytorch", "network": name, "precision": precision, "how": how, "batch": n}
            runs.append(run | ({"refused": us} if isinstance(us, str) else {"us": us}))
    return runs


def _free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])
