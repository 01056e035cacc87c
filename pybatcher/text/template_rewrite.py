"""Rewrites a template's syntax tree so that every step that can repeat or grow is metered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateAssertionError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer
from typing_extensions import override

from .metering import MAX_INTEGER_BITS

__all__ = [
    "CONCATENATE",
    "CONTAINS",
    "KEY",
    "SLICE",
    "TICK",
    "WEIGH",
    "GenerationTag",
    "Rewriter",
    "n_nodes_of",
]

# Names of filters that no template can write.
TICK = "tick!"
WEIGH = "weigh!"
SLICE = "slice!"
KEY = "key!"
CONTAINS = "contains!"
CONCATENATE = "concatenate!"

_NODES_PER_UNIT = 16
_CHARACTERS_PER_NODE = 64


class Rewriter(NodeTransformer):
    """Puts a TICK into every loop and macro, a SLICE around slices, a KEY around keys.

    `~` becomes the filter CONCATENATE, and `in` the filter CONTAINS. Values that are compared with
    each other get a WEIGH. Nodes that would load another template are refused.
    """

    @override
    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        self.generic_visit(node, *args, **kwargs)
        match node:
            case nodes.For():
                _add_tick(node.body)
                if node.test is not None:
                    node.test = nodes.And(_tick([node.test]), node.test)
            case nodes.Macro() | nodes.CallBlock() | nodes.Block():
                _add_tick(node.body)
            case nodes.Compare():
                return _compared(node)
            case nodes.Concat():
                return _filter(CONCATENATE, nodes.List(node.nodes, lineno=node.lineno))
            case nodes.Pair() if not isinstance(node.key, nodes.Const):
                node.key = _filter(KEY, node.key)
            case nodes.Getitem(arg=nodes.Slice()):
                return _filter(SLICE, node)
            case nodes.Const(value=int() as number) if number.bit_length() > MAX_INTEGER_BITS:
                raise TemplateAssertionError(
                    f"it has a number of more than {MAX_INTEGER_BITS} bits", node.lineno
                )
            case nodes.Include() | nodes.Import() | nodes.FromImport() | nodes.Extends():
                kind = type(node).__name__.lower()
                raise TemplateAssertionError(
                    f"it loads another template ({kind}), which it may not", node.lineno
                )
        return node


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it only scopes them."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    @override
    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def n_nodes_of(tree: nodes.Node, most: int) -> int:
    """Return the number of nodes in a tree; any number above `most` if there are more."""
    stack, found = [tree], 0
    while stack and found <= most:
        found += 1
        stack.extend(stack.pop().iter_child_nodes())
    return found


def _add_tick(body: list[nodes.Node]) -> None:
    body.insert(0, nodes.ExprStmt(_tick(body)))


def _compared(node: nodes.Compare) -> nodes.Expr:
    """Return a comparison whose work is counted.

    A comparison with a constant takes no longer than the constant is long.
    """
    operators = [operand.op for operand in node.ops]
    if "in" in operators or "notin" in operators:
        if len(operators) > 1:
            raise TemplateAssertionError("it compares more than two values by in", node.lineno)
        found = _filter(CONTAINS, node.expr, node.ops[0].expr)
        return found if operators == ["in"] else nodes.Not(found, lineno=node.lineno)
    if not any(isinstance(one, nodes.Const) for one in (node.expr, node.ops[0].expr)) or (
        len(operators) > 1
    ):
        node.expr = _weighed(node.expr)
        for operand in node.ops:
            operand.expr = _weighed(operand.expr)
    return node


def _tick(body: Sequence[nodes.Node]) -> nodes.Expr:
    """Return an expression that counts one round of `body`, by its steps and the text it writes."""
    return _filter(TICK, nodes.Const(sum(map(_size, body)) // _NODES_PER_UNIT))


def _size(node: nodes.Node) -> int:
    """Return the number of nodes in a tree; a long text counts as several."""
    size = 1
    match node:
        case nodes.TemplateData(data=str(text)) | nodes.Const(value=str(text)):
            size += len(text) // _CHARACTERS_PER_NODE
    return size + sum(map(_size, node.iter_child_nodes()))


def _weighed(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _filter(WEIGH, node)


def _filter(name: str, node: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)
