"""How far a picture is from one picture's content and another one's style, as a fixed network, the trunk, sees them.

Content is what a layer of the trunk puts out. Style is which of a layer's channels are active together, wherever that
is: its Gram matrix. Gatys, Ecker and Bethge (2016), "Image style transfer using convolutional neural networks"; to
train a network with: Johnson, Alahi and Fei-Fei (2016), "Perceptual losses for real-time style transfer".
"""

from dataclasses import dataclass

from mlpkit.checks import check_choice, check_finite, check_not_negative

from .conv import check_image
from .layers import Layer
from .losses import Loss, as_values
from .network import Network


@dataclass(frozen=True, repr=False)
class Canvas(Layer):
    """`y = picture`, whatever comes in: the parameters are the pixels (channels, height, width), so training paints."""

    operations = ("add",)

    def output(self, shape):
        check_image(shape)
        return shape

    def parameters(self, shape):
        return {"picture": shape}

    def forward(self, at, x):
        return at.engine.add(0 * x, at.picture)

    def backward(self, at, dy):
        at.dpicture[...] = dy.sum(axis=0)
        return 0 * dy if at.wants_dx else None


def gram(engine, features):
    """Return `G = F F^T / (c h w)` (n, c, c) of features (n, c, h, w), F being a picture's (c, h w)."""
    n, c, h, w = features.shape
    found = engine.asarray(features).reshape(n, c, h * w)
    grams = [engine.linear_backward_input(one, one)[None] for one in found]  # which is one @ one.T
    return engine.concat(grams).reshape(n, c, c) / (c * h * w)


def gram_backward(engine, features, dG):
    """Return the gradient of features, given that of their Gram matrices: `dF = (dG + dG^T) F / (c h w)`."""
    n, c, h, w = features.shape
    found, both = engine.asarray(features).reshape(n, c, h * w), dG + dG.swapaxes(1, 2)
    parts = [engine.linear_backward_input(d, one.T)[None] for d, one in zip(both, found, strict=True)]
    return engine.concat(parts).reshape(features.shape) / (c * h * w)


def relative_error(found, wanted):
    """Return the mean over the batch of `sum((found - wanted)^2) / sum(wanted^2)`, and its gradient.

    It has no unit, and 1 is as far off as zeros are: layers and trunks of any scale count alike.
    """
    difference, axes = found - wanted, tuple(range(1, found.ndim))
    sizes = (wanted * wanted).sum(axis=axes, keepdims=True)
    sizes = sizes + (sizes == 0)  # of what is 0 everywhere
    errors = (difference * difference).sum(axis=axes, keepdims=True) / sizes
    return errors.mean(), 2 * difference / (sizes * len(found))


def total_variation(y):
    """Return the mean square of differences between neighbouring pixels of y (n, c, h, w), and its gradient."""
    down, across, dy = y[:, :, 1:] - y[:, :, :-1], y[..., 1:] - y[..., :-1], 0 * y
    for step, later, earlier in ((down, dy[:, :, 1:], dy[:, :, :-1]), (across, dy[..., 1:], dy[..., :-1])):
        later += 2 / y.size * step
        earlier -= 2 / y.size * step
    return ((down * down).sum() + (across * across).sum()) / y.size, dy


