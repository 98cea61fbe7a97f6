"""Figures that move: under sliders while a kernel runs, and as ready-made frames where none does.

Both forms are drawn by the same function, so a page on the web shows what the live notebook shows.
"""

import base64
import hashlib
import html
import itertools
import json
import math

import ipywidgets
from IPython.display import display

from mlpkit import plots

FRAMES = """<figure id="{id}" style="margin:0"><img alt="{alt}" width="{width}" src="{first}">
<figcaption>{controls}</figcaption></figure><script>(() => {{
const frames = {frames};
const at = {at};
const values = {values};
const names = {names}, start = {start};
const e = document.getElementById("{id}"), q = s => [...e.querySelectorAll(s)];
const [img] = q("img"), alt = img.alt, inputs = q("input"), outputs = q("output");
inputs.forEach(moved => moved.oninput = () => {{
if (!(inputs.map(i => i.value) in at)) inputs.forEach((i, k) => {{ if (i != moved) i.value = start[k] }});
const now = inputs.map((i, k) => values[k][i.value]);
inputs.forEach((i, k) => {{ outputs[k].value = now[k]; i.setAttribute("aria-valuetext", now[k]) }});
img.src = frames[at[inputs.map(i => i.value)]];
img.alt = alt + " Now: " + now.map((value, k) => names[k] + " " + value).join(", ") + ".";
}})
}})()</script>"""
CONTROL = (
    '<label style="display:block">{name} <input type="range" min="0" max="{last}" value="{start}" '
    'aria-valuetext="{value}">\n<output>{value}</output></label>'
)
ALONE = "On this page one of them moves at a time, and the others go back to their start."
MOST_FRAMES = 40  # in a static form, of 10 to 30 kB each


class Explorer:
    """A figure under sliders. Make it the last line of a cell.

    draw: called with one value of each control by name, returns a figure. alt: the text alternative.
    controls: name = list of values; the first value is shown first, unless `start` names another, as a dict.
    Numbers get a slider, texts a menu. The static form has a frame for each combination of values, or, where they would
    be more than MOST_FRAMES, for each value of each control while the others are at their start.
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
        wanted = {name: control.value for name, control in self.inputs.items()}
        figure = self.draw(**wanted)
        self.image.width = plots.picture_width(figure)
        self.image.value, self.shown = plots.png(figure), wanted

    def static(self):
        """Return the frames as HTML that needs no kernel: an image, a slider a control, and a little script."""
        names, choices = list(self.controls), [list(values) for values in self.controls.values()]
        start = tuple(values.index(self.start[name]) for name, values in zip(names, choices, strict=True))
        alone = math.prod(map(len, choices)) > MOST_FRAMES
        sources: dict[str, int] = {}
        at = {}
        for place in itertools.product(*(range(len(values)) for values in choices)):
            if alone and sum(here != there for here, there in zip(place, start, strict=True)) > 1:
                continue
            wanted = {name: choices[k][place[k]] for k, name in enumerate(names)}
            drawn = self.image.value if wanted == self.shown else plots.png(self.draw(**wanted))
            source = f"data:image/png;base64,{base64.b64encode(drawn).decode()}"
            at[",".join(map(str, place))] = sources.setdefault(source, len(sources))
        frames, first = list(sources), at[",".join(map(str, start))]
        labels = [name.replace("_", " ") for name in names]
        controls = [
            CONTROL.format(name=html.escape(label), last=len(values) - 1, start=k, value=html.escape(str(values[k])))
            for label, values, k in zip(labels, choices, start, strict=True)
        ]
        return FRAMES.format(
            id="frames-" + hashlib.sha256("".join(frames).encode()).hexdigest()[:12],
            alt=html.escape(self.alt),
            width=self.image.width,
            first=frames[first],
            controls="".join(controls) + (ALONE if alone else ""),
            frames=_for_script(frames),
            values=_for_script([list(map(str, values)) for values in choices]),
            at=_for_script(at),
            start=_for_script(start),
            names=_for_script(labels),
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        live = self.widget._repr_mimebundle_(include=include, exclude=exclude)
        return live | {"text/html": self.static(), "text/plain": self.alt}


def _for_script(texts):
    """Return texts as JavaScript that may stand in a page: no `<`, so nothing that ends or begins a tag."""
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
