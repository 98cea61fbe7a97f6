"""What does it take to paint a photograph in a style: which trunk, how many steps, or a network that does it at once?

The record "paint" has pictures that were trained, by trunk and style; networks that were trained to paint, each beside
pictures that were trained for the same photographs; and the times of a compiled one, of PyTorch's, and on a CPU those
of another package's. Pictures are kept in `pictures`, networks beside this file.
"""

from .measure import Plan as Plan
from .measure import load_painter as load_painter
from .measure import measure as measure
from .read import equals as equals
from .read import fastest as fastest
from .read import looks as looks
from .read import painters as painters
from .read import ratios as ratios
from .read import table as table
