"""Is a clever search better than a lucky one, and is anything lost when processes die?

The record "search" holds studies of 60 short trainings each, proposed by Optuna's TPE, at random and on a grid, and
what their winners are worth from other seeds; the same with Hyperband; how long two workers take and one; how long
Optuna takes to propose as its file grows; fifteen rates trained in one launch, where there is a GPU; and a search whose
processes are killed at random.
"""

from .measure import THOROUGH as THOROUGH
from .measure import Plan as Plan
from .measure import measure as measure
from .read import best_so_far as best_so_far
from .read import fresh as fresh
from .read import picked as picked
from .read import speedup as speedup
from .read import studies as studies
from .read import table as table
