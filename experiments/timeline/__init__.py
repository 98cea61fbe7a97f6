"""Who works when in a training step? The host asks for kernels, the GPU runs them, and each may wait for the other.

For each engine on the GPU the record "timeline" holds three times of a step: the host's, to ask for it; the GPU's,
where it need not wait for the host; and that of both together. And it holds every kernel of one step, when it was asked
for and when it ran, as CUPTI tells it, NVIDIA's library for such questions. PyTorch's profiler asks CUPTI for us, and
sees all of the process, whoever launches. Without PyTorch the kernels are missing from the record.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import added as added
from .read import busy_us as busy_us
from .read import counts as counts
from .read import short as short
from .read import span_us as span_us
from .read import table as table
