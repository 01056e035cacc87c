from __future__ import annotations

import jinja2
import pytest
from jinja2 import nodes

from pybatcher.text.template_rewrite import (
    CONCATENATE,
    CONTAINS,
    KEY,
    SLICE,
    TICK,
    WEIGH,
    GenerationTag,
    Rewriter,
    n_nodes_of,
)


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
        ("{{ [1] }} {{ (1, x) }} {{ {1: x} }}", []),
        ("{{ {x: 1} }}", [(KEY, nodes.Name)]),
        ("{{ x[1:] }}", [(SLICE, nodes.Getitem)]),
        ("{{ x == 1 }} {{ 'a' != x }}", []),
        ("{{ x == y }}", [(WEIGH, nodes.Name)] * 2),
        ("{{ x < y < 2 }}", [(WEIGH, nodes.Name)] * 2),
        ("{{ 1 < x < y }}", [(WEIGH, nodes.Name)] * 2),
        ("{{ 'a' in x }}", [(CONTAINS, nodes.Const)]),
        ("{{ x not in y }}", [(CONTAINS, nodes.Name)]),
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
    assert sorted(name for name, _ in filters(deep)) == sorted([TICK, SLICE, CONCATENATE])


def units(source: str) -> int:
    (tick,) = (f for f in rewritten(source).find_all(nodes.Filter) if f.name == TICK)
    assert isinstance(tick.node, nodes.Const)
    return int(tick.node.value)


def test_a_tick_counts_the_text_and_the_steps_of_its_round() -> None:
    assert units("{% for a in x %}12345{% endfor %}" + "x" * 9999) == 0
    assert units("{% for a in x %}" + "x" * 64_000 + "{% endfor %}") == 1000 // 16
    assert units("{% for a in x %}{{ '" + "x" * 64_000 + "' }}{% endfor %}") == 1000 // 16
    assert units("{% for a in x %}{% if a %}" + "{{ a.b }}" * 1000 + "{% endif %}{% endfor %}") > 99


def test_a_chain_of_in_is_refused() -> None:
    with pytest.raises(jinja2.TemplateAssertionError, match="more than two values by in"):
        rewritten("{{ 'a' in x in y }}")


def test_large_numbers_are_refused() -> None:
    rewritten("{{ 0x" + "f" * 1024 + " }}")
    with pytest.raises(jinja2.TemplateAssertionError, match="more than 4096 bits"):
        rewritten("{{ 0x1" + "0" * 1024 + " }}")


def test_nodes_are_counted_up_to_a_number() -> None:
    tree = jinja2.Environment().parse("{{ a + 1 }}" * 9)
    assert n_nodes_of(tree, 99) == sum(1 for _ in tree.find_all(nodes.Node)) + 1
    assert n_nodes_of(tree, 9) == 10


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
