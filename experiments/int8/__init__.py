"""What do integers of 8 bits gain on the processor, and whose answers change? Ours and other libraries', in turns."""

from .measure import measure as measure
from .read import table as table
