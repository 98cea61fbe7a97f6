"""A picture of any size by a network for tiles: cut up, each with the halo that the network eats, and put together.

A network without padding makes of a tile what it makes of the whole picture there, so nothing shows where tiles meet.
What is needed at a time is memory for n tiles, and an engine that computes several images at once has them.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mlpkit.checks import check_array, check_count, check_sizes
from mlpkit.data.patches import with_halo
from mlpkit.nn.enlarging import geometry
from mlpkit.nn.model import Model
from mlpkit.nn.network import Network, check_is_network


class Tiles:
    """What a network that was trained on patches makes of a picture, with the parameters of now.

    network: of images, whose layers pad nothing; tile: (height, width) of what a tile covers, or one number for both.
    n: tiles at a time. options: as of `Network.compiled`. Raises ValueError for a network whose output is no
    enlarged inside of its input.
    """

    def __init__(self, network, tile=64, n=16, **options):
        model = check_is_network(network).model
        self.halo, self.scale = geometry(model)
        self.tile = check_sizes(tile if isinstance(tile, tuple) else (tile, tile))
        self.n = check_count("n", n)
        size = [length + 2 * self.halo for length in self.tile]
        whole = Network(network.engine, Model((model.input[0], *size), model.layers, model.loss), dtype=network.dtype)
        whole.set_theta(network.engine.to_numpy(network.theta))
        whole.set_statistics(network.engine.to_numpy(network.statistics))
        self.dtype, self.channels, self.compiled = network.dtype, model.input[0], whole.compiled(n, **options)

    def __call__(self, picture):
        """Return a picture (c, h, w) enlarged, (c out, scale h, scale w): NumPy's, in the network's dtype.

        Raises TypeError or ValueError for what is no picture in the network's dtype, of its channels.
        """
        check_array("picture", picture)
        if picture.ndim != 3 or len(picture) != self.channels or not picture.size or picture.dtype != self.dtype:
            wanted = f"{self.dtype} ({self.channels}, height, width)"
            raise ValueError(f"a picture here is {wanted}, not {picture.dtype} {picture.shape}.")
        height, width = picture.shape[1:]
        down, across = (-(-length // tile) for length, tile in zip((height, width), self.tile, strict=True))
        missing = down * self.tile[0] - height, across * self.tile[1] - width
        framed = np.pad(with_halo(picture, self.halo), [(0, 0), *((0, more) for more in missing)])  # cut off again
        size = [length + 2 * self.halo for length in self.tile]
        tiles = sliding_window_view(framed, size, (1, 2), writeable=True)[:, :: self.tile[0], :: self.tile[1]]
        tiles = np.ascontiguousarray(tiles.transpose(1, 2, 0, 3, 4)).reshape(-1, len(picture), *size)
        parts = [self.compiled(tiles[i : i + self.n]) for i in range(0, len(tiles), self.n)]
        found = parts[0] if len(parts) == 1 else np.concatenate(parts)
        _, channels, tall, wide = found.shape
        merged = found.reshape(down, across, channels, tall, wide).transpose(2, 0, 3, 1, 4)
        return merged.reshape(channels, down * tall, across * wide)[:, : self.scale * height, : self.scale * width]
