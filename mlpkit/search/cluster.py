"""Who trains: processes on this machine, on others by SSH or Slurm, or behind a scheduler that somebody has started.

Each worker does one task at a time: on a GPU of its own, or with few threads, as it is tasks that run side by side.
"""

import logging
import os
from contextlib import ExitStack, contextmanager, nullcontext

import dask
from distributed import Client, LocalCluster, SSHCluster, WorkerPlugin

from mlpkit import engines, interrupts, machine
from mlpkit.kernels import gpu
from mlpkit.words import short

PATIENCE = 20  # seconds to wait for a scheduler
DEATHS = 3  # of its workers: then a trial is given up
# Dask took 10 % of a core to look after itself: who trains on all cores misses it. Nobody reads these figures here.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}
THREADS = ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class OwnGpu(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Gives each of this machine's workers, whose names are 0, 1, ..., one of these GPUs: its own, if they suffice."""

    def __init__(self, gpus):
        self.gpus = gpus

    def setup(self, worker):
        """Let the worker's process see that GPU alone: it has not looked for any yet."""
        os.environ["CUDA_VISIBLE_DEVICES"] = self.gpus[int(worker.name) % len(self.gpus)]


@contextmanager
def client_of(study):
    """Yield a Dask client whose workers are the study's. OSError where they, or a scheduler, are not there.

    Raises ValueError for more workers than this machine has room for.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # that a worker has died is ours to tell
    if study.cluster == "local":
        engines.load(study.engine)  # or why it can't run here
        if (study.workers or 0) > (most := max(8, machine.cores())):
            raise ValueError(f"{study.workers} workers are too many for {machine.cores()} cores: take {most} at most.")
    with ExitStack() as stack, dask.config.set(QUIET):
        try:
            cluster = stack.enter_context(_cluster_of(study))
            client = stack.enter_context(Client(cluster or study.cluster, timeout=PATIENCE))
        except (OSError, RuntimeError, ValueError, ImportError) as error:
            why = short(error).rstrip(".")
            raise OSError(f"cluster {study.cluster} does not answer ({why}): start it, or mend that.") from error
        if study.cluster == "local" and engines.on_gpu(study.engine):
            client.register_plugin(OwnGpu(gpu.names()))
        yield client


def _cluster_of(study):
    """Return a new cluster, or an empty context for an address."""
    deaths = {"allowed_failures": DEATHS - 1}
    if study.cluster == "local":
        count = study.workers or (
            gpu.count() if engines.on_gpu(study.engine) else machine.cores() // study.threads or 1
        )
        options = {"env": dict.fromkeys(THREADS, str(study.threads)), "silence_logs": logging.CRITICAL}
        with interrupts.put_off(starts=True):  # workers would complain of it
            return LocalCluster(None, count, 1, dashboard_address=None, scheduler_kwargs=deaths, **options)
    if study.cluster == "ssh":
        return SSHCluster(study.hosts, worker_options={"nthreads": 1}, scheduler_options=deaths)
    if study.cluster == "slurm":
        from dask_jobqueue import SLURMCluster  # whoever lacks it is told its name

        cluster = SLURMCluster(scheduler_options=deaths, **{"cores": 1, "processes": 1, "memory": "4GB"} | study.slurm)
        cluster.scale(study.workers or 1)
        return cluster
    return nullcontext()
