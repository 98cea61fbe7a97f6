"""How the record "matmul" is made: stages over shapes between two looks at the peak, then what threads cost."""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain

from experiments.lab import results

from .shapes import GROUPS


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each rate, each of calls that fill `sample_seconds`.

    patience: seconds after which a stage takes no further sample. slow: stages that are slow get no product of more
    operations. region_seconds: for the cost of a parallel region, each time. tile_depths: steps of a tile timed alone.
    groups: of products. threads: whether to measure what threads cost.
    """

    samples: int = 7
    sample_seconds: float = 0.008
    patience: float = 0.6
    slow: float = 3e8
    region_seconds: float = 5.0  # what a busy machine does to a region is rare, and takes milliseconds
    tile_depths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 784)
    groups: tuple[str, ...] = tuple(GROUPS)
    threads: bool = True


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Measure everything, and return the record."""
    from experiments.lab import roof
    from mlpkit.engines.loops.simd import LANES, ROWS

    from . import threads, timing  # all of them take Numba

    record = results.new("matmul", plan=asdict(plan), lanes=LANES, rows=ROWS)
    peaks = partial(roof.peaks, 5 * plan.samples, 10**9)
    parts = [
        peaks,
        *(partial(part, plan) for part in (timing.stages, timing.interpreted, timing.dependency_chains, timing.tiles)),
    ]
    parts += [peaks, *(partial(part, plan) for part in (threads.regions, threads.turns) if plan.threads)]
    return results.collect(record, chain.from_iterable(part(progress) for part in parts), save)
