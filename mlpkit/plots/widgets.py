"""Figures that move: under sliders while a kernel runs, and as ready-made frames where none does.

Both forms are drawn by the same function, so a page on the web shows what the live notebook shows.
"""

import base64
import hashlib
import html
import json

import ipywidgets
from IPython.display import display

from mlpkit import plots

FRAMES = """<figure id="{id}" style="margin:0"><img alt="{alt}" width="{width}" src="{first}">
<figcaption><label>{name} <input type="range" min="0" max="{last}" value="{start}"> <output>{value}</output></label>
</figcaption></figure><script>(() => {{
const f = {frames}, n = {values}, e = document.getElementById("{id}"), q = s => e.querySelector(s);
q("input").oninput = i => {{ q("img").src = f[i.target.value]; q("output").value = n[i.target.value] }}
}})()</script>"""


class Explorer:
    """A figure under sliders. Make it the last line of a cell.

    draw: called with one value of each control by name, returns a figure. alt: the text alternative.
    controls: name = list of values; the first value is shown first, unless `start` names another, as a dict.
    Numbers get a slider, texts a menu. The static form moves the first control and leaves the others at their start.
    """

    def __init__(self, draw, alt, start=None, **controls):
        self.draw, self.alt, self.controls = draw, alt, controls
        self.start = {name: values[0] for name, values in controls.items()} | (start or {})
        self.image = ipywidgets.Image(format="png", layout=ipywidgets.Layout(align_self="flex-start"))
        self.inputs = {name: self._input(name, values) for name, values in controls.items()}
        self.widget = ipywidgets.VBox([*self.inputs.values(), self.image, ipywidgets.HTML(html.escape(alt))])
        self.redraw()

    def _input(self, name, values):
        numbers = all(isinstance(value, int | float) for value in values)
        kind = ipywidgets.SelectionSlider if numbers else ipywidgets.Dropdown
        options = [(str(value), value) for value in values]
        label = name.replace("_", " ")
        made = kind(options=options, value=self.start[name], description=label, style={"description_width": "initial"})
        made.observe(self.redraw, "value")
        return made

    def redraw(self, change=None):
        """Draw the figure for the values that the controls have now."""
        figure = self.draw(**{name: control.value for name, control in self.inputs.items()})
        self.image.width = plots.picture_width(figure)
        self.image.value = plots.png(figure)

    def static(self):
        """Return the frames as HTML that needs no kernel: an image, a slider, and a line of script."""
        name, values = next(iter(self.controls.items()))
        figures = [self.draw(**self.start | {name: value}) for value in values]
        frames = [f"data:image/png;base64,{base64.b64encode(plots.png(f)).decode()}" for f in figures]
        start = values.index(self.start[name])
        return FRAMES.format(
            id="frames-" + hashlib.sha256("".join(frames).encode()).hexdigest()[:12],
            alt=html.escape(self.alt),
            width=plots.picture_width(figures[0]),
            first=frames[start],
            name=html.escape(name.replace("_", " ")),
            last=len(frames) - 1,
            start=start,
            value=html.escape(str(values[start])),
            frames=_for_script(frames),
            values=_for_script([str(value) for value in values]),
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        live = self.widget._repr_mimebundle_(include=include, exclude=exclude)
        return live | {"text/html": self.static(), "text/plain": self.alt}


def _for_script(texts):
    """Return a list of texts as JavaScript that may stand in a page: no `<`, so nothing that ends or begins a tag."""
    return json.dumps(texts).replace("<", "\\u003c")


class LiveTraining:
    """Draws a run while it trains: give it to `fit` as `on_epoch`. The last picture stays on the page.

    alt: the text alternative of each picture.
    """

    def __init__(self, alt):
        self.alt, self.handle = alt, None

    def __call__(self, history):
        picture = plots.picture(plots.training(history), self.alt)
        if self.handle:
            self.handle.update(picture)
        else:
            self.handle = display(picture, display_id=True)
