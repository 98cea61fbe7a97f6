"""An evaluation on a GPU is rehearsed on some rows while a training begins, and made of all rows when it is wanted."""

from types import SimpleNamespace

import numpy as np
import pytest

from mlpkit.executors.cuda import evaluation

ENGINE = SimpleNamespace(__name__="an engine")  # no module, as a rank's engine is none
NETWORK = SimpleNamespace(engine=ENGINE, model="an MLP", dtype=np.float32)


@pytest.fixture
def works(monkeypatch):
    """Return a list of what is to be rehearsed, instead of rehearsing it."""
    found = []
    monkeypatch.setattr(evaluation, "beside", found.append)
    monkeypatch.setattr(evaluation, "_compiled", set())
    return found


def test_an_evaluation_is_rehearsed_at_once_and_made_once(works, monkeypatch):
    settled, made, asked, waited = [], [], [], []
    monkeypatch.setattr(evaluation, "settle", lambda: settled.append(len(made)))

    def kind(network, X, y):
        made.append((network, len(X), len(y)))

        def wait():
            waited.append(len(X))
            return len(X)

        return lambda: asked.append(len(X)) or wait

    X = np.zeros((3000, 4), np.uint8)
    found = evaluation.Rehearsed(kind, NETWORK, X, X[:, 0])
    assert (len(works), made) == (1, [])
    works[0]()
    assert made == [(NETWORK, 1024, 1024)]
    assert asked == waited == [1024]  # to its end
    assert [found()(), found()()] == [3000, 3000]
    assert made == [(NETWORK, 1024, 1024), (NETWORK, 3000, 3000)]
    assert settled == [1]  # before it is made


def test_what_is_compiled_is_not_rehearsed_again(works):
    X = np.zeros((3000, 4), np.uint8)
    for rows in (X, X[:2000], X[:500], X.astype(np.float32), X):
        evaluation.Rehearsed(print, NETWORK, rows, rows[:, 0])
    assert len(works) == 3  # the first, few rows, another type
    evaluation.Rehearsed(print, SimpleNamespace(**vars(NETWORK) | {"model": "another"}), X, X[:, 0])
    assert len(works) == 4
