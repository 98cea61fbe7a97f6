"""Do NumPy, cuRAND and our own kernel draw the same random numbers, to the bit? All three have Philox, in ten rounds.

NumPy's words have 64 bits, cuRAND's 32, and our kernel is one template for both. The record "philox" holds what a GPU
drew: our kernel's words, cuRAND's, and what a dropout kept. `same` holds them to the definition, in Python, and to
NumPy's own. Words are hexadecimal, the lowest of a counter first.
"""

from dataclasses import asdict, dataclass

import numpy as np

from experiments.lab import results
from mlpkit import engines, kernels

# Salmon, Moraes, Dror and Shaw (2011): two factors, and what is added to the key's two words after each round
CONSTANTS = {
    64: (0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B),
    32: (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85),
}
OURS, CURAND, DROPOUT = "our kernel", "cuRAND", "dropout"


@dataclass(frozen=True)
class Plan:
    """How much to draw. counts: counters that follow each other, of four words each. seeds, threads: of cuRAND's
    generator. key, step: of NumPy's and of the dropout, which has so many numbers, a multiple of 8, and a rate.
    """

    counts: int = 4
    seeds: tuple[int, ...] = (0, 12345)
    threads: tuple[int, ...] = (0, 77, 511)
    key: tuple[int, int] = (12345, 678)
    step: int = 7
    numbers: int = 4096
    rate: float = 0.25


USUAL = Plan()


def measure(save=results.save_part, progress=print, plan=USUAL):
    """Draw on the GPU, and return the record. Raises `engines.EngineUnavailable` where there is no GPU."""
    engines.load("cupy_naive")  # or why there is none
    return results.collect(results.new("philox", plan=asdict(plan)), _runs(plan, progress), save)


def _runs(plan, progress):
    for bits in (64, 32):
        progress(f"our kernel's words of {bits} bits")
        yield _ours(bits, (0, 0, 0, 0), (0, 0), plan.counts)  # the authors' file has the first four
    yield _ours(64, (1, plan.step, 0, 0), plan.key, plan.counts)
    for seed in plan.seeds:
        progress(f"cuRAND's words, seed {seed}")
        key, drawn = _curands(seed, 4 * plan.counts, max(plan.threads) + 1)
        for thread in plan.threads:
            counter = 0, 0, thread, 0
            words = drawn[:, thread].reshape(-1, 4).tolist()
            yield {"who": CURAND, "seed": seed, "thread": thread} | _run(32, counter, key, words)
            yield _ours(32, counter, key, plan.counts)
    progress("what a dropout keeps")
    yield _dropout(plan)


def _ours(bits, counter, key, counts):
    import cupy as cp

    dtype = np.dtype(f"u{bits // 8}")
    start, two = (cp.asarray(np.array(numbers, dtype)) for numbers in (counter, key))
    out = cp.empty((counts, 4), dtype)
    words = kernels.load("philox").get_function(f"words_{bits}")
    words((-(-counts // 64),), (64,), (start, two, out, np.int32(counts)))
    return {"who": OURS} | _run(bits, counter, key, cp.asnumpy(out).tolist())


def _curands(seed, draws, threads):
    """Return the key that CuPy makes of a seed, and the words (draws, threads) of cuRAND's generator."""
    import cupy as cp

    key = int(np.random.SeedSequence(seed).generate_state(1)[0]), 0
    drawn = cp.random.Philox4x3210(seed, size=threads).random_raw((draws, threads))
    return key, cp.asnumpy(drawn).astype(np.uint32)


def _dropout(plan):
    import cupy as cp

    from mlpkit.kernels.cnn.dropout import dropout

    step = cp.asarray(np.array([plan.step]))  # on the GPU, as in a graph
    ones = cp.asarray(np.ones(plan.numbers, np.float32))
    kept = cp.asnumpy(dropout(ones, plan.rate, plan.key, step)) > 0
    about = {"key": _texts(64, [plan.key])[0], "step": plan.step, "rate": plan.rate}
    return {"who": DROPOUT} | about | {"kept": np.packbits(kept).tobytes().hex()}


def _run(bits, counter, key, words):
    counter, key = _texts(bits, [counter, key])
    return {"bits": bits, "counter": counter, "key": key, "words": _texts(bits, words)}


def _texts(bits, rows):
    return [" ".join(f"{word:0{bits // 4}x}" for word in row) for row in rows]


def numbers(text):
    """Return the words of a text of a record as integers, a tuple."""
    return tuple(int(word, 16) for word in text.split())


def philox(bits, counter, key):
    """Return the four words that a counter's four and a key's two are mixed into: the definition, in Python."""
    (factor, other, more, others), mask = CONSTANTS[bits], 2**bits - 1
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        left, right = factor * a, other * c
        a, b, c, d = right >> bits ^ b ^ k, right & mask, left >> bits ^ d ^ m, left & mask
        k, m = (k + more) & mask, (m + others) & mask
    return a, b, c, d


def pythons(run):
    """Return the words that a run should have, by the definition: rows of four."""
    (first, *others), key = numbers(run["counter"]), numbers(run["key"])
    return [philox(run["bits"], (first + i, *others), key) for i in range(len(run["words"]))]


def numpys(run):
    """Return the words that NumPy draws for a run of 64 bits: rows of four."""
    counter = sum(word << 64 * i for i, word in enumerate(numbers(run["counter"])))
    generator = np.random.Philox(key=np.array(numbers(run["key"]), np.uint64), counter=(counter - 1) % 2**256)
    return [tuple(row) for row in generator.random_raw((len(run["words"]), 4)).tolist()]  # it counts before it draws


def kept(run):
    """Return which numbers a dropout keeps that draws as NumPy does, bool (n,), for a run that says what one kept."""
    generator = np.random.Philox(key=np.array(numbers(run["key"]), np.uint64), counter=run["step"] << 64)
    return np.random.Generator(generator).random(4 * len(run["kept"]), np.float32) >= np.float32(run["rate"])


def compared(run):
    """Return how much a run has, as text, and with whom it is the same: a bool by name."""
    if run["who"] == DROPOUT:
        should = np.packbits(kept(run)).tobytes().hex()
        return f"{4 * len(run['kept']):,} numbers", {"NumPy": run["kept"] == should}
    found = [numbers(row) for row in run["words"]]
    others = {"Python": pythons} | ({"NumPy": numpys} if run["bits"] == 64 else {})
    return f"{4 * len(found)} words of {run['bits']}", {name: found == of(run) for name, of in others.items()}


@results.reads
def same(record):
    """Return whether all that was drawn is what Python and NumPy draw, to the bit, and cuRAND took part."""
    whole = {OURS, CURAND, DROPOUT} <= {run["who"] for run in record["runs"]}
    return whole and all(all(compared(run)[1].values()) for run in record["runs"])


@results.reads
def table(record):
    """Return the record as a table for the terminal: what was drawn, and who draws the same."""
    lines = [f"{'who drew':12}{'key':19}{'counter or step':17}{'what':15}  the same as"]
    for run in record["runs"]:
        key = " ".join(f"{word:x}" for word in numbers(run["key"]))
        at = " ".join(f"{word:x}" for word in numbers(run["counter"])) if "counter" in run else f"{run['step']:x}"
        what, others = compared(run)
        known = ", ".join(name if equal else f"NOT {name}" for name, equal in others.items())
        lines.append(f"{run['who']:12}{key:19}{at:17}{what:15}  {known}")
    return "\n".join(lines)
