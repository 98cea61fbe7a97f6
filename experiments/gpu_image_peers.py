"""How fast do other people's libraries train networks that see on a GPU, beside the workbook? PyTorch and JAX.

See `peers`. All 20 losses are held as loosely as in `image_peers`, and for the same reason. Digits that a product
leaves out show sooner. On an H200 the first five of whoever computed in float32 were within 1.6e-5 of float64's, and of
who took TF32 for its convolutions beyond 1.1e-4. LeNet-5's alone, of eager PyTorch, were within 5e-6 then; at step 20
they were off by 0.03 and more.
"""

from functools import partial

from experiments.lab.bench import Timing
from experiments.lab.peers import GATES
from mlpkit.nn.models import FASHION_CNN, LENET5, RESIDUAL
from mlpkit.training.recipe import Recipe

from . import peers
from .peers import Plan
from .peers import table as table

LENET = Recipe(model=LENET5, lr=0.05)
FASHION, DEEP = Recipe(model=FASHION_CNN, lr=0.01), Recipe(model=RESIDUAL, lr=0.001)
PLAN = Plan(
    engines=(
        "cupy_naive",
        "cupy_conv",
        "cuda_conv",
        "cuda_conv_graph",
        "cuda_conv_graph_tf32",
        "cuda_conv_graph_bf16",
        "cuda_conv_fused",
    ),
    others=(
        "pytorch_cuda",
        "pytorch_cuda_graph",
        "pytorch_cuda_graph_tf32",
        "pytorch_cuda_graph_last_tf32",
        "pytorch_cuda_graph_bf16",
        "jax_epoch",
        "jax_epoch_default",
        "jax_epoch_bf16",
    ),
    libraries=("torch", "jax", "jaxlib", "cupy-cuda12x", "cupy-cuda13x"),
    needs="cupy_naive",
    timing=Timing(warmup=200, steps_a_sample=200, rounds=1),  # a GPU's times hold; to compile takes longer
    recipes=(FASHION, FASHION.but(batch_size=64), DEEP, LENET, LENET.but(batch_size=64)),
    gates=GATES,
)
measure = partial(peers.measure, plan=PLAN, experiment="gpu_image_peers")
