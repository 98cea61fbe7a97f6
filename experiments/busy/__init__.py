"""How much longer does a training step take beside a program that does nothing but compute?

The record "busy" holds, for each engine that shares its work among threads, times of its steps with all threads always
("all") and with a thread team whose size is chosen while it trains ("crew", see `executors.team`), and for
a few peers as they are ("own"). They train the multilayer perceptron; an engine for networks that see, LeNet-5. Each is
measured alone and beside one busy program, in turns, in a process of its own.
"""

from .measure import USUAL as USUAL
from .measure import Plan as Plan
from .measure import measure as measure
from .read import mean_us as mean_us
from .read import slower as slower
from .read import table as table
