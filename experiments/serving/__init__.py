"""How many requests a second does the service bear, one by one and in batches? Over HTTP, open loop, beside peers."""

from .measure import THOROUGH as THOROUGH
from .measure import USUAL as USUAL
from .measure import Plan as Plan
from .measure import measure as measure
from .read import best as best
from .read import latency as latency
from .read import table as table
