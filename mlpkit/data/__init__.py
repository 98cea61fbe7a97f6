"""Images from file to batch: find them, make sure that they are the right ones, put them in an order, cut it up."""

from .batches import batches, epoch_order, one_hot
from .mnist import Dataset, Split, download, flatten, load, scale

__all__ = ["Dataset", "Split", "batches", "download", "epoch_order", "flatten", "load", "one_hot", "scale"]
