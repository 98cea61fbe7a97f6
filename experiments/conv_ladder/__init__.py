"""What is a rung of the convolution ladder worth? All three passes at five layers, beside cuDNN, PyTorch and JAX.

The record "conv_ladder" holds the GPU's time of each rung at each pass, in turns with cuDNN at its best, how far off
its results are from float64, its workspace, and the kernels that it launches with what they take of the GPU. Each is
called again and again with the same arrays, so what fits into the second cache is there: that holds for all alike.
"""

from . import choose as choose
from . import ladder as ladder
from .measure import Plan as Plan
from .measure import measure as measure
from .measure import problem as problem
from .measure import rates as rates
from .read import best as best
from .read import gflops as gflops
from .read import kernels as kernels
from .read import layers as layers
from .read import lead as lead
from .read import median_us as median_us
from .read import part_of_peak as part_of_peak
from .read import peak as peak
from .read import precision_of as precision_of
from .read import run_of as run_of
from .read import share as share
from .read import table as table
from .read import variants as variants
from .rungs import ERRORS as ERRORS
from .rungs import LAYERS as LAYERS
