"""Which recipe reaches 97 % and 98 % of the test images in the fewest epochs?

The choice is made on the validation set. Of the candidates, all with the batch and the rates of chapter 02, it is the
one of fewest epochs whose worst seed makes at most four fifths of the errors that the goal allows: the test images are
harder than the validation images (record "agreement"). The record "goal_recipes" holds the candidates' trainings; the
experiment "goal" trains what was chosen, with each engine.
"""

from experiments.lab.trainings import table as table

from .measure import ADAM as ADAM
from .measure import ADAMW as ADAMW
from .measure import Plan as Plan
from .measure import measure as measure
from .read import cheapest as cheapest
from .read import required as required
