"""How do the examples get to the GPU? The fastest step waits for its batch, whoever carries it.

The record "feed" holds copies between the host and the device, from pageable memory and from pinned memory (`copies`);
a training step that is fed in eight ways, from a copy a step to a data set that is there (`variants`); what memory
costs to get, how much of it a training takes and what happens when there is none left (`memory`); and a CPU that works
beside the GPU, on a share of each batch or on the next epoch (`tandem`). The arithmetic is the engines'.

Times are the host's clock, in microseconds: until a call returns (`call_us`), and until the GPU has done what it was
asked for (`samples_us`).
"""

from .copies import GRADIENT as GRADIENT
from .copies import copy_calls as copy_calls
from .copies import time_copy as time_copy
from .measure import RECIPE as RECIPE
from .measure import Plan as Plan
from .measure import check as check
from .measure import measure as measure
from .memory import ask_for as ask_for
from .read import COPIED as COPIED
from .read import lanes as lanes
from .read import median_of as median_of
from .read import parts_of as parts_of
from .read import pieces as pieces
from .read import table as table
from .step import Batch as Batch
from .step import Images as Images
from .tandem import in_tandem as in_tandem
from .tandem import shifted as shifted
from .variants import VARIANTS as VARIANTS
from .variants import Overlapped as Overlapped
