"""What does a user pay for `fit`? A whole training, as it is called, beside the engine's own time for the same epochs.

A kernel's microseconds are not yet a training's: somebody has to check the data, draw each epoch's order, look at the
losses and at the parameters, and validate. The record "fit" holds the microseconds a step of five things, taken in
turns: the trainer's epochs alone, by the engine's own clock; `fit` on a network and on data that are where the engine
wants them; the same with a validation after each epoch; `Recipe.train`, which makes the network, too, of a seed that
this process has trained with before, whose weights and orders are remembered; and the same with a new seed each time.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import added as added
from .read import table as table
