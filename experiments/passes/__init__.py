"""How often does a program walk over its memory? Each walk is a pass, and between two products passes are all there is.

The record "passes" holds what one fused loop saves: the operations of `engines.loops.fused` against NumPy's, over
sizes; Adam's update on its way from a formula in a loop to vector instructions, one obstacle less on each rung; the
page faults that new temporaries cost; the products alone; and when each part of a training step begins and ends.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import ENGINES as ENGINES
from .read import best_us as best_us
from .read import profile as profile
from .read import quiet_step as quiet_step
from .read import table as table
