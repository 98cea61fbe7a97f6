"""Figures can be drawn and read, and what moves on a page is drawn anew."""

import base64
import html
import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from shared import SMALL, blobs

from mlpkit import plots
from mlpkit.nn.network import Network
from mlpkit.optim import SGD
from mlpkit.plots import widgets
from mlpkit.training.fit import fit
from mlpkit.training.history import Epoch, History

X = np.linspace(0, 1, 5)


def history(steps=150, epochs=3, accuracy=0.9):
    """Return a history as `fit` does."""
    loss = list(np.linspace(2, 0.1, steps))
    validation = {} if accuracy is None else {"loss": 0.6, "accuracy": accuracy}
    return History(loss, [0.001] * steps, [8] * steps, [Epoch(0.1, 0.5, 1.0, validation) for _ in range(epochs)])


def decoded(png):
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return image.imread(io.BytesIO(png))


FIGURES = {
    "training": lambda: plots.training(history(), title="a run"),
    "training, short": lambda: plots.training(history(steps=3)),
    "training, not validated": lambda: plots.training(history(accuracy=None)),
    "training, of images": lambda: plots.training(History([1.0], [0.1], [8], [Epoch(0.1, 1.0, 0.1, {"loss": 1.0})])),
    "training, nothing yet": lambda: plots.training(History()),
    "curves": lambda: plots.curves({"a": (X, X**2), "b": (X, X)}, "step", "loss (nats)"),
    "curves with a spread": lambda: plots.curves({"a": (X, X, X / 9)}, "step", "loss", yscale="log", ylim=(0.1, 1)),
    "bars": lambda: plots.bars({"a": 1, "b": 1000}, "time (µs a step)"),
    "dots": lambda: plots.dots({"a": 1.5, "b": 1000}, "time (µs a step)", "{:.1f}"),
    "seeds": lambda: plots.seeds({"a": [0.97, 0.98], "b": [0.96]}, "accuracy (%)"),
    "spans": lambda: plots.spans({"a": (1.0, 9.0), "b": (3.0, 4.0)}, "t (s)", ("first", "second"), [("a", 1)]),
    "spans of three": lambda: plots.spans({"a": (1.0, 9.0, 2.0)}, "t (s)", ("first", "second", "both")),
    "named points": lambda: plots.named_points({"a": (0, 9.0), "b": (5, 1.0)}, {"a": "x", "b": "y"}, "lines", "t (µs)"),
    "half planes": lambda: plots.half_planes(np.c_[X, X**2], np.array([-1, 1, 1, -1, 1]), [np.ones(3)], [0]),
    "roofline": lambda: plots.roofline({"a": [(0, 10, 1.0), (2e6, 1e5, 9.0)]}, 100, {"memory": 20, "cache": 90}, "t"),
    "lanes": lambda: plots.lanes({"core 1": [("a", 0, 1), ("b", 1, 3)], "core 2": [("a", 0, 1.5)]}, "t (µs)"),
    "flow": lambda: plots.flow({"a": (0, "x", "k"), "b": (1, "y", "m")}, [("a", "b")], ["k", "m"], "first to last"),
    "product": lambda: plots.product({"A": np.eye(4, 2), "B": np.eye(2, 80), "C": np.eye(4, 80)}, {"a": "b", "c": "r"}),
    "confusion": lambda: plots.confusion(np.arange(9).reshape(3, 3), ("a", "b", "c")),
}


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_a_figure_can_be_drawn_and_its_axes_are_labelled(draw):
    figure = draw()
    for place in figure.axes:
        assert place.get_xlabel()
        assert place.get_ylabel() or len(place.get_yticklabels())  # bars have names for a label
    pixels = decoded(plots.png(figure))
    assert pixels.std() > 0.01  # not a white page
    assert all(mpl.rcParams[name] == mpl.rcParamsOrig[name] for name in plots.STYLE)
    assert mpl._pylab_helpers.Gcf.get_all_fig_managers() == []  # none is left open


def test_every_kind_of_figure_is_tested_here():
    tools = {"picture", "picture_width", "png", "axes", "smooth", "group_styles", "whole_decade"}
    tools |= {"images", "cells"}  # which have no axes
    functions = {
        n for n, f in vars(plots).items() if getattr(f, "__module__", "").startswith(plots.__name__) and n[0] != "_"
    }
    kinds = {name for name in functions - tools if not isinstance(getattr(plots, name), type)}
    assert kinds == {name.split(",")[0].split(" with")[0].split(" of")[0].replace(" ", "_") for name in FIGURES}


