"""One file a data set: see `mlpkit.data.dataset`."""
