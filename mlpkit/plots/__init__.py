"""Records and histories become figures, and figures move."""

from .charts import *
from .grids import cells as cells
from .style import *
