"""Where does the time of a training step go, in a network that sees? Each operation of each layer has a clock.

A network asks an engine for its arithmetic, a function at a time; between the two stands a proxy that reads the clock.
The record "profile" holds the time of each call, forward and backward, beside its arithmetic and the bytes that it has
to move: so it shows what a processor computes in a layer, and where it only waits for memory. An engine may have a way
of its own to take a step, without these calls: then that step takes less than the operations do, or more, and the
record has the times of both.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import Roofs as Roofs
from .read import Row as Row
from .read import cases as cases
from .read import rows as rows
from .read import step_us as step_us
from .read import table as table
from .read import total as total
