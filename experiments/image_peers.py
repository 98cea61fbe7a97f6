"""How fast do other people's libraries train networks that see, on the processor, beside the workbook? See `peers`.

Two numbers of a window may differ by less than rounding does. Then another one is the largest, its gradient goes to
another place, and from there on losses differ by more than rounding: by 3e-3 at most where this was seen, within 20
steps. In float64 the gradients agree to 1e-15 all the same. So losses are held less tightly here.
"""

from functools import partial

from experiments.lab.bench import GATE_STEPS, Timing
from mlpkit.engines import BASELINE
from mlpkit.nn.models import FASHION_CNN, LENET5
from mlpkit.training.recipe import Recipe

from . import peers
from .peers import Plan
from .peers import table as table

LENET = Recipe(model=LENET5, lr=0.05)
PLAN = Plan(
    engines=(BASELINE, "numba_conv"),
    others=("pytorch", "pytorch_last", "jax_step", "jax_epoch_cpu"),
    libraries=("torch", "jax", "jaxlib"),
    timing=Timing(warmup=5, steps_a_sample=20, rounds=5),
    recipes=(LENET, LENET.but(optimizer="adam", lr=1e-3), Recipe(model=FASHION_CNN, lr=0.01, batch_size=64)),
    gates=((GATE_STEPS, 1e-2),),
)
measure = partial(peers.measure, plan=PLAN, experiment="image_peers")
