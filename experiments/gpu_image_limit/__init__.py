"""How near to its limit is a training step of networks that see? LeNet-5 in one kernel, in two, and as a graph.

The record "gpu_image_limit" holds the time of a step in each of these ways, at several batch sizes; of each of the two
kernels alone; of the one kernel with something changed; the kernels of a step of the graph; and what the blocks of the
one kernel do in a step, by the GPU's timer.
"""

from ..gpu_image_peers import LENET as LENET
from .measure import VARIANTS as VARIANTS
from .measure import Plan as Plan
from .measure import measure as measure
from .measure import trainer as trainer
from .read import of as of
from .read import step_us as step_us
from .read import table as table
from .stages import IDLE as IDLE
from .stages import STAGES as STAGES
