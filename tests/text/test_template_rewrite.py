from __future__ import annotations

import jinja2
import pytest
from jinja2 import nodes

from pybatcher.text.template_rewrite import CONCATENATE, TICK, WEIGH, GenerationTag, Rewriter


def rewritten(source: str) -> nodes.Template:
    environment = jinja2.Environment(extensions=[GenerationTag])
    tree = environment.parse(source)
    assert Rewriter().visit(tree) is tree
    return tree


def filters(source: str) -> list[tuple[str, type[nodes.Node]]]:
    """Each filter that was put in, and what it stands around."""
    found = rewritten(source).find_all(nodes.Filter)
    return [(f.name, type(f.node)) for f in found if f.name.endswith("!")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("text {{ name }} {{ f(x) }} {{ x[0] }} {{ 5 }}", []),
        ("{{ [1] }}", [(WEIGH, nodes.List)]),
        ("{{ (1, x) }}", [(WEIGH, nodes.Tuple)]),
        ("{{ {1: x} }}", [(WEIGH, nodes.Dict)]),
        ("{{ x[1:] }}", [(WEIGH, nodes.Getitem)]),
        ("{{ x == 1 }}", [(WEIGH, nodes.Name)]),
        ("{{ x < y < 2 }}", [(WEIGH, nodes.Name)] * 2),
        ("{{ 'a' in x }}", [(WEIGH, nodes.Name)]),
        ("{{ x ~ y }}", [(CONCATENATE, nodes.List)]),
        ("{% for a, b in x %}{% endfor %}", [(TICK, nodes.Const)]),
        ("{% for a in x if a %}{% endfor %}", [(TICK, nodes.Const)] * 2),
        ("{% macro m(a=1) %}{% endmacro %}", [(TICK, nodes.Const)]),
        ("{% call m() %}{% endcall %}", [(TICK, nodes.Const)]),
        ("{% block b %}{% endblock %}", [(TICK, nodes.Const)]),
    ],
)
def test_what_is_metered(source: str, expected: list[tuple[str, type[nodes.Node]]]) -> None:
    assert filters(source) == expected


def test_it_reaches_into_everything() -> None:
    deep = "{% if x %}{% for a in [1] %}{{ f(k=[a ~ 'x'])[2:] | g(b == 1) }}{% endfor %}{% endif %}"
    assert sorted(name for name, _ in filters(deep)) == sorted(
        [TICK, WEIGH, WEIGH, WEIGH, WEIGH, CONCATENATE]
    )


def test_a_tick_knows_the_text_of_its_round() -> None:
    tree = rewritten("{% for a in x %}12345{% if a %}678{% else %}90{% endif %}{% endfor %}12345")
    (tick,) = (f for f in tree.find_all(nodes.Filter) if f.name == TICK)
    assert tick.node.as_const() == 10


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("{% include 'a' %}", "include"),
        ("{% import 'a' as b %}", "import"),
        ("{% from 'a' import b %}", "fromimport"),
        ("{% extends 'a' %}", "extends"),
        ("{% if false %}{% include 'a' ignore missing %}{% endif %}", "include"),
    ],
)
def test_other_templates_are_not_loaded(source: str, kind: str) -> None:
    with pytest.raises(jinja2.TemplateAssertionError, match=rf"loads another template \({kind}\)"):
        rewritten(source)


def test_the_generation_tag_is_a_scope() -> None:
    environment = jinja2.Environment(extensions=[GenerationTag])
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert environment.from_string(source).render() == "21"
    with pytest.raises(jinja2.TemplateSyntaxError):
        environment.from_string("{% generation %}")
