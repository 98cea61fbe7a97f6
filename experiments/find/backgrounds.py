"""How data/scenes/backgrounds.png was made of the photographs: grey, their middle, 192 x 192 pixels each.

It is kept, and not made anew, since a JPEG's pixels depend on who decodes it, and a test scene's bits on nobody.
"""

from pathlib import Path

import numpy as np

EDGE = 192
TRAIN = (
    *("astronaut", "brick", "brushes", "coffee", "dandelions", "fig-in-a-bowl", "forest-stream", "grass"),
    *("mountain-meadow", "rocket", "rocky-path", "wine-and-drum"),
)
TEST = ("camera", "chelsea", "gravel", "sunset", "two-dogs")


def make(photos, target):
    """Write the file `target`, from the folder of photographs."""
    from PIL import Image, ImageOps

    pictures = [Image.open(Path(photos) / f"{name}.jpg").convert("L") for name in TRAIN + TEST]
    tiles = [np.asarray(ImageOps.fit(each, (EDGE, EDGE), Image.Resampling.LANCZOS)) for each in pictures]
    Image.fromarray(np.concatenate(tiles)).save(target, optimize=True)
