"""One matrix product in eight ways, from three plain loops to tiles in registers: what each is worth, and why.

Every stage is a function of the same three matrices, `out = a b`, and changes one thing: the order of the loops,
permission to reorder a sum, how many numbers a load is used for, where the totals are kept. The record "matmul" holds
what the stages do over many shapes, what bounds them, and what threads cost.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import gflops as gflops
from .read import peak as peak
from .read import table as table
from .read import threads_of as threads_of
from .shapes import BATCHES as BATCHES
from .shapes import CUBES as CUBES
from .shapes import DEPTHS as DEPTHS
from .shapes import FIRST as FIRST
from .shapes import GROUPS as GROUPS
from .shapes import STEP as STEP
from .shapes import TURNED as TURNED
