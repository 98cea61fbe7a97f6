"""A layout gives every array its place in one vector: weights first, as they are declared, vectors last."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from mlpkit.nn.conv import Conv
from mlpkit.nn.layers import Flatten, Linear, ReLU
from mlpkit.nn.layout import Layout
from mlpkit.nn.model import Model
from mlpkit.nn.norm import BatchNorm
from mlpkit.nn.residual import Residual

shapes_of_arrays = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), max_size=8)


def test_weights_come_first_in_the_order_in_which_they_are_declared():
    layout = Layout({"b": (2,), "W": (3, 2), "gamma": (4,), "V": (1, 2, 1, 2)})
    assert layout.slices == {"W": slice(0, 6), "V": slice(6, 10), "b": slice(10, 12), "gamma": slice(12, 16)}
    assert (layout.size, layout.n_decayed) == (16, 10)


@given(shapes=shapes_of_arrays)
def test_every_number_has_one_place(shapes):
    layout = Layout(dict(enumerate(shapes)))
    vector = np.zeros(layout.size, int)
    views = layout.views(vector)
    assert list(views) == list(range(len(shapes)))
    assert [view.shape for view in views.values()] == shapes
    for view in views.values():
        assert np.shares_memory(view, vector)
        assert view.flags.c_contiguous
        view += 1
    assert_array_equal(vector, 1)
    assert layout.n_decayed == sum(prod(shape) for shape in shapes if len(shape) > 1)
    for name, view in views.items():
        view[...] = name
    weights = [name for name, shape in enumerate(shapes) if len(shape) > 1]
    assert list(dict.fromkeys(vector[: layout.n_decayed])) == weights


@pytest.mark.parametrize("shapes", [{}, {"b": (3,)}])
def test_a_layout_may_be_empty_or_have_nothing_that_decays(shapes):
    layout = Layout(shapes)
    assert layout.n_decayed == 0
    assert layout.size == sum(shape[0] for shape in shapes.values())
    assert layout.views(np.zeros(layout.size)).keys() == shapes.keys()


def test_the_names_say_where_a_layer_stands_however_deep():
    inner = Residual((Conv(2, 3, padding=1), BatchNorm()))
    model = Model((2, 4, 4), (Conv(2, 1, bias=False), Residual((ReLU(), inner, BatchNorm())), Flatten(), Linear(3)))
    assert list(model.layout.shapes) == [
        *("0.W", "1.1.0.W", "1.1.0.b", "1.1.1.gamma", "1.1.1.beta", "1.2.gamma", "1.2.beta", "3.W", "3.b")
    ]
    assert list(model.layout.slices)[:3] == ["0.W", "1.1.0.W", "3.W"]
    assert list(model.statistics.shapes) == ["1.1.1.mean", "1.1.1.variance", "1.2.mean", "1.2.variance"]
    assert model.statistics.size == 8
    assert model.ones == {"1.1.1.gamma", "1.1.1.variance", "1.2.gamma", "1.2.variance"}
