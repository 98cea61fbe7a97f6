"""Which way to convolve wins where? Engines with a convolution of their own, over channels, images, kernels, batches.

The same three operations each time: forward, the gradient of the weights, the gradient of the input. An engine gets no
time for a case in which its numbers are not those of float64; how far off they are is in the record, because Winograd's
transforms and Fourier's round otherwise than sums do. The layers of the workbook's networks are cases of their own, on
one core and on all of them, beside the peak and the bandwidth of both.
"""

from .cases import GRID as GRID
from .cases import LAYERS as LAYERS
from .cases import OPERATIONS as OPERATIONS
from .cases import Case as Case
from .measure import Plan as Plan
from .measure import measure as measure
from .read import gflops as gflops
from .read import peak as peak
from .read import table as table
from .read import us as us
from .read import winner as winner
