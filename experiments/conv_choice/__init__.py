"""Which way to convolve is the fastest where? It depends on channels, pixels, windows, and images at a time.

The record "conv_choice" goes from a layer in the middle of a network along four lines, and over a grid of channels and
pixels. It holds what each rung takes at each pass, how far off its results are from float64, its workspace, and which
rung `conv_ladder.choose` decided for, which times them once and remembers.
"""

from .measure import CENTRE as CENTRE
from .measure import LINES as LINES
from .measure import Plan as Plan
from .measure import at as at
from .measure import measure as measure
from .measure import shapes as shapes
from .read import decisions as decisions
from .read import errors as errors
from .read import fastest as fastest
from .read import grid as grid
from .read import line as line
from .read import median_us as median_us
from .read import regret as regret
from .read import table as table
