"""What does it cost to wait, and where does a step's time go? Barriers, handovers, and engines that avoid them.

The record "persistence" holds the time of one barrier between blocks in two forms, of a number handed to another block
and back in two forms, of a graph's empty kernel; the time of a training step with each engine that does whole epochs,
at several batch sizes; and what the blocks of the persistent kernel do in a step, by the GPU's timer. (A stamp after a
barrier may be written before the barrier is over: then the wait counts for the stage behind it.)
"""

from .measure import Plan as Plan
from .measure import epoch_of as epoch_of
from .measure import measure as measure
from .read import stage_lines as stage_lines
from .read import table as table
from .stages import STAGES as STAGES
from .stages import stage_ns as stage_ns
from .waits import waits as waits
