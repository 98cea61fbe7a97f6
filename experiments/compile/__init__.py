"""How long does a reader wait for the compiler? The first step of each engine, in processes of their own.

A process that finds no compiled code must make it before its first step; it leaves the code on disk, and the next
process only reads it. The records "compile", of Numba's engines, and "gpu_compile", of the GPU's, hold the times of
both, and of a later step for comparison.
"""

from .measure import Plan as Plan
from .measure import first_steps as first_steps
from .measure import in_new_process as in_new_process
from .measure import measure as measure
from .read import CACHES as CACHES
from .read import median_s as median_s
from .read import table as table
from .read import wait_s as wait_s
