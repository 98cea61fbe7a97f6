"""How much of a GPU's memory does a training step of a network that sees take, and when is each of its arrays needed?

For each model and batch the record "gpu_image_memory" holds the plan of the step's arrays, as `executors.cuda.arena`
made it: bytes, the moments between which each is needed, and its place. Beside it stands what lasts from step to step
(parameters, their gradient, the optimizer's state), and what PyTorch takes for the same training at its highest, by its
own count. The images, their labels and the epoch's order are in nobody's number.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import intervals as intervals
from .read import mib as mib
from .read import table as table
