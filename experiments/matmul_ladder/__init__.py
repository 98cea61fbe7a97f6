"""What is a rung of the ladder worth? One product on the GPU in ten ways, from a loop in each thread to tensor cores.

The record "matmul_ladder" holds what the rungs do at several sizes beside cuBLAS, NVIDIA's own library, and the two
limits that all of them run into. `rungs` says what a rung is, `warps` what the threads of its warps touch at once, and
`others` has the product in Numba and in Triton.
"""

from . import warps as warps
from .measure import TRANSPOSES as TRANSPOSES
from .measure import Plan as Plan
from .measure import measure as measure
from .measure import rates as rates
from .measure import transpose as transpose
from .others import OTHERS as OTHERS
from .others import available as available
from .others import code_lines as code_lines
from .others import source as source
from .read import PRECISIONS as PRECISIONS
from .read import gflops as gflops
from .read import median_us as median_us
from .read import roofs as roofs
from .read import share as share
from .read import table as table
from .rungs import ARCHITECTURES as ARCHITECTURES
from .rungs import ERRORS as ERRORS
from .rungs import RUNGS as RUNGS
from .rungs import cublas as cublas
from .rungs import fitting as fitting
from .rungs import flops as flops
from .rungs import least_bytes as least_bytes
from .rungs import matmul as matmul
from .rungs import prepare as prepare
from .rungs import resources as resources
from .rungs import why_not as why_not
