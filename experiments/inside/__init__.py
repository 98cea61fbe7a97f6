"""What goes on inside a kernel? Sums by warps, threads that part, counters that all want, and what the tools say.

The record "inside" holds the GPU's time of the kernels in `kernels/probes/warps.cu`, and what debuggers and profilers
print about a small program with faults, `faulty.cu`, as far as the machine has them.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import says as says
from .read import table as table
