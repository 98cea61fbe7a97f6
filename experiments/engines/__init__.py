"""How long does a training step take with each engine, and what has its network learned in the end?

The record "engines" holds a run an engine: its first losses, held to the baseline's; samples of its time of a step; the
losses of a whole training and the accuracy on the test set. An engine that can't run here, that refuses the network or
the GPU, or that differs from the baseline has its reason instead of numbers.
"""

from .measure import THOROUGH as THOROUGH
from .measure import Plan as Plan
from .measure import measure as measure
from .read import table as table
