"""ONNX, the file format for networks that other libraries read and write, too: `write` a network, `read` one.

A file holds a graph: nodes, each an operator with attributes, between named values, of which the weights are constants.
`writing` makes a node or two of each layer. `loading` takes a file apart and trusts nothing in it, `structure` finds
the sequences and sums in its graph, and `operators` is the table of what each node becomes, by which `reading` makes a
network. All need the package onnx, `pip install "mlpkit[onnx]"`.
"""

from .reading import read as read
from .writing import write as write
