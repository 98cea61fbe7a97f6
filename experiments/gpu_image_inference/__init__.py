"""How fast does a trained network that sees answer on a GPU, compiled for batches of 1 to 4096? PyTorch and JAX, too.

For each model, peer and size of a batch the record "gpu_image_inference" holds the microseconds of the GPU for a batch
that lies there, and those that a program waits from pixels on the host to outputs on the host. Beside them stands how
far the outputs are from the baseline's in float64, and how many answers are the same.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import fastest as fastest
from .read import table as table
from .read import us as us
