"""Arrays as cells that one can point at: what is in them, and which of them belong together."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from .style import axes

WIDTH, CELL, GAP = 6.0, 0.42, 1.2  # inches of a figure that fits a phone, and of a cell; cells before a panel
ABOVE = 1.5  # cells above a panel, for its name and its columns' numbers


def cells(panels, colours, title="", first=None):
    """Show arrays of two dimensions side by side, as cells of one size.

    panels[name]: (kinds, texts), arrays of one shape (rows, columns). kinds: integers, each the place of a cell's
    colour in `colours`, a dict of colours by what they mean. texts: what is written into the cells. first: by name, the
    number of a panel's first row and column, where it is not 0. A single row has no number.
    """
    shapes = {name: np.shape(kinds) for name, (kinds, _) in panels.items()}
    across = sum(GAP + columns for _, columns in shapes.values()) + 0.2
    tall = max(rows for rows, _ in shapes.values()) + ABOVE + 0.1
    size = min(CELL, WIDTH / across)
    figure, place = axes(max(size * across, 3.6), size * tall + 0.7)
    palette, left = ListedColormap(list(colours.values())), GAP
    for name, (kinds, texts) in panels.items():
        rows, columns = shapes[name]
        top, start = (tall - 0.1 - ABOVE - rows) / 2, (first or {}).get(name, 0)
        extent = (left, left + columns, top + rows, top)
        place.imshow(kinds, cmap=palette, vmin=-0.5, vmax=len(colours) - 0.5, extent=extent, interpolation="nearest")
        place.vlines(left + np.arange(columns + 1), top, top + rows, colors="grey", linewidths=0.6)
        place.hlines(top + np.arange(rows + 1), left, left + columns, colors="grey", linewidths=0.6)
        for (row, column), text in np.ndenumerate(texts):
            _write(place, left + column, top + row, text)
        for column in range(columns):
            _write(place, left + column, top - 0.8, start + column, color="grey", fontsize=8)
        for row in range(rows if rows > 1 else 0):
            _write(place, left - 0.8, top + row, start + row, color="grey", fontsize=8)
        place.text(left + columns / 2, top - 1.05, name, ha="center", va="center", fontsize=11)
        left += columns + GAP
    place.set(xlim=(0, across), ylim=(tall - ABOVE, -ABOVE))
    place.axis("off")
    place.set_title(title, fontsize=11)
    used = np.unique(np.concatenate([np.ravel(kinds) for kinds, _ in panels.values()]))
    patches = [Patch(facecolor=colour, edgecolor="grey", label=name) for name, colour in colours.items()]
    shown = [patches[int(k)] for k in used]
    figure.legend(handles=shown, loc="outside lower center", ncols=len(shown), frameon=False, fontsize=9)
    return figure


def _write(place, left, top, text, **style):
    place.text(left + 0.5, top + 0.5, str(text), **{"ha": "center", "va": "center", "fontsize": 9, **style})
