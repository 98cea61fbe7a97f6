"""What does it cost to ask a GPU for work? The host's time for each call, the GPU's, and what clocks say about both.

A call of CuPy returns when the work is asked for, not when it is done. So there are three times: until the call
returns, until the GPU is done, and the GPU's own, which two events on its stream tell (see `lab.clock`). The record
"launches" holds these times for products of several sizes, for the usual calls, for graphs of kernels, and for steps of
engines at several batch sizes.
"""

from .graphs import record_times as record_times
from .measure import RECIPE as RECIPE
from .measure import Plan as Plan
from .measure import measure as measure
from .measure import usual_calls as usual_calls
from .read import curve as curve
from .read import first_win as first_win
from .read import table as table
