"""Which engine wins where? A step's time over batch sizes and widths, on one thread and on all cores.

All engines that share a batch size and a width take turns, so that they meet the same quiet and busy moments. Before a
turn all threads must be asleep: OpenBLAS's, for one, go on looking for work for a tenth of a second after they have had
some, and would take a core from the next engine. The record "sweep" holds all samples; a case that is not run has the
reason in `why_not`.
"""

from .measure import NAMES as NAMES
from .measure import RECIPE as RECIPE
from .measure import Plan as Plan
from .measure import measure as measure
from .read import METRICS as METRICS
from .read import SERIAL as SERIAL
from .read import curve as curve
from .read import flops as flops
from .read import sizes as sizes
from .read import table as table
from .read import value as value
