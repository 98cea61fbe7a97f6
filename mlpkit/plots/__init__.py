"""Records and histories become figures, and figures move."""

from .charts import bars as bars
from .charts import confusion as confusion
from .charts import curves as curves
from .charts import dots as dots
from .charts import flow as flow
from .charts import half_planes as half_planes
from .charts import images as images
from .charts import lanes as lanes
from .charts import named_points as named_points
from .charts import product as product
from .charts import roofline as roofline
from .charts import seeds as seeds
from .charts import smooth as smooth
from .charts import spans as spans
from .charts import training as training
from .grids import cells as cells
from .style import COLOURS as COLOURS
from .style import DASHES as DASHES
from .style import DPI as DPI
from .style import STYLE as STYLE
from .style import Picture as Picture
from .style import axes as axes
from .style import picture as picture
from .style import picture_width as picture_width
from .style import png as png
