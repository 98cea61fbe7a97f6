"""How the record "passes" is made: updates, what lies between two products, the products, the parts of a step."""

from dataclasses import asdict, dataclass
from itertools import chain

from experiments.lab import results
from mlpkit.data import load
from mlpkit.nn.models import MLP


@dataclass(frozen=True)
class Plan:
    """How much to measure. samples: of each call; each is the mean of as many calls as fit into `sample_seconds`.

    sizes: of the vector of parameters. settle: seconds of work before a sample that needs all cores, until the threads
    of the other kind no longer wait for work with a core of their own. turns: of `steps` steps each, written down.
    busy: samples beside a busy program. processes: to count page faults in. batch_sizes: of the layers' operations.
    """

    samples: int = 25
    sample_seconds: float = 0.002
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, MLP.layout.size, 1_000_000, 10_000_000)
    batch_sizes: tuple[int, ...] = (64, 128)
    settle: float = 0.1
    turns: int = 10
    steps: int = 6
    busy: int = 15
    processes: int = 3


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL, train=None):
    """Measure everything, and return the record. train: (X, y), MNIST's where None is given."""
    import numba

    from . import calls, pages, parts  # they take Numba

    train = train or load(scaled=True).train
    record = results.new("passes", plan=asdict(plan), threads=numba.get_num_threads())
    made = (
        calls.ladder(plan, progress),
        calls.division(plan, progress),
        calls.updates(plan, progress),
        calls.layers(train, plan, progress),
        calls.products(plan, progress),
        parts.parts(train, plan, progress),
        parts.busy(train, plan, progress),
        pages.pages(plan, progress),
    )
    return results.collect(record, chain.from_iterable(made), save)
