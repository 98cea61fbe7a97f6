"""Records and histories become figures: one function a kind of figure, which returns it and shows nothing.

`picture` turns a figure into what a notebook stores: a PNG with a text alternative. The colours are Okabe and Ito's
(2008), which readers with any kind of colour vision can tell apart; lines differ in their dashes too.
"""

import base64
import io
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), "-")
STYLE: Any = {
    "axes.prop_cycle": cycler(color=COLOURS) + cycler(linestyle=DASHES),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "font.size": 11,
    "axes.axisbelow": True,
}
mpl.rcdefaults()  # a reader's matplotlibrc is for other figures: one that asks for LaTeX would break these
PARSER = FigureCanvasAgg(Figure()).get_renderer().mathtext_parser  # of formulas: it keeps what it has read
DPI = 144  # twice what a page has: sharp on a fine screen


@dataclass(frozen=True)
class Picture:
    """A PNG and its text alternative; a notebook shows it at half of its size in pixels."""

    png: bytes
    alt: str
    width: int

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = {"image/png": base64.b64encode(self.png).decode(), "text/plain": self.alt}
        return data, {"image/png": {"alt": self.alt, "width": self.width}}


def picture(figure, alt):
    """Return the figure as a `Picture`. alt: what a reader who can't see it should know, in a sentence."""
    return Picture(png(figure), alt, picture_width(figure))


def picture_width(figure):
    """Return the width in pixels at which a page shows the figure."""
    return round(figure.get_figwidth() * DPI / 2)


def png(figure):
    """Return the figure as the bytes of a PNG file of 128 colours: less than half of the size, and no eye can tell.

    The colours are spread over those in the figure, not over its pixels, so that a single dot keeps its own. They are
    moved until two hundred pixels at most change theirs: until none does takes twice as long, and looks the same.
    """
    figure.set(dpi=DPI, facecolor="white")
    canvas, packed = FigureCanvasAgg(figure), io.BytesIO()
    canvas.get_renderer().mathtext_parser = PARSER
    canvas.draw()  # once, where `savefig` draws twice: first to see how much room the texts take
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    few = drawn.quantize(128, Image.Quantize.MAXCOVERAGE, kmeans=200, dither=Image.Dither.NONE)
    few.save(packed, format="png", optimize=True)
    return packed.getvalue()


def axes(width=5.6, height=3.4, rows=1, columns=1, **options):
    """Return a new figure and its axes (an array of them where there are several), sizes in inches.

    A phone shows a figure that is no wider than this one with letters that can be read. This one belongs to nobody
    else: unlike one of pyplot's, it is freed when the last name for it goes.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, **options)
