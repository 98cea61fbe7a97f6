"""How fast can a training step be? No faster than its arithmetic at the processor's peak, nor than its data arrive.

That is the roofline of Williams, Waterman and Patterson (2009): an operation that does F floating-point operations and
has to move B bytes takes at least `max(F / peak, B / bandwidth)`. The record "floor" holds both rates, found by running
them (see `lab.roof`); the operations of a step, counted and timed where they happen (see `lab.operations`); what the
sets of kernels in OpenBLAS are worth; and what a step takes beside other programs.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import KIB as KIB
from .read import Roofs as Roofs
from .read import kernel_rows as kernel_rows
from .read import parts as parts
from .read import table as table
