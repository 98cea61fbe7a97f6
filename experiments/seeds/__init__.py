"""What do error bars cost? Fifteen networks from fifteen seeds, trained in one launch, each on eight multiprocessors.

The record "seeds" holds the time of an epoch for several numbers of networks at once (`cuda_cluster`), that of fifteen
of them one after another (`cuda_persistent`, the engine that is fastest for a single one), that of fifteen with JAX's
`vmap` in its scan (by the host's clock, and full batches only), what a block does in a step by the GPU's timer, and the
test accuracies of fifteen seeds.
"""

from .measure import STAGES as STAGES
from .measure import Plan as Plan
from .measure import measure as measure
from .read import ALONE as ALONE
from .read import OTHER as OTHER
from .read import TOGETHER as TOGETHER
from .read import median_ms as median_ms
from .read import table as table
