"""ONNX's own cases judge the reader: it gives what ONNX says in as many cases as its table declares, or a sentence."""

import importlib
import warnings
from collections import Counter
from functools import cache
from unittest.mock import patch

import pytest
from numpy.testing import assert_allclose
from shared import one_sentence

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")

from mlpkit.engines import numpy_baseline  # noqa: E402
from mlpkit.onnx_io import loading, operators, reading  # noqa: E402

# What ONNX calls modules that do not have an operator's name
MODULES = {"BatchNormalization": "batch_normalization", "InstanceNormalization": "instance_normalization"}
FLOATS = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
JOINS = "Add", "Concat"  # which take data alone


def of_the_table(package):
    """Import the modules of the table's operators alone: the others generate cases for many seconds."""
    for name in operators.OPERATORS:
        importlib.import_module(f"{package.__name__}.{MODULES.get(name, name.lower())}")


def cases(which=of_the_table):
    """Return ONNX's cases of one node that is one of the table's, as they are generated, by name."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings(), patch.object(node, "import_recursive", which):
        warnings.simplefilter("ignore")
        found = node.collect_testcases(None)
    one = [case for case in found if len(case.model.graph.node) == 1]
    return {case.name: case for case in one if case.model.graph.node[0].op_type in operators.OPERATORS}


def result(case):
    """Return what we make of a case and what ONNX says, None where it is no network's. ValueError: it is refused.

    The first input is data, the others are constants: a network has one input, floats that begin with a batch.
    """
    graph, (inputs, outputs), (node,) = case.model.graph, case.data_sets[0], case.model.graph.node
    if graph.input[0].type.tensor_type.elem_type not in FLOATS or inputs[0].ndim < 2 or not inputs[0].size:
        return None
    if node.op_type in JOINS:
        if len({array.shape for array in inputs}) > 1:
            return None
        read = loading._node(onnx, 0, node)
        setting = operators.Setting(read, inputs[0].shape[1:], [None] * len(inputs), None, 25, inputs[0].ndim)
        layer, _ = operators.join(setting, [[] for _ in inputs])
        return layer.join(numpy_baseline, inputs), outputs[0]
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    constants = zip(model.graph.input[1:], inputs[1:], strict=True)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, value.name) for value, array in constants)
    network = reading.network_of(loading.of_bytes(model.SerializeToString()))
    return network.forward(inputs[0]).reshape(outputs[0].shape), outputs[0]


@cache
def results():
    """Return (operator, found, wanted) of each case that is read, and the others' refusals, both by name."""
    read, refused = {}, {}
    for name, case in cases().items():
        try:
            if found := result(case):
                read[name] = case.model.graph.node[0].op_type, *found
        except ValueError as error:
            refused[name] = error
    return read, refused


@pytest.mark.slow
def test_as_many_cases_are_read_as_the_table_says():
    found = Counter(operator for operator, *_ in results()[0].values())
    assert found == {name: one.cases for name, one in operators.OPERATORS.items() if one.cases}
    assert found.total() > 50


def test_every_case_that_is_read_gives_what_onnx_says():
    for name, (_, found, wanted) in results()[0].items():
        assert_allclose(found, wanted, rtol=1e-5, atol=1e-6, err_msg=name)


def test_every_other_case_of_floats_is_refused_in_a_sentence():
    refused = results()[1]
    assert len(refused) > 80
    for error in refused.values():
        one_sentence(error, " ")


@pytest.mark.slow
def test_no_case_of_the_tables_operators_is_in_another_module():
    from onnx.backend.test.case.utils import import_recursive

    assert cases(import_recursive).keys() == cases().keys()
