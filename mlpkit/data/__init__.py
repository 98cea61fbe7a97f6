"""Images from file to batch: find them, make sure that they are the right ones, put them in an order, cut it up.

`from_folder`, `from_csv`, `from_npz` and `from_arrays` make a `Dataset` of what is yours: see `own`.
"""

from importlib import import_module
from pkgutil import iter_modules

from .batches import batches, epoch_order, one_hot
from .dataset import Dataset, Split, download, flatten, load, names, scale, source

__all__ = ["Dataset", "Split", "batches", "download", "epoch_order", "flatten", "load", "names", "one_hot", "scale",
           "source"]  # fmt: skip


def __getattr__(name):
    """Return `from_X`, the function of `own/X.py`, which is imported only now."""
    if name in _own():
        return getattr(import_module(f"{__name__}.own.{name.removeprefix('from_')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*globals(), *_own()]


def _own():
    return [f"from_{module.name}" for path in __path__ for module in iter_modules([f"{path}/own"])]
