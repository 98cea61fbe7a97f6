"""Where in a picture a network found what it says: Grad-CAM (Selvaraju et al., 2017), drawn over the picture."""

import base64
import io

import numpy as np
from PIL import Image

from mlpkit.nn.conv import Conv

SHOWN = 140  # pixels of the picture's side


def heat(network, x, label):
    """Return (height, width) from 0 to 1 for one image (1, *input): where the outputs' `label` has its reasons.

    The channels of the last convolution's output are added, each weighed by the mean of d output[label] / d channel;
    what is below zero speaks against the class, and is left out. Without a convolution: None.
    """
    paths = [".".join(map(str, path)) for path, layer, *_ in network.model.walk if isinstance(layer, Conv)]
    if not paths:
        return None
    run = network.run(x, keep=paths[-1:])
    chosen = np.zeros_like(network.engine.to_numpy(run.outputs))
    chosen[0, label] = 1
    slopes = run.backward(network.engine.asarray(chosen), of=paths[-1:])[paths[-1]]
    maps, slopes = (network.engine.to_numpy(each)[0] for each in (run.activations[paths[-1]], slopes))
    found = np.maximum(np.tensordot(slopes.mean(axis=(1, 2)), maps, 1), 0)
    return found / max(found.max(), 1e-12)


def as_png(image, found=None):
    """Return the data URL of an image (channels, height, width) uint8, and over it, where there is `found`, its heat."""
    side = (SHOWN, SHOWN)
    plain = Image.fromarray(np.moveaxis(np.broadcast_to(image, (3, *image.shape[1:])), 0, 2)).resize(side, 0)
    if found is not None:
        mask = Image.fromarray((200 * found).astype(np.uint8)).resize(side, Image.Resampling.BICUBIC)
        plain = Image.composite(Image.new("RGB", side, "#ff7f0e"), plain, mask)
    file = io.BytesIO()
    plain.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
