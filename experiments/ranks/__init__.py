"""What do two processes gain that train one network together, on this machine's cores, and what does their ring cost?

Steps of a network by an engine, in one process that has one core, in one that has two, and by two ranks with a core
each, whose gradients `parallel.ring` adds up. The ring alone is timed by the size of its vector.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import ring as ring
from .read import step_us as step_us
from .read import table as table
