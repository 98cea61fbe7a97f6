"""How fast are other people's training loops, beside ours? On the processor: NumPy, PyTorch, scikit-learn, JAX.

The record "peers", and "gpu_peers" likewise, holds a run for each recipe and each of `lab.peers`, with times of its
steps from several processes, which take turns, so that a busy moment of the machine meets all of them. A peer that
can't run here, or whose first losses are not the baseline's, has its reason instead of numbers.
"""

from .measure import ADAM as ADAM
from .measure import RECIPES as RECIPES
from .measure import USUAL as USUAL
from .measure import Plan as Plan
from .measure import measure as measure
from .read import table as table