@pytest.mark.parametrize("n", [1, 7, 10, 23])
def test_images_shows_each_row_with_its_title(n):
    figure = plots.images(np.random.default_rng(0).random((n, 784)), titles=range(n), columns=10)
    shown = [place for place in figure.axes if place.images]
    assert [place.get_title() for place in shown] == [str(i) for i in range(n)]
    assert shown[0].images[0].get_array().shape == (28, 28)
    assert not any(place.axison for place in figure.axes)
    decoded(plots.png(figure))


def test_images_in_frames_show_where_they_end():
    figure = plots.images(np.zeros((2, 784)), frame=True)
    place = figure.axes[0]
    assert place.axison
    assert all(spine.get_visible() for spine in place.spines.values())
    assert len(place.get_xticks()) == len(place.get_yticks()) == 0


@pytest.mark.parametrize(("peak", "top"), [(100, 1000), (7000, 14_000)])
def test_a_roof_is_below_the_upper_edge(peak, top):
    (place,) = plots.roofline({"a": [(2e6, 1e5, 9.0)]}, peak, {"memory": 20}).axes
    assert place.get_ylim()[1] == top


def test_cells_have_their_colour_their_text_and_their_number():
    kinds = np.array([[0, 1], [1, 2], [0, 0]])
    panels = {"x": (kinds, [["", "a"], ["b", ""], ["", ""]]), "W": ([[1]], [["c"]])}
    (place,) = plots.cells(panels, {"none": "white", "some": "red", "one": "blue"}, "a title", {"x": -1}).axes
    assert [list(np.ravel(image.get_array())) for image in place.images] == [[0, 1, 1, 2, 0, 0], [1]]
    assert place.images[0].cmap(2)[:3] == (0, 0, 1)
    written = [text.get_text() for text in place.texts if text.get_text()]
    assert written == ["a", "b", "-1", "0", "-1", "0", "1", "x", "c", "0", "W"]
    assert place.get_title() == "a title"


@pytest.mark.parametrize("columns", [1, 7, 40])
def test_cells_fit_a_phone(columns):
    panels = {"x": (np.zeros((3, columns), int), np.full((3, columns), "a"))}
    figure = plots.cells(panels, {"none": "white"})
    assert plots.picture_width(figure) <= 432
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["none"]
    decoded(plots.png(figure))


def test_dots_are_named_and_their_values_written():
    (place,) = plots.dots({"numpy": 1234.5, "lists": 9.0}, "µs a step").axes
    assert [label.get_text() for label in place.get_yticklabels()] == ["numpy", "lists"]
    assert {text.get_text() for text in place.texts} == {"1,234", "9"}
    assert place.get_xscale() == "log"
    assert place.yaxis_inverted()  # the first on top


def test_a_black_pixel_is_as_dark_in_a_dark_image_as_in_a_light_one():
    figure = plots.images(np.array([np.full(784, 0.2), np.linspace(0, 1, 784)]))
    assert [place.images[0].get_clim() for place in figure.axes[:2]] == [(0, 1), (0, 1)]


def test_training_shows_the_numbers_of_the_history():
    left, right = plots.training(history()).axes
    np.testing.assert_array_equal(left.lines[0].get_ydata(), history().loss)
    np.testing.assert_array_equal(right.lines[0].get_xydata(), [[1, 90], [2, 90], [3, 90]])
    assert "%" in right.get_ylabel()
    assert left.get_yscale() == "log"


def test_smooth_is_a_running_mean_that_ends_at_the_last_step():
    steps, means = plots.smooth([1, 2, 3, 4, 5], width=3)
    np.testing.assert_allclose(means, [2, 3, 4])
    np.testing.assert_array_equal(steps, [2, 3, 4])
    steps, means = plots.smooth([1, 2, 3])
    np.testing.assert_allclose((steps, means), ([2], [2]))


def test_bars_are_named_and_their_values_written():
    (place,) = plots.bars({"numpy": 1234.5, "lists": 9.0}, "µs a step").axes
    assert [label.get_text() for label in place.get_yticklabels()] == ["numpy", "lists"]
    assert {text.get_text() for text in place.texts} == {"1,234", "9"}
    assert place.yaxis_inverted()  # the first on top


def test_lines_differ_in_more_than_colour():
    figure = plots.curves({str(i): (X, X + i) for i in range(6)}, "x", "y")
    (place,), (legend,) = figure.axes, figure.legends
    styles = {(line.get_linestyle(), str(line._unscaled_dash_pattern)) for line in place.lines}
    assert len(styles) == 6
    assert len({line.get_color() for line in place.lines}) == 6
    assert [text.get_text() for text in legend.get_texts()] == list("012345")


def test_every_dot_of_equal_values_can_be_seen():
    (place,) = plots.seeds({"a": [0.97, 0.98, 0.97, 0.97], "b": [0.97]}, "accuracy").axes
    dots = {tuple(dot) for line in place.lines if line.get_marker() == "o" for dot in line.get_xydata()}
    assert len(dots) == 5


