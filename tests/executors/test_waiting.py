"""What the host makes of the word that a kernel leaves whose blocks wait for each other."""

from types import SimpleNamespace

import emulator
import numpy as np
import pytest
from shared import one_sentence


@pytest.fixture
def left(tmp_path):
    """Return what makes a trainer after an epoch that has left a word: a class."""
    with emulator.with_cupy(tmp_path), pytest.MonkeyPatch.context() as patch:
        module = emulator.own_parts(patch, "transfers", "waiting")["waiting"]
        module.gpu = emulator.own("kernels.gpu")
        module.gpu._device = lambda: module.cp.cuda.Device()

    class Example(module.WaitingTrainer):
        engine, awaited, cupy = "cuda_example", ("images", "slopes"), module.cp
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


@pytest.mark.parametrize(("blocks", "shared", "at_once"), [(133, 1000, 1), (132, 232_449, 1), (1, 1000, 0)])
def test_blocks_that_are_not_on_the_gpu_at_once_are_refused(left, blocks, shared, at_once):
    trainer = left(0)
    trainer.blocks, trainer.threads, trainer.shared_bytes = blocks, 512, shared
    trainer.kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=7))
    trainer.cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor = lambda *of: at_once
    with pytest.raises(ValueError, match="cuda_example") as refused:
        trainer.check_all_run()
    one_sentence(refused.value, f"cuda_example keeps {blocks} blocks with", "take cuda_graph")


def test_blocks_that_fit_get_their_shared_memory(left):
    trainer = left(0)
    trainer.blocks, trainer.threads, trainer.shared_bytes = 132, 512, 232_448
    trainer.kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=7))
    trainer.check_all_run()
    assert trainer.kernel.max_dynamic_shared_size_bytes == 232_448
