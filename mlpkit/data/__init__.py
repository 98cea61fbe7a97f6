"""Images from file to batch: find them, make sure that they are the right ones, put them in an order, cut it up."""

from .batches import batches as batches
from .batches import epoch_order as epoch_order
from .batches import one_hot as one_hot
from .mnist import Dataset as Dataset
from .mnist import Split as Split
from .mnist import download as download
from .mnist import flatten as flatten
from .mnist import load as load
from .mnist import scale as scale
