"""The record "philox": drawn by the emulator in a GPU's place, and read as any other; a bit that is wrong shows."""

import json
import sys

import emulator
import numpy as np
import pytest
from shared import one_sentence

from experiments import philox
from experiments.lab import results
from mlpkit import engines
from mlpkit.kernels.cnn import dropout

needs_compiler = pytest.mark.skipif(emulator.why_not() is not None, reason=emulator.why_not() or "")
PLAN = philox.Plan(counts=2, seeds=(3,), threads=(0, 2), numbers=64)
MADE_UP = {
    "runs": [
        {
            "who": "our kernel",
            "bits": 64,
            "counter": " ".join(["0" * 16] * 4),
            "key": " ".join(["0" * 16] * 2),
            "words": ["16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"],  # the authors'
        },
        {
            "who": "cuRAND",
            "bits": 32,
            "counter": " ".join(["0" * 8] * 4),
            "key": " ".join(["0" * 8] * 2),
            "words": ["6627e8d5 e169c58d bc57ac4c 9b00dbd8"],
        },
        {"who": "dropout", "key": f"{5:016x} {6:016x}", "step": 7, "rate": 0.5, "kept": "4c"},
    ]
}


class Curand:
    """CuPy's generator: a thread is the counter's third word."""

    def __init__(self, seed, size):
        self.key, self.threads = int(np.random.SeedSequence(seed).generate_state(1)[0]), size

    def random_raw(self, size):
        counters = [[(i, 0, thread, 0) for i in range(size[0] // 4)] for thread in range(self.threads)]
        rows = [[word for each in row for word in philox.philox(32, each, (self.key, 0))] for row in counters]
        return np.array(rows, np.uint64).T


@pytest.fixture
def record(folder, monkeypatch):
    """A record that the emulator made, as it is read back."""
    dropout._kernel.cache_clear()
    monkeypatch.setattr(engines, "load", lambda name: None)
    with emulator.with_cupy(folder):
        cupy = sys.modules["cupy"]
        cupy.asnumpy, cupy.random = np.asarray, type(cupy)("cupy.random")
        cupy.random.Philox4x3210 = Curand
        made = philox.measure(save=lambda record: None, progress=lambda text: None, plan=PLAN)
    dropout._kernel.cache_clear()
    return json.loads(json.dumps(made))


@needs_compiler
def test_everybody_draws_the_same(record):
    assert philox.same(record)
    lines = philox.table(record).splitlines()[1:]
    assert len(lines) == len(record["runs"]) == 8
    assert [line.split("  ")[-1] for line in lines].count("Python, NumPy") == 2
    assert not any("NOT" in line for line in lines)
    assert lines[-1].endswith("64 numbers       NumPy")


@needs_compiler
def test_a_bit_that_is_wrong_shows(record):
    text = json.dumps(record)
    for i in range(len(record["runs"])):
        wrong = json.loads(text)
        run = wrong["runs"][i]
        if "kept" in run:
            run["kept"] = f"{int(run['kept'], 16) ^ 1 << 9:0{len(run['kept'])}x}"
        else:
            words = list(philox.numbers(run["words"][1]))
            words[2] ^= 1 << 31
            run["words"][1] = " ".join(f"{word:x}" for word in words)
        assert not philox.same(wrong)
        assert [i for i, line in enumerate(philox.table(wrong).splitlines()[1:]) if "NOT" in line] == [i]


def test_the_authors_words_are_known_and_all_must_have_drawn():
    first, second, third = MADE_UP["runs"]
    assert philox.compared(first) == ("4 words of 64", {"Python": True, "NumPy": True})
    assert philox.compared(second) == ("4 words of 32", {"Python": True})
    generator = np.random.Generator(np.random.Philox(key=np.array([5, 6], np.uint64), counter=7 << 64))
    kept = np.packbits(generator.random(8, np.float32) >= np.float32(0.5)).tobytes().hex()
    made = {"runs": [first, second, third | {"kept": kept}]}
    assert philox.same(made)
    assert not any(philox.same({"runs": made["runs"][:i] + made["runs"][i + 1 :]}) for i in range(3))


def test_an_odd_record_is_refused_in_a_sentence():
    for run in ({}, {"who": "cuRAND", "bits": 16}, MADE_UP["runs"][0] | {"key": "x"}):
        with pytest.raises(results.RecordError) as caught:
            philox.table({"runs": [run]})
        one_sentence(caught.value, "record")


@pytest.mark.gpu
def test_a_gpu_draws_what_numpy_and_curand_draw():
    record = philox.measure(save=lambda record: None, progress=lambda text: None)
    assert philox.same(json.loads(json.dumps(record)))
