"""Where in a picture a network found what it says: Grad-CAM (Selvaraju et al., 2017), drawn over the picture."""

import base64
import io

import numpy as np
from PIL import Image

from mlpkit.nn.conv import Conv

SHOWN = 140  # pixels of the picture's side


def heat(network, x, label):
    """Return (h, w) from 0 to 1 for one image x (1, *input): where the output of `label` has its reasons.

    The channels behind the last convolution and its ReLU are added, each weighed by the mean slope of the output with
    respect to it; what is below zero speaks against the class, and is left out. None for a network without convolution.
    """
    tops = [(layer, layer.output(shape), path[0]) for path, layer, shape, _ in network.model.walk if len(path) == 1]
    sizes = [shape for layer, shape, _ in tops if isinstance(layer, Conv)]
    if not sizes:
        return None
    at = str([path for _, shape, path in tops if shape == sizes[-1]][-1])
    run = network.run(x, keep=[at])
    chosen = np.zeros(run.outputs.shape, network.dtype)
    chosen[0, label] = 1
    slopes = run.backward(network.engine.asarray(chosen), of=[at])[at]
    maps, slopes = (network.engine.to_numpy(each)[0] for each in (run.activations[at], slopes))
    found = np.maximum(np.tensordot(slopes.mean(axis=(1, 2)), maps, 1), 0)
    return found / max(found.max(), 1e-12)


def as_png(image, found=None):
    """Return the data URL of an image (channels, height, width) uint8, with its heat (h, w) over it if there is one."""
    plain = Image.fromarray(np.moveaxis(np.broadcast_to(image, (3, *image.shape[1:])), 0, 2))
    plain = plain.resize((SHOWN, SHOWN), Image.Resampling.NEAREST)
    if found is not None:
        step = image.shape[1] // len(found)  # pixels from one value to the next: the map lies in the middle
        side = SHOWN * step * len(found) // image.shape[1]
        mask = Image.new("L", plain.size)
        hot = Image.fromarray((200 * found).astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
        mask.paste(hot, ((SHOWN - side) // 2,) * 2)
        plain = Image.composite(Image.new("RGB", plain.size, "#ff7f0e"), plain, mask)
    file = io.BytesIO()
    plain.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
