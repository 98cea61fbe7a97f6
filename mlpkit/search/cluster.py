"""Who trains: processes on this machine, on others by SSH or Slurm, or behind a scheduler that somebody has started.

Each worker does one task at a time: on a GPU of its own, or with few threads, as it is tasks that run side by side.
"""

import logging
import os
from contextlib import contextmanager, nullcontext

from distributed import Client, LocalCluster, SSHCluster, WorkerPlugin

from mlpkit import engines, machine
from mlpkit.kernels import gpu
from mlpkit.words import short

PATIENCE = 20  # seconds to wait for a scheduler
DEATHS = 3  # of its workers: then a trial is given up
THREADS = ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class OwnGpu(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Gives each of this machine's workers, whose names are 0, 1, ..., a GPU of its own, as far as there are so many."""

    def __init__(self, gpus):
        self.gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")

    def setup(self, worker):
        """Let the worker's process see that GPU alone: it has not looked for any yet."""
        os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus[int(worker.name) % len(self.gpus)]


@contextmanager
def client_of(study):
    """Yield a Dask client whose workers are the study's. Raises OSError for an address where no scheduler answers."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # that a worker has died is ours to tell
    with _started(study) as cluster, _connected(cluster or study.cluster) as client:
        if study.cluster == "local" and engines.on_gpu(study.engine):
            client.register_plugin(OwnGpu(gpu.count()))
        yield client


def _connected(where):
    try:
        return Client(where, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        raise OSError(f"no scheduler answers at {where}: start one there, `dask scheduler`.") from error


def _started(study):
    try:
        return _cluster_of(study)
    except RuntimeError as error:  # as without what SSH needs
        raise OSError(f"the cluster did not start: {short(error).rstrip('.')}.") from error


def _cluster_of(study):
    """Return a new cluster, or an empty context for an address."""
    deaths = {"allowed_failures": DEATHS - 1}
    if study.cluster == "local":
        engines.load(study.engine)  # or why it can't run here
        count = study.workers or (
            gpu.count() if engines.on_gpu(study.engine) else machine.cores() // study.threads or 1
        )
        options = {"env": dict.fromkeys(THREADS, str(study.threads)), "silence_logs": logging.CRITICAL}
        return LocalCluster(None, count, 1, dashboard_address=None, scheduler_kwargs=deaths, **options)
    if study.cluster == "ssh":
        return SSHCluster(study.hosts, worker_options={"nthreads": 1}, scheduler_options=deaths)
    if study.cluster == "slurm":
        try:
            from dask_jobqueue import SLURMCluster
        except ImportError as error:
            raise ImportError('a cluster "slurm" needs one more package: pip install dask-jobqueue.') from error
        cluster = SLURMCluster(scheduler_options=deaths, **{"cores": 1, "processes": 1, "memory": "4GB"} | study.slurm)
        cluster.scale(study.workers or 1)
        return cluster
    return nullcontext()