def test_a_colour_of_few_pixels_is_kept_where_most_are_of_others():
    figure = plots.curves({str(i): (X, X + i) for i in range(6)}, "x", "y")
    figure.axes[0].plot(0.5, 0.2, "o", color="#6A3D9A", markersize=5)
    shown = decoded(plots.png(figure))[..., :3]
    for colour in ("#6A3D9A", plots.STYLE["grid.color"]):
        assert np.abs(shown - mpl.colors.to_rgb(colour)).max(axis=-1).min() < 0.02


def test_a_picture_is_a_png_with_a_text_for_those_who_cannot_see_it():
    figure = plots.curves({"a": (X, X)}, "x", "y")
    picture = plots.picture(figure, "a line that rises")
    data, metadata = picture._repr_mimebundle_()
    pixels = decoded(base64.b64decode(data["image/png"]))
    assert data["text/plain"] == picture.alt == "a line that rises"
    assert metadata["image/png"] == {"alt": "a line that rises", "width": picture.width}
    assert pixels.shape[1] == 2 * picture.width  # sharp on a fine screen


# Explorer


def wave(amplitude, phase=0):
    """Draw something that depends on both, and is drawn at once: a line without axes."""
    figure = Figure(figsize=(1, 1))
    figure.add_artist(Line2D(X, 0.5 + amplitude * np.sin(6 * X + phase) / 8))
    return figure


ALT = 'a wave, "<as high & wide>" as you like'


def explorer(**options):
    return widgets.Explorer(wave, ALT, **dict(amplitude=[1, 2, 3], phase=[0, 1]) | options)


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.found and self.found[-1][0] == "script":
            self.scripts.append(data)

    def one(self, tag):
        (attributes,) = [attributes for name, attributes in self.found if name == tag]
        return attributes


def frames(explorer):
    """Return {the controls' values, as they are written beside them: the picture that the static form shows}."""
    script, names = "".join(Tags(explorer.static()).scripts), ("frames", "values", "at")
    sources, values, at = (json.loads(re.search(rf"const {name} = (.*);", script)[1]) for name in names)
    pictures = [base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in sources]
    places = {key: [values[k][int(i)] for k, i in enumerate(key.split(","))] for key in at}
    return {tuple(places[key]): pictures[n] for key, n in at.items()}


@pytest.mark.parametrize(("control", "value"), [("amplitude", 3), ("phase", 1)])
def test_moving_a_control_draws_the_figure_anew(control, value):
    live = explorer()
    before = live.image.value
    live.inputs[control].value = value
    assert live.image.value != before
    assert live.image.value == plots.png(wave(**live.start | {control: value}))
    live.inputs[control].value = live.start[control]
    assert live.image.value == before


def test_numbers_get_a_slider_and_texts_a_menu():
    live = widgets.Explorer(lambda n, kind: wave(n), ALT, n=[1, 2.5], kind=["one", "other"])
    assert type(live.inputs["n"]).__name__ == "SelectionSlider"
    assert type(live.inputs["kind"]).__name__ == "Dropdown"
    assert live.inputs["n"].options == (("1", 1), ("2.5", 2.5))


def test_a_control_is_named_and_starts_where_it_is_told():
    live = widgets.Explorer(lambda learning_rate: wave(learning_rate), ALT, dict(learning_rate=2), learning_rate=[1, 2])
    assert live.inputs["learning_rate"].description == "learning rate"
    assert live.inputs["learning_rate"].value == 2
    assert live.image.value == plots.png(wave(2)) == frames(live)["2",]
    tags = Tags(live.static())
    assert base64.b64decode(tags.one("img")["src"].partition(",")[2]) == plots.png(wave(2))
    assert tags.one("input")["value"] == "1"
    assert "learning rate" in live.static()


def test_the_static_form_begins_with_an_image_that_needs_no_script():
    text = explorer().static()
    tags = Tags(text)
    assert tags.found[1][0] == "img"
    assert tags.one("img")["alt"] == ALT
    assert tags.one("img")["src"].startswith("data:image/png;base64,")
    assert int(tags.one("img")["width"]) == plots.picture_width(wave(1))
    assert text.index("<img") < text.index("<script")
    assert len(re.sub(r"data:[^\"]*", "", text)) < 1500  # little beside pictures of 10 kB


def test_the_static_form_has_a_frame_for_each_combination_of_values():
    live = explorer(start=dict(phase=1))
    assert frames(live) == {(str(n), str(k)): plots.png(wave(n, k)) for n in (1, 2, 3) for k in (0, 1)}
    sliders = [found for tag, found in Tags(live.static()).found if tag == "input"]
    assert [(each["type"], each["min"], each["max"], each["value"]) for each in sliders] == [
        ("range", "0", "2", "0"),
        ("range", "0", "1", "1"),
    ]


