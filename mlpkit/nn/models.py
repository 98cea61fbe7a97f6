"""The models that the workbook trains, beside the multilayer perceptron."""

from .conv import Conv, MaxPool
from .layers import Flatten, Linear, ReLU
from .model import MLP as MLP
from .model import Model as Model
from .model import mlp as mlp
from .norm import BatchNorm
from .residual import Residual

# LeCun, Bottou, Bengio and Haffner (1998), with ReLU and the largest of each window instead of sigmoids and means
LENET5 = Model((1, 28, 28), (
    Conv(6, 5, padding=2), ReLU(), MaxPool(2), Conv(16, 5), ReLU(), MaxPool(2),
    Flatten(), Linear(120), ReLU(), Linear(84), ReLU(), Linear(10),
))  # fmt: skip

FASHION_CNN = Model((1, 28, 28), (
    Conv(64, 3), MaxPool(2), ReLU(), Conv(128, 3), MaxPool(2), ReLU(),
    Flatten(), Linear(256), ReLU(), Linear(10),
))  # fmt: skip


def _normed(channels):
    return Conv(channels, 3, padding=1, bias=False), BatchNorm()  # which takes a bias out again, and adds its own


def _block(channels):
    return Residual((*_normed(channels), ReLU(), *_normed(channels))), ReLU()


# Two of the blocks of He, Zhang, Ren and Sun (2016), figure 2, on an image that is halved twice
RESIDUAL = Model((1, 28, 28), (
    *_normed(32), ReLU(), *_block(32), MaxPool(2),
    *_normed(64), ReLU(), *_block(64), MaxPool(2),
    Flatten(), Linear(10),
))  # fmt: skip

MODELS = {"mlp": MLP, "lenet5": LENET5, "fashion_cnn": FASHION_CNN, "residual": RESIDUAL}
