"""ONNX, the file format for networks that other libraries read and write, too: `write` a network, `read` one.

A file holds a graph: nodes, each an operator with attributes, between named values, some of which are constants, the
weights. `writing` makes a node or two of each layer. `loading` takes a file apart and trusts nothing in it; `chains`
finds sequences, sums and concatenations in the graph, which is what a model of layers is; `reading` makes layers of
operators, and `operators` is the table of what it takes. Needs the package onnx, which `pip install "mlpkit[onnx]"`
brings, but none that computes.
"""

from .reading import read as read
from .writing import write as write