def test_where_combinations_would_be_too_many_each_control_moves_alone(monkeypatch):
    monkeypatch.setattr(widgets, "MOST_FRAMES", 5)
    live = explorer(start=dict(amplitude=2))
    places = [(1, 0), (2, 0), (3, 0), (2, 1)]
    assert frames(live) == {(str(n), str(k)): plots.png(wave(n, k)) for n, k in places}
    assert "one of them moves at a time" in live.static()


def test_a_frame_that_comes_again_is_stored_once():
    live = widgets.Explorer(lambda n, unused: wave(n), ALT, n=[1, 2], unused=["a", "b", "c"])
    assert len(frames(live)) == 6
    assert live.static().count("data:image/png") == 1 + 2  # the first one is in the page, too


def test_a_static_control_says_its_value_to_a_screen_reader():
    tags = Tags(explorer(start=dict(amplitude=3)).static())
    assert [found["aria-valuetext"] for tag, found in tags.found if tag == "input"] == ["3", "0"]
    assert "aria-valuetext" in "".join(tags.scripts)


def test_two_explorers_on_a_page_do_not_meddle_with_each_other():
    ids = [Tags(explorer(amplitude=a).static()).one("figure")["id"] for a in ([1, 2], [1, 3])]
    assert len(set(ids)) == 2
    assert ids[0] in "".join(Tags(explorer(amplitude=[1, 2]).static()).scripts)


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "-->",
    '" onload="alert(1)" x="',
    "' onload='alert(1)",
    "&lt;img src=x onerror=alert(1)&gt;",
    "<img src=x onerror=alert(1)>",
    "{frames}",
    "\u2028\u2029\\u003c",
    "a\nb",
]


@pytest.fixture(scope="module")
def usual():
    return Tags(explorer().static())


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_from_somebody_elses_record_executes_nothing_in_a_page(text, usual):
    """Wherever it stands: as a value, a control's name, or the text alternative."""
    live = widgets.Explorer(lambda **values: wave(1), text, **{text: [text, "other"], "second": [text]})
    tags = Tags(live.static())
    assert [(name, set(found)) for name, found in tags.found] == [(name, set(found)) for name, found in usual.found]
    assert {place[0] for place in frames(live)} == {text, "other"}
    assert tags.one("img")["alt"] == text
    assert not re.search("<[!/a-z]", "".join(tags.scripts))
    assert live.widget.children[-1].value == html.escape(text)


def test_a_notebook_gets_the_live_form_the_static_one_and_the_text():
    live = explorer()
    bundle = live._repr_mimebundle_()
    assert bundle["text/plain"] == ALT
    assert bundle["text/html"] == live.static()
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == live.widget.model_id


def test_the_same_explorer_makes_the_same_page():
    """So that running a notebook again changes no stored output."""
    assert explorer().static() == explorer().static()


# LiveTraining


def test_live_training_updates_one_display_an_epoch(monkeypatch):
    shown = []

    class Handle:
        def update(self, picture):
            shown.append(("update", picture))

    def display(picture, display_id):
        shown.append(("display", picture))
        return Handle()

    monkeypatch.setattr(widgets, "display", display)
    network = Network(model=SMALL)
    fit(network, SGD(network, 0.1), blobs(), blobs(), epochs=3, on_epoch=widgets.LiveTraining("the loss falls"))
    assert [how for how, _ in shown] == ["display", "update", "update"]
    assert {picture.alt for _, picture in shown} == {"the loss falls"}
    assert len({picture.png for _, picture in shown}) == 3


DRAWS = """import hashlib
from mlpkit import plots

figure = plots.curves({"a_1 %": ([1, 2, 3], [1, 4, 9])}, "x_1", "-y", yscale="log")
figure.axes[0].text(1, 2, "100 %")
print(hashlib.sha256(plots.picture(figure, "three points").png).hexdigest())
"""
OWN = "text.usetex: True\nlines.linewidth: 9\nfont.family: serif\nxtick.labelsize: 20\nfigure.autolayout: True\n"


@pytest.mark.slow
def test_a_readers_own_settings_of_matplotlib_change_no_figure(tmp_path):
    (tmp_path / "matplotlibrc").write_text(OWN)
    command = [sys.executable, "-c", DRAWS]
    usual, own = (
        subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
        for variables in ({"MATPLOTLIBRC": ""}, {"MATPLOTLIBRC": str(tmp_path)})
    )
    assert (own.returncode, own.stderr) == (0, "")
    assert own.stdout == usual.stdout != ""
