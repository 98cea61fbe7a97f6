"""What a network was given, and where in it the reasons lie, as pictures for a page."""

import base64
import io

import numpy as np
from PIL import Image

from mlpkit.nn.explain import grad_cam, last_images, saliency

SHOWN = 140  # pixels of the picture's side


def pictures(network, images, labels):
    """Return for each image (channels, height, width) uint8 two data URLs of PNGs: the image, and its reasons over it.

    labels: of which class each image's reasons are. They are Grad-CAM's; where no layer puts out images, the pixels'
    saliency.
    """
    x, labels = images.reshape(len(images), *network.model.input), np.array(labels)
    path = last_images(network.model)
    if path is None:
        heats = saliency(network, x, labels).reshape(images.shape).max(axis=1)
    else:
        heats = grad_cam(network, x, path, labels)
    return [(_png(image), _png(image, heat)) for image, heat in zip(images, heats, strict=True)]


def _png(image, heat=None):
    plain = Image.fromarray(np.moveaxis(np.broadcast_to(image, (3, *image.shape[1:])), 0, 2))
    plain = plain.resize((SHOWN, SHOWN), Image.Resampling.NEAREST)
    if heat is not None:
        step = max(1, image.shape[1] // len(heat))  # pixels from one value to the next: the map lies in the middle
        side = SHOWN * step * len(heat) // image.shape[1]
        hot = Image.fromarray((200 * (heat / max(heat.max(), 1e-12))).astype(np.uint8))
        mask = Image.new("L", plain.size)
        mask.paste(hot.resize((side, side), Image.Resampling.BICUBIC), ((SHOWN - side) // 2,) * 2)
        plain = Image.composite(Image.new("RGB", plain.size, "#ff7f0e"), plain, mask)
    file = io.BytesIO()
    plain.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
