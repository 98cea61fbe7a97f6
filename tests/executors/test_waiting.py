"""What the host makes of the word that a kernel leaves whose blocks wait for each other."""

from types import SimpleNamespace

import emulator
import numpy as np
import pytest


@pytest.fixture
def left(tmp_path):
    """Return what makes a trainer after an epoch that has left a word: a class."""
    with emulator.with_cupy(tmp_path):
        module = emulator.own("executors.cuda.waiting")

    class Example(module.WaitingTrainer):
        engine, awaited = "cuda_example", ("images", "slopes")
        feed = SimpleNamespace(close=lambda: None)

        def __init__(self, word):
            self.found, self.failed = np.full(1, word, np.uint64), np.full(1, word, np.uint64)

    return Example


def word(what, block, step):
    return what << 48 | block << 32 | step


def test_without_a_word_all_is_well(left):
    left(0).check()


@pytest.mark.parametrize(
    ("what", "block", "step", "said"), [(1, 0, 0, "images"), (2, 131, 2**32 - 1, "slopes"), (2, 65535, 17, "slopes")]
)
def test_the_sentence_names_what_where_and_when(left, what, block, step, said):
    sentence = f"cuda_example stood still: block {block} waited in vain for {said} of step {step}, so that epoch is"
    with pytest.raises(RuntimeError, match=sentence):
        left(word(what, block, step)).check()


def test_it_is_said_once(left):
    trainer = left(word(1, 2, 3))
    with pytest.raises(RuntimeError):
        trainer.check()
    trainer.close()
    assert not trainer.failed.any()
