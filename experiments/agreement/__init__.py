"""Do all engines train the same network? Their first losses, step by step, and what they have learned in the end.

In float32 the engines add in different orders, so losses drift apart by roundings, and later by more: a unit whose
input lies next to 0 is on in one engine and off in the other. What must agree is the accuracy, within the spread that
other seeds give. The record "agreement" holds a run a training, of each engine from each seed.
"""

from .measure import Answer as Answer
from .measure import Plan as Plan
from .measure import answer as answer
from .measure import measure as measure
from .read import accuracies as accuracies
from .read import table as table
