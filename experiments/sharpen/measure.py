"""How the record "sharpen" is made: each network is trained in a process of its own, then sees the test pictures."""

import json
import multiprocessing
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from experiments.lab import results
from mlpkit.data.bicubic import resize
from mlpkit.data.patches import small_and_large
from mlpkit.data.pictures import pictures
from mlpkit.data.quality import as_bytes, psnr, ssim
from mlpkit.executors.tiles import Tiles
from mlpkit.nn.network import Network
from mlpkit.paths import expanded

from .train import Choice, data_for, train

SCALES = 2, 3, 4
OWN = tuple(
    Choice("own", scale, data, seed, channels={4: 15}.get(scale, 16))
    for data in ("t91", "photos")
    for seed in range(3)
    for scale in SCALES
)
OTHERS = tuple(
    Choice(kind, scale, lr=lr)
    for kind, lr in (("srcnn915", 5e-4), ("srcnn955", 5e-4), ("espcn", 1e-3))
    for scale in SCALES
)


def there(name):
    """Return the folder of pictures called `name` in the one that MLPKIT_DATA names."""
    return expanded(os.environ.get("MLPKIT_DATA") or ".") / name


@dataclass(frozen=True)
class Plan:
    """choices: what to train. epochs: by `Choice.name`, or seconds for each. weights: a folder of what is trained."""

    choices: tuple[Choice, ...] = OWN + OTHERS
    seconds: float = 600.0
    weights: str | None = None
    test: str | None = None


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Train what is not trained yet, look at the test pictures, and return the record."""
    found = pictures(plan.test or there("set14"), grey=None)
    record = results.new("sharpen", pictures=list(found), seconds=plan.seconds)
    results.collect(record, (bicubic(found, scale) for scale in SCALES), save)
    with tempfile.TemporaryDirectory() as made:
        return results.collect(record, _runs(plan, plan.weights or made, found, progress), save)


def _runs(plan, folder, found, progress):
    for choice in plan.choices:
        path = Path(folder) / f"{choice.name}.npz"
        if not path.with_suffix(".json").exists():
            progress(f"training {choice.name}")
            process = multiprocessing.get_context("spawn").Process(target=_train, args=(choice, folder, plan.seconds))
            process.start()
            process.join()
        progress(f"looking at what {choice.name} makes")
        yield json.loads(path.with_suffix(".json").read_text()) | looked_at(path, choice, found)


def _train(choice, folder, seconds):
    X, y = data_for(choice, there("t91"))
    train(choice, X, y, folder, seconds=lambda: seconds)


def bicubic(found, scale):
    """Return the run of a record of what bicubic makes."""
    return {"kind": "bicubic", "scale": scale, "data": None, "seed": None, "parameters": 0} | compared(
        found, scale, lambda small, large: resize(small, large.shape[1:])
    )


def looked_at(path, choice, found, engine="numba_conv"):
    """Return the PSNR and SSIM of each picture, of a network that is trained."""
    network = Network.load(path, engine)
    if choice.sees_small:
        tiles = Tiles(network, 48, n=32)
        return compared(found, choice.scale, lambda small, large: tiles(small))
    tiles = Tiles(network, 64, n=32)
    return compared(found, choice.scale, lambda small, large: tiles(resize(small, large.shape[1:])))


def compared(found, scale, enlarge):
    quality: dict = {"psnr": {}, "ssim": {}}
    for name, picture in found.items():
        small, large = small_and_large(picture, scale)
        made, right = as_bytes(enlarge(small, large)), as_bytes(large)
        quality["psnr"][name], quality["ssim"][name] = psnr(made, right, scale), ssim(made, right, scale)
    return quality
