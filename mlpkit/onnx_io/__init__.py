"""ONNX, the file format for networks that other libraries read and write, too: `write` a network, `read` one.

A file holds a graph: nodes, each an operator with attributes, between named values, some of them constants, the weights.
`writing` makes a node or two of each layer. `loading` takes a file apart and trusts nothing in it; `chains` finds the
sequences, sums and concatenations in its graph, which is what a model is made of; and `operators` makes layers of nodes:
its table says which, and of what else `reading` needs. The package onnx, `pip install "mlpkit[onnx]"`, packs and
unpacks; nothing else of it is used.
"""

from .reading import read as read
from .writing import write as write
