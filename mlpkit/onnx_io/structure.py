"""Sequences, sums and concatenations in a graph: what a model of layers is made of.

A node with one input that depends on the network's is a step of a sequence. One with several joins branches, which come
from the last value that all ways to it lead through, its nearest dominator: Cooper, Harvey and Kennedy (2001), "A
simple, fast dominance algorithm".
"""

from dataclasses import dataclass, replace
from typing import Any

from mlpkit.nn.layers import DEEPEST

from .loading import Node, need


@dataclass(frozen=True)
class Step:
    """A node in a sequence; where it joins branches, each is a tuple of steps."""

    node: Node
    branches: tuple[tuple["Step", ...], ...] = ()


def steps_of(graph):
    """Return what leads from a `Graph`'s input to its output, a tuple of `Step`. Raises ValueError where nothing does.

    Nodes that do not lead there are left out, and so are those that compute sizes alone.
    """
    nodes = _nested(graph.nodes)
    dominators = _dominators(graph.input, nodes)
    need(graph.output in dominators, "its output does not depend on its input")
    makers, seen = {name: node for node in nodes for name in node.outputs}, set()

    def steps(value, start, depth):
        """Return the steps from the value `start` to another one."""
        need(depth <= DEEPEST, f"it has branches in branches, more than {DEEPEST} deep")
        found = []
        while value != start:
            node = makers[value]
            need(node.number not in seen, f"what {node} makes goes several ways that do not meet in one sum or Concat")
            seen.add(node.number)
            need(value == node.outputs[0], f"what is used of {node} is not its first output, which alone is read")
            data = [name for name in node.inputs if name in dominators]
            value = dominators[value][0]
            found.append(Step(node, tuple(steps(name, value, depth + 1) for name in data) if len(data) > 1 else ()))
        return tuple(found[::-1])

    return steps(graph.output, graph.input, 0)


def _nested(nodes):
    """Return the nodes; a concatenation that begins with all that another one has takes that one's output instead.

    So a DenseNet, each of whose layers sees what all before it made, is a sequence: Huang et al. (2017), "Densely
    connected convolutional networks".
    """
    longer: dict[Any, int] = {}  # from what a concatenation begins with, and a value more, to a number
    made: dict[Any, str] = {}
    found = []
    for node in nodes:
        if node.operator == "Concat":
            at: Any = (node.attributes.get("axis"),)
            inputs = node.inputs
            for count, name in enumerate(node.inputs, 1):
                at = longer.setdefault((at, name), len(longer))
                if at in made:
                    inputs = made[at], *node.inputs[count:]
            made.setdefault(at, node.outputs[0])
            node = replace(node, inputs=inputs)
            if len(inputs) == 1:
                node = replace(node, operator="Identity", attributes={})
        found.append(node)
    return found


def _dominators(start, nodes):
    """Return for each value that depends on the input (the nearest one that all ways to it lead through, its depth)."""
    found = {start: (None, 0)}
    for node in nodes:
        data = [name for name in node.inputs if name in found]
        if data and node.operator != "Shape":  # which depends on no value of the input's
            nearest = data[0]
            for other in data[1:]:
                while nearest != other:
                    lower = max(nearest, other, key=lambda name: found[name][1])
                    nearest, other = found[lower][0], other if lower is nearest else nearest
            found |= {name: (nearest, found[nearest][1] + 1) for name in node.outputs if name}
    return found
