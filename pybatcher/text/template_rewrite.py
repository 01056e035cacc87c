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

__all__ = ["CONCATENATE", "TICK", "WEIGH", "GenerationTag", "Rewriter"]

# Names of filters that no template can write.
TICK = "tick!"
WEIGH = "weigh!"
CONCATENATE = "concatenate!"


class Rewriter(NodeTransformer):
    """Puts a TICK into every loop and macro, and a WEIGH around new values and comparisons.

    `~` becomes the filter CONCATENATE. Nodes that would load another template are refused.
    """

    @override
    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        self.generic_visit(node, *args, **kwargs)
        match node:
            case nodes.For():
                _add_tick(node.body)
                if node.test is not None:
                    node.test = nodes.And(_tick([]), node.test)
            case nodes.Macro() | nodes.CallBlock() | nodes.Block():
                _add_tick(node.body)
            case nodes.Compare():
                node.expr = _weighed(node.expr)
                for operand in node.ops:
                    operand.expr = _weighed(operand.expr)
            case nodes.Concat():
                return _filter(CONCATENATE, nodes.List(node.nodes, lineno=node.lineno))
            case nodes.List() | nodes.Dict() | nodes.Tuple(ctx="load"):
                return _weighed(node)
            case nodes.Getitem(arg=nodes.Slice()):
                return _weighed(node)
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


def _add_tick(body: list[nodes.Node]) -> None:
    body.insert(0, nodes.ExprStmt(_tick(body)))


def _tick(body: Sequence[nodes.Node]) -> nodes.Expr:
    """Return an expression that counts one round of `body`, by the text that it writes."""
    texts = [text for node in body for text in node.find_all(nodes.TemplateData)]
    return _filter(TICK, nodes.Const(sum(len(text.data) for text in texts)))


def _weighed(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _filter(WEIGH, node)


def _filter(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
