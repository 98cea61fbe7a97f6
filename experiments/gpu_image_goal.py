"""How long until a network that sees is good, on a GPU? Seconds of training to 99 % of MNIST's test images. See `goal`.

LeNet-5's recipe was chosen on the validation set: of those tried, the one of fewest epochs whose five seeds make at
most four fifths of the errors that the goal allows.
"""

from functools import partial

from . import goal
from .goal import Plan
from .goal import table as table
from .lenet import PLAIN

RECIPE = PLAIN.but(lr=8e-3, epochs=5, warmup_epochs=0.2, weight_decay=0.05)
PLAN = Plan(
    engines=("cupy_conv", "cuda_conv_graph", "cuda_conv_fused"),
    others=("jax_epoch",),
    goals={99: RECIPE},
    seeds=5,
    patience=30.0,
    needs="cupy_naive",
)
measure = partial(goal.measure, plan=PLAN, experiment="gpu_image_goal")
