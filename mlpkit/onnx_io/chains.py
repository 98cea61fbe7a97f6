"""Sequences, sums and concatenations in a graph: what a model of layers is made of.

A node with one input that depends on the network's is a step of a sequence. One with several joins branches, which come
from where all ways to it still were one: the nearest common dominator. Cooper, Harvey and Kennedy (2001), "A simple,
fast dominance algorithm".
"""

from dataclasses import dataclass

from mlpkit.nn.layers import DEEPEST

from .loading import Node


@dataclass(frozen=True)
class Step:
    """A node in a sequence; where it joins branches, each is a tuple of steps."""

    node: Node
    branches: tuple[tuple["Step", ...], ...] = ()


def steps_of(graph):
    """Return what leads from a `Graph`'s input to its output, a tuple of `Step`. Raises ValueError where it is no chain.

    Nodes that do not lead there are left out, and so are those that compute sizes alone.
    """
    dominators = _dominators(graph)
    if graph.output not in dominators:
        raise ValueError("its output does not depend on its input")
    makers = {name: node for node in graph.nodes for name in node.outputs}
    return _Walk(makers, dominators).steps(graph.output, graph.input, 0)


def _dominators(graph):
    """Return for each value that depends on the input the nearest one that all ways to it lead through, and its depth."""
    found = {graph.input: (None, 0)}
    for node in graph.nodes:
        if node.operator == "Shape":  # its output is about the input, and does not depend on what is in it
            continue
        data = [name for name in node.inputs if name in found]
        if data:
            nearest = data[0]
            for other in data[1:]:
                nearest = _common(found, nearest, other)
            found.update({name: (nearest, found[nearest][1] + 1) for name in node.outputs if name})
    return found


def _common(dominators, one, other):
    while one != other:
        if dominators[one][1] < dominators[other][1]:
            one, other = other, one
        one = dominators[one][0]
    return one


class _Walk:
    """From an output back to an input, each node once."""

    def __init__(self, makers, dominators):
        self.makers, self.dominators, self.seen = makers, dominators, set()

    def steps(self, value, start, depth):
        """Return the steps from the value `start` to another one."""
        if depth > DEEPEST:
            raise ValueError(f"it has branches in branches, more than {DEEPEST} deep")
        found = []
        while value != start:
            node = self.makers[value]
            if node.number in self.seen:
                raise ValueError(f"what {node} makes goes several ways that do not meet in one sum or concatenation")
            self.seen.add(node.number)
            data = [name for name in node.inputs if name in self.dominators]
            before = data[0] if len(data) == 1 else self.dominators[value][0]
            branches = [self.steps(name, before, depth + 1) for name in data] if len(data) > 1 else ()
            found.append(Step(node, tuple(branches)))
            value = before
        return tuple(found[::-1])