@dataclass(frozen=True, repr=False, eq=False)
class Perceptual(Loss):
    """`content_weight * content + style_weight * style + smoothness * total variation`, means over the batch.

    Outputs and targets are pictures (n, *trunk.model.input), and targets the contents. content: the `relative_error` of
    the output of layer `content`. style: the mean over layers of that of their `gram`; grams: by a layer's path the
    style's (1, c, c), see `of_style`. trunk: a `Network`, which stays as it is, on the outputs' engine. A model with
    this loss can't be saved, as the trunk is no setting: save `cut(network, shape, loss=...)`.
    """

    trunk: Network
    grams: dict
    content: str
    content_weight: float = 1.0
    style_weight: float = 1.0
    smoothness: float = 0.0

    operations = ("add", "concat", "linear_backward_input")
    checks = tuple((name, check_not_negative) for name in ("content_weight", "style_weight", "smoothness"))

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.trunk, Network) or not isinstance(self.grams, dict):
            raise TypeError("a Perceptual has a Network as its trunk, and a dict of grams: take Perceptual.of_style.")
        paths = [".".join(map(str, path)) for path, *_ in self.trunk.model.walk]
        for path in (self.content, *self.grams):
            check_choice("layer of the trunk", path, paths)

    @classmethod
    def of_style(cls, trunk, picture, layers, content, **weights):
        """Return the loss for the style of a picture (3, height, width) of any size, pixels or values from 0 to 1."""
        own = cut(trunk, picture.shape)
        seen = own.forward(own.engine.asarray(picture)[None], keep=layers)[1]
        grams = {path: check_finite(f"the style at {path}", gram(own.engine, seen[path])) for path in layers}
        return cls(trunk, grams, content, **weights)

    def check(self, targets, n, output, dtype):
        super().check(targets, n, output, dtype)
        if output != self.trunk.model.input or dtype != self.trunk.dtype:
            raise ValueError(
                f"the trunk sees pictures {self.trunk.model.input} of {self.trunk.dtype}, and these are {output} of "
                f"{dtype}: cut(trunk, {output}) is one for them, of the trunk's own type."
            )

    def __call__(self, at, outputs, targets):
        parts, d_outputs = self.parts(at, outputs, targets, backward=True)
        return sum(parts.values()), d_outputs

    def metrics(self, at, outputs, targets):
        """Return what each part adds to the loss."""
        parts, _ = self.parts(at, outputs, targets)
        return {name: (part * len(outputs), len(outputs)) for name, part in parts.items()}

    def parts(self, at, outputs, targets, backward=False):
        """Return a dict of "content", "style" and "smoothness", times their weights, and the gradient or None."""
        if at.engine is not self.trunk.engine:
            raise ValueError("the trunk is on another engine than the network: cut(trunk, shape, engine=...) moves it.")
        wanted = self.trunk.forward(as_values(at, targets, outputs.dtype), keep=(self.content,))[1][self.content]
        run = self.trunk.run(outputs, keep=(self.content, *self.grams), frozen=True)
        content, d_content = relative_error(run.activations[self.content], wanted)
        add, style = {self.content: self.content_weight * d_content}, 0
        for path, of_style in self.grams.items():
            features, weight = run.activations[path], self.style_weight / len(self.grams)
            error, dG = relative_error(found := gram(at.engine, features), of_style + 0 * found)
            style = style + weight * error
            if backward:
                d_features = weight * gram_backward(at.engine, features, dG)
                add[path] = d_features + add[path] if path in add else d_features
        rough, d_rough = total_variation(outputs)
        parts = {"content": self.content_weight * content, "style": style, "smoothness": self.smoothness * rough}
        if not backward:
            return parts, None
        return parts, run.backward(0 * run.outputs, add=add)["input"] + self.smoothness * d_rough


def cut(network, input, layers=None, engine=None, loss=None):
    """Return a network of the first layers of one, all where None, for inputs of another shape, and what else is given.

    Its parameters and statistics are copies. Raises ValueError where they don't fit that shape, as Linear's don't.
    """
    of = network.model
    model = type(of)(input, of.layers[:layers], loss or of.loss)
    found = Network(engine or network.engine, model, seed=network.mode.seed, dtype=network.dtype)
    kinds = ((of.layout, network.theta, found.theta, model.layout),
             (of.statistics, network.statistics, found.statistics, model.statistics))  # fmt: skip
    for layout, vector, into, wanted in kinds:
        arrays = layout.views(network.engine.to_numpy(vector))
        for name, view in wanted.views(into).items():
            if view.shape != arrays[name].shape:
                raise ValueError(
                    f"array {name} has shape {arrays[name].shape}, and inputs {input} ask for {view.shape}."
                )
            view[...] = found.engine.asarray(arrays[name])
    return found
