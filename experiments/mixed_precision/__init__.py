"""What do 16-bit numbers cost a training in accuracy, and what do they gain in time? PyTorch's autocast on the GPU.

The record "mixed_precision" holds the test accuracies of some seeds, and the time of a step for narrow and for wide
networks: with products in float32, TF32, bfloat16 and float16, with float32 weights and without.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import accuracies as accuracies
from .read import step_us as step_us
from .read import table as table
from .variants import VARIANTS as VARIANTS
