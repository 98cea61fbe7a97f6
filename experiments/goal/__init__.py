"""How long until the network is good? Seconds of training to 97 % and to 98 % of the test images, with each engine.

A step's time is not yet what a user waits for. So each goal has one recipe, the same for all engines, chosen from the
record "goal_recipes", and each engine trains it whole, from several seeds. The record "goal" holds the seconds. The
test set is read once, when a run is over.

Seconds are those of a whole `fit`, from first weights and images where the engine wants them, without validation: its
checks, the recording of graphs, the order of each epoch. (Records of the first edition have those of the steps.) An
engine that would take too long is not trained: its seconds are its time of a step, times the number of steps, and are
called an estimate wherever they are shown.
"""

from .measure import GOALS as GOALS
from .measure import Plan as Plan
from .measure import measure as measure
from .read import estimate_s as estimate_s
from .read import is_estimate as is_estimate
from .read import seconds as seconds
from .read import table as table
