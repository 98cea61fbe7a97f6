"""How fast are other people's training loops on a GPU, beside the workbook's? PyTorch and JAX; see `peers`.

There are two rounds of processes, for a round starts a hundred, which takes minutes. JAX's programs choose their
kernels by timing them, while other processes prepare. A cache of programs that were compiled alone,
JAX_COMPILATION_CACHE_DIR, spares them that.
"""

from functools import partial

from experiments.lab.bench import Timing
from mlpkit import engines
from mlpkit.nn.models import MLP

from . import peers
from .peers import Plan
from .peers import table as table

PLAN = Plan(
    engines=(engines.BASELINE, *filter(engines.on_gpu, engines.names(MLP.operations))),
    others=(
        "pytorch_cuda",
        "pytorch_cuda_compiled",
        "pytorch_cuda_graph",
        "pytorch_cuda_graph_tf32",
        "pytorch_cuda_streams",
        "pytorch_cuda_streams_tf32",
        "pytorch_cuda_streams_bf16",
        "jax_step",
        "jax_epoch",
        "jax_epoch_default",
        "jax_epoch_bf16",
    ),
    libraries=("torch", "jax", "jaxlib", "cupy-cuda12x", "cupy-cuda13x"),
    needs="cupy_naive",
    timing=Timing(warmup=429, steps_a_sample=429, rounds=3),  # an epoch of full batches of 128
)
measure = partial(peers.measure, plan=PLAN, experiment="gpu_peers")
