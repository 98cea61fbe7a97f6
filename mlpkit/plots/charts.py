"""One function a kind of figure, which returns it and shows nothing."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from .style import COLOURS, DASHES, axes


def images(X, titles=None, columns=5, shape=(28, 28), frame=False):
    """Show rows of `X` (n, pixels), values 0 to 1, as grey images with a title each. frame: around each of them."""
    rows = -(-len(X) // columns)
    height = 0.8 * rows + (0.3 * rows if titles is not None else 0)
    figure, grid = axes(0.8 * columns, height, rows, columns, squeeze=False)
    for place in grid.flat:
        place.axis("off")
    titles = [""] * len(X) if titles is None else titles
    for place, pixels, title in zip(grid.flat, X, titles, strict=False):
        place.imshow(pixels.reshape(shape), cmap="gray_r", vmin=0, vmax=1)
        place.set_title(title, fontsize=10)
        if frame:
            place.set(xticks=[], yticks=[])
            place.set_axis_on()
            place.spines[:].set(visible=True, color="grey")
    return figure


def training(history, title=""):
    """Show a run: the loss of each step, and the validation accuracy after each epoch, where there is one."""
    figure, (upper, lower) = axes(5.6, 5.4, rows=2)
    upper.plot(history.loss, color=COLOURS[5], linewidth=0.5, label="each step")
    upper.plot(*smooth(history.loss), "-", color=COLOURS[0], label="mean of 100")
    upper.set(xlabel="step", ylabel="training loss", yscale="log", title=title)
    upper.legend(frameon=False)
    accuracy = [100 * a for a in history.validation.get("accuracy", ()) if a is not None]
    lower.plot(range(1, len(accuracy) + 1), accuracy, "o-", color=COLOURS[1])
    lower.set(xlabel="epoch", ylabel="validation accuracy (%)")
    lower.xaxis.get_major_locator().set_params(integer=True)
    return figure


def smooth(values, width=100):
    """Return (steps, running means over `width` values); of all of them where there are fewer."""
    if not len(values):  # a run that was interrupted at once
        return np.arange(0), np.zeros(0)
    width = max(1, min(width, len(values)))
    means = np.convolve(values, np.ones(width) / width, "valid")
    return np.arange(len(means)) + width - 1, means


def curves(series, xlabel, ylabel, **options):
    """Show lines by label: series[label] is (x, y), or (x, y, spread), which is drawn as a band of +- spread.

    options: for `Axes.set`, such as xscale="log".
    """
    rows = -(-len(series) // 2)  # of the legend, which stands above the lines, where it hides none
    figure, place = axes(height=3.2 + 0.22 * rows)
    for label, (x, y, *spread) in series.items():
        (line,) = place.plot(x, y, marker="o", markersize=4, label=label)
        for width in spread:
            low, high = np.subtract(y, width), np.add(y, width)
            place.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    place.set(xlabel=xlabel, ylabel=ylabel, **options)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def seeds(groups, xlabel):
    """Show a row a label: a dot for each of its values, one a seed, and a line at their mean; first label on top.

    Equal values stand one above the other.
    """
    figure, place = axes(height=0.7 + 0.32 * len(groups))
    for row, values in enumerate(groups.values()):
        values = np.sort(values)
        equals_before = np.arange(len(values)) - np.searchsorted(values, values)
        place.plot(values, row - 0.22 * equals_before, "o", color=COLOURS[0], alpha=0.6, markersize=5)
        place.plot([np.mean(values)] * 2, [row - 0.3, row + 0.3], "-", color=COLOURS[1], linewidth=2.5)
    place.set(xlabel=xlabel, yticks=range(len(groups)), yticklabels=list(groups))
    place.invert_yaxis()
    place.grid(axis="y", visible=False)
    return figure


def bars(values, xlabel, note="{:,.0f}"):
    """Show a horizontal bar a label, its value written beside it by the format `note`; the first label on top."""
    figure, place = axes(height=0.6 + 0.42 * len(values))
    drawn = place.barh(list(values), list(values.values()), color=COLOURS[0])
    place.bar_label(drawn, [note.format(value) for value in values.values()], padding=4)
    place.set(xlabel=xlabel)
    place.invert_yaxis()
    place.margins(x=0.15)
    place.grid(axis="y", visible=False)
    return figure


def dots(values, xlabel, note="{:,.0f}", xlim=None):
    """Show a dot a label on a logarithmic axis, where bars would begin anywhere, and its value; first label on top."""
    figure, place = axes(height=0.7 + 0.4 * len(values))
    for row, value in enumerate(values.values()):
        place.plot(value, row, "o", color=COLOURS[0], markersize=9)
        place.annotate(note.format(value), (value, row), (9, 0), textcoords="offset points", va="center")
    place.set(xlabel=xlabel, xscale="log", yticks=range(len(values)), yticklabels=list(values))
    place.set(ylim=(len(values) - 0.5, -0.5), xlim=xlim or whole_decade(values.values()))
    return figure


def whole_decade(values, room=6):
    """Return limits of a logarithmic axis: a power of ten, and room beyond the largest for a number beside its dot."""
    known = [value for value in values if not np.isnan(value)]
    return 10.0 ** np.floor(np.log10(0.9 * min(known))), room * max(known)


def group_styles(groups, order=()):
    """Return by group a colour and the shape of a marker: by its place in `order`, if it has one."""
    styles = dict(zip(dict.fromkeys((*order, *groups)), zip(COLOURS, "osD^vP", strict=False), strict=False))
    return {group: styles[group] for group in dict.fromkeys(groups)}


def spans(rows, xlabel, names=("", ""), hollow=()):
    """Show for each label two values or three, joined by a line, on a logarithmic axis; the first label on top.

    rows[label]: (first, second, ...); NaN where there is none. names: of the values. hollow: pairs (label, index) of
    markers not to be filled.
    """
    figure, place = axes(6, 1.1 + 0.3 * len(rows))
    for row, (name, pair) in enumerate(rows.items()):
        place.plot([np.nanmin(pair), np.nanmax(pair)], [row, row], "-", color="grey", linewidth=1.2, zorder=1)
        for index, value in enumerate(pair):
            face = "white" if (name, index) in hollow else COLOURS[index]
            place.plot(value, row, "osx"[index], color=COLOURS[index], markerfacecolor=face, markersize=7)
    for value, colour, shape in zip(names, COLOURS, "osx", strict=False):
        place.plot([], [], shape, color=colour, label=value, markersize=7)
    if hollow:
        place.plot([], [], "o", color="grey", markerfacecolor="white", label="hollow: estimated", markersize=7)
    place.set(xlabel=xlabel, xscale="log", yticks=range(len(rows)), yticklabels=list(rows))
    place.set(ylim=(len(rows) - 0.5, -0.5), xlim=whole_decade([value for pair in rows.values() for value in pair], 2))
    place.grid(axis="y", visible=False)
    figure.legend(*place.get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def named_points(points, groups, xlabel, ylabel, order=(), **options):
    """Show points[label] = (x, y), y logarithmic, with a number beside each and the labels by number below.

    groups[label]: the group of a label; the points of a group have the same colour and shape. order: of all groups,
    those that are in other figures too. options: for `Axes.set`.
    """
    figure, place = axes(6, 3.6 + 0.1 * len(points))
    styles = group_styles(groups.values(), order)
    for number, (name, (x, y)) in enumerate(points.items(), 1):
        colour, shape = styles[groups[name]]
        place.plot(x, y, shape, color=colour, markersize=7, label=f"{number} {name}", linestyle="none")
    place.set(xlabel=xlabel, ylabel=ylabel, yscale="log")
    place.set(**options)
    place.margins(0.08)
    place.xaxis.minorticks_off()
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8.5, handletextpad=0.2, columnspacing=1)
    _number(figure, place, list(points.values()))
    return figure


def _number(figure, place, points):
    """Write a number beside each point: close to it, where there is room, else on the side that has most of it."""
    figure.draw_without_rendering()  # from now on everything has its place
    dots = place.transData.transform(points) * 72 / figure.dpi
    taken, angles = list(dots), np.pi / 4 * np.array([1, -3, 3, -1, 0, 4, 2, -2])
    sides = [radius * np.array([np.cos(a), np.sin(a)]) for radius in (10, 17) for a in angles]
    for number, (dot, point) in enumerate(zip(dots, points, strict=True), 1):
        room = [min(np.hypot(*np.subtract(taken, dot + side).T)) for side in sides]
        side = next((side for side, free in zip(sides, room, strict=True) if free > 9), sides[np.argmax(room)])
        taken.append(dot + side)
        place.annotate(
            str(number), point, side, textcoords="offset points", fontsize=9, ha="center", va="center_baseline"
        )


def roofline(groups, peak, bandwidths, title="", x=(0.03, 300), y=(0.0005, 1000)):
    """Show operations under their roofs: GFLOP/s by FLOP/byte, both logarithmic.

    groups[label]: rows (flops, bytes, microseconds), one an operation. peak: GFLOP/s. bandwidths[label]: GB/s.
    x, y: the axes' limits, where the peak is no higher. What does no arithmetic stands at the left edge, as high as its
    bytes reach there.
    """
    figure, place = axes(5.6, 5.6)
    intensity = np.geomspace(x[0], x[1], 200)
    for (label, rate), dash in zip(bandwidths.items(), DASHES, strict=False):
        roof = np.minimum(peak, rate * intensity)
        place.plot(intensity, roof, dash, color="grey", linewidth=1.2, label=f"{label}: {rate:,.0f} GB/s")
    for (label, rows), colour, shape in zip(groups.items(), COLOURS, "os^Dv", strict=False):
        flops, moved, us = np.transpose(rows)
        at = np.maximum(flops / moved, x[0])
        place.plot(at, at * moved / us / 1e3, shape, color=colour, label=label, clip_on=False, alpha=0.85)
    place.set(xscale="log", xlim=x, xlabel="arithmetic intensity (FLOP/byte)")
    place.set(yscale="log", ylim=(y[0], max(y[1], 2 * peak)), ylabel="GFLOP/s")
    place.text(x[1], 1.15 * peak, f"peak: {peak:,.0f} GFLOP/s", ha="right", color="grey", fontsize=9)
    place.set_title(title)
    figure.legend(*place.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=10)
    return figure


def lanes(rows, xlabel):
    """Show who works when: rows[lane] is a list of (label, begin, end); the first lane on top.

    Bars of the same label have the same colour, in all lanes.
    """
    figure, place = axes(6, 1.7 + 0.42 * len(rows))
    labels = dict.fromkeys(label for spans in rows.values() for label, *_ in spans)
    for label, colour in zip(labels, COLOURS, strict=False):
        for row, spans in enumerate(rows.values()):
            parts = [(begin, end - begin) for name, begin, end in spans if name == label and end > begin]
            place.broken_barh(parts, (row - 0.38, 0.76), facecolors=colour, edgecolor=colour, linewidth=0.5)
        if any(end > begin for spans in rows.values() for name, begin, end in spans if name == label):
            place.plot([], [], "s", color=colour, label=label)
    place.set(xlabel=xlabel, yticks=range(len(rows)), yticklabels=list(rows))
    place.invert_yaxis()
    place.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=10)
    return figure


def flow(nodes, arrows, colours, xlabel):
    """Show what needs what: a box a node, and an arrow from each to those that need it; the first lane on top.

    nodes[name]: (place from left to right, lane, kind). arrows: pairs of names. colours: the kinds' labels, in order.
    """
    lanes = list(dict.fromkeys(lane for _, lane, _ in nodes.values()))
    figure, place = axes(9, 1.6 + 0.75 * len(lanes))
    at = {name: (x, lanes.index(lane)) for name, (x, lane, _) in nodes.items()}
    for first, second in arrows:
        line = {"arrowstyle": "-|>", "color": "#555555", "shrinkA": 21, "shrinkB": 21, "linewidth": 1.1}
        place.annotate("", at[second], at[first], arrowprops=line)
    for name, (_, _, kind) in nodes.items():
        colour = COLOURS[colours.index(kind)]
        box = {"boxstyle": "round,pad=0.45", "facecolor": "white", "edgecolor": colour, "linewidth": 2.2}
        place.text(*at[name], name, ha="center", va="center", fontsize=10, bbox=box)
    for kind, colour in zip(colours, COLOURS, strict=False):
        place.plot([], [], "s", color=colour, label=kind)
    xs = [x for x, _ in at.values()]
    place.set(xlabel=xlabel, xlim=(min(xs) - 0.6, max(xs) + 0.6), ylim=(len(lanes) - 0.5, -0.5))
    place.set(xticks=[], yticks=range(len(lanes)), yticklabels=lanes)
    place.grid(visible=False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=10)
    return figure


def product(touched, labels, title=""):
    """Show the matrices of a product C = A B as cells of colours: B above C, A to its left.

    touched: by "A", "B" and "C" an array of numbers, each the place of its colour in `labels`, a dict of colours.
    """
    (rows, columns), deep, high = (touched[name].shape for name in "CAB")
    figure, places = axes(6.4, 6.2, 2, 2, width_ratios=_shares(deep[1], columns), height_ratios=_shares(high[0], rows))
    places[0, 0].remove()
    colours = ListedColormap(list(labels.values()))
    for name, place in zip("BAC", places.flat[1:], strict=True):
        cells = touched[name]
        place.imshow(
            cells,
            cmap=colours,
            vmin=-0.5,
            vmax=len(labels) - 0.5,
            aspect="auto",
            interpolation="nearest",
            extent=(0, cells.shape[1], cells.shape[0], 0),
        )
        place.set_title(name, fontsize=11)
        place.set(xlabel="k" if name == "A" else "column", ylabel="k" if name == "B" else "row")
        _number_cells(place, cells.shape)
    used = np.unique(np.concatenate([np.ravel(cells) for cells in touched.values()]))
    handles = [Patch(facecolor=c, edgecolor="grey", label=name) for name, c in labels.items()]
    figure.legend(
        handles=[handles[int(i)] for i in used], loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    figure.suptitle(title, fontsize=11)
    return figure


def _number_cells(place, shape):
    """Put few numbers beside the cells, and thin white lines between them where they are wide enough."""
    place.set(xticks=_few(shape[1]), yticks=_few(shape[0]))
    place.tick_params(labelsize=8)
    place.grid(visible=False)
    for side in place.spines.values():
        side.set_visible(True)
    if max(shape) <= 64:
        lines = {"colors": "white", "linewidths": 12 / (20 + max(shape))}
        place.vlines(range(1, shape[1]), 0, shape[0], **lines)
        place.hlines(range(1, shape[0]), 0, shape[1], **lines)


def _shares(depth, edge):
    """Return how an edge of the figure is divided: by the cells, but so that the narrower side can be seen."""
    return max(depth, 0.12 * edge), max(edge, 0.12 * depth)


def _few(cells):
    return np.arange(0, cells + 1, max(1, cells // 2 if cells <= 16 else cells // 4))


def half_planes(X, y, path=(), marked=(), title=""):
    """Show points (n, 2) of the classes y = -1 and +1, and the line `w[0] x1 + w[1] x2 + w[2] = 0` of each w in `path`.

    The last line is black, and its positive side shaded; the earlier, the paler. marked: the rows of X to ring.
    """
    figure, place = axes(5, 4)
    for label, colour, shape in ((-1, COLOURS[0], "o"), (1, COLOURS[1], "^")):
        place.scatter(*X[y == label].T, s=28, c=colour, marker=shape, label=f"{label:+d}", zorder=3)
    place.scatter(*X[list(marked)].T, s=130, facecolors="none", edgecolors="black", label="wrong", zorder=4)
    place.autoscale(False)
    lines = [w for w in path if np.any(w[:2])]
    for age, w in enumerate(reversed(lines)):
        foot = -w[2] * w[:2] / (w[:2] @ w[:2])  # of the perpendicular from the origin
        colour = "grey" if age else "black"
        place.axline(foot, foot + np.array([-w[1], w[0]]), linestyle="-", color=colour, alpha=0.7**age)
    if lines:
        x1, x2 = (np.array(limits) for limits in (place.get_xlim(), place.get_ylim()))
        field = lines[-1][0] * x1 + lines[-1][1] * x2[:, None] + lines[-1][2]
        place.contourf(x1, x2, field, [0, np.inf], colors=COLOURS[1], alpha=0.12)
    place.set(xlabel="$x_1$", ylabel="$x_2$", title=title)
    figure.legend(*place.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    return figure


def confusion(counts, classes, xlabel="answer", ylabel="true class"):
    """Show how often each class (a row) got each answer (a column): right ones grey, wrong ones dark where frequent."""
    figure, place = axes(5.6, 4.8)
    wrong = counts * (1 - np.eye(len(classes)))
    place.imshow(wrong, cmap="Oranges", vmax=1.5 * wrong.max() + 1)
    for (row, column), count in np.ndenumerate(counts):
        colour = "grey" if row == column else "black"
        place.text(column, row, count or "", color=colour, fontsize=9, ha="center", va="center")
    ticks = range(len(classes))
    words = {"rotation": 45, "ha": "right"} if max(map(len, map(str, classes))) > 2 else {}
    place.set_xticks(ticks, classes, **words)
    place.set(xlabel=xlabel, ylabel=ylabel, yticks=ticks, yticklabels=classes)
    place.grid(visible=False)
    return figure
