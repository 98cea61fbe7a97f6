"""Where did the network look? Both answers are gradients of one class's logit, not of the loss.

Saliency is the gradient with respect to the pixels: how much a little more of each would change the logit. Grad-CAM
stops at a layer whose output still is an image: it weighs each channel by its mean gradient, and adds them up.
"""

import numpy as np

from mlpkit.checks import check_labels

from .network import check_is_network


def saliency(network, x, classes=None):
    """Return `|d z[class] / d x|`, (n, *model.input), a NumPy array, for a batch x of the network's.

    classes: (n,) integers, of whose logits the gradients are; the predicted ones where None. Raises ValueError or
    TypeError for inputs or classes that do not fit, and for outputs that are no rows of classes. Simonyan, Vedaldi and
    Zisserman (2014), "Deep inside convolutional networks", section 3.
    """
    run = check_is_network(network).run(x)
    return abs(network.engine.to_numpy(run.backward(_chosen(network, run.outputs, classes))["input"]))


def grad_cam(network, x, path=None, classes=None):
    """Return heat maps (n, height, width), a NumPy array: `max(sum_k(mean_ij(d z[class] / d A[k]) A[k]), 0)`.

    A (n, k, height, width): the output of the layer `path`, see `Network.forward`; of the last one that puts out images
    where None. classes, errors: as in `saliency`; ValueError for a layer without images, too. Selvaraju et al. (2017),
    "Grad-CAM: visual explanations from deep networks via gradient-based localization", equations 1 and 2.
    """
    path = last_images(check_is_network(network).model) if path is None else path
    if path is None:
        raise ValueError("no layer of this network puts out images, as Grad-CAM needs: take saliency.")
    run = network.run(x, keep=(path,))
    A = network.engine.to_numpy(run.activations[path])
    if A.ndim != 4:
        raise ValueError(f"layer {path!r} puts out arrays of shape {A.shape[1:]}, and Grad-CAM needs images.")
    gradient = run.backward(_chosen(network, run.outputs, classes), of=(path,))[path]
    weights = network.engine.to_numpy(gradient).mean(axis=(2, 3), keepdims=True)
    return np.maximum((weights * A).sum(axis=1), 0)


def _chosen(network, outputs, classes):
    """Return the gradient of the chosen classes' logits with respect to the outputs: 1 at each, else 0."""
    n, *rest = outputs.shape
    if len(rest) != 1:
        raise ValueError(f"outputs of shape {tuple(rest)} are no row of classes, of which one could be explained.")
    classes = network.engine.to_numpy(network.engine.argmax(outputs)) if classes is None else classes
    check_labels(classes, n, rest[0])
    chosen = np.zeros((n, *rest), network.dtype)
    chosen[np.arange(n), classes] = 1
    return network.engine.asarray(chosen)


def last_images(model):
    """Return the path of the last layer whose output is images, None where there is none."""
    shape, found = model.input, None
    for number, layer in enumerate(model.layers):
        shape = layer.output(shape)
        found = str(number) if len(shape) == 3 else found
    return found
