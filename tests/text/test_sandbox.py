"""Templates that attack: each must be stopped by a typed error, at once and for little memory."""

from __future__ import annotations

import tracemalloc
from datetime import datetime

import jinja2
import pytest

from pybatcher.text.sandbox import (
    RenderingAbandonedError,
    Sandbox,
    TemplateLimitError,
    TemplateRefusedError,
)

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]

ENDLESS = {
    "loops": "{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for a in r %}{% for b in r if false %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}"
    "{{ m(99) }}",
    "macro text": "{% macro m() %}{% for a in r %}"
    + "x" * 9999
    + "{% endfor %}{% endmacro %}{{ m() }}",
    "searches": "{{ r | select('in', r | list) | list }}",
    "comparisons": "{% set x = 'a' * 999999 %}{% set y = 'a' * 999999 %}"
    "{% for a in r %}{% if x == y %}{% endif %}{% endfor %}",
    "slices": "{% set x = 'a' * 999999 %}{% for a in r %}{% set y = x[1:] %}{% endfor %}",
    "stripping": "{% set x = 'a' * 999999 %}{% for a in r %}{% set y = x.strip('a') %}{% endfor %}",
    "attributes": "{% set m = messages * 9999 %}"
    "{{ m | map(attribute='role' ~ '.x' * 9999, default=m[0]) | list }}",
    "a body of many steps": "{% for a in r %}{% if r %}{% continue %}{% endif %}"
    + "{% set y = a.b.c %}" * 900
    + "{% endfor %}",
    "lookups of a tuple": "{% set t = (r | list,) * 2 %}{% for a in r %}{% if {}[t] %}{% endif %}"
    "{% for b in r %}{% endfor %}{% endfor %}",
    "list.count": "{% set x = r | list %}{% for a in r %}{% set y = x.count('a') %}{% endfor %}",
    "unread items": "{{ r | map('string') | map('length') | select('gt', 99) | first }}",
    "deep indentation": "{% set n = namespace(x=range(9999) | list) %}{% for i in range(200) %}"
    "{% set n.x = [n.x] %}{% endfor %}{{ n.x | tojson(indent=64) }}",
    "tests": "{% set x = 'a' * 999999 %}{% for a in r %}{% if x is upper %}{% endif %}{% endfor %}",
}

GIGABYTES = {
    "a text times": "{{ 'a' * 10000000000 }}",
    "a list times": "{{ [1] * 10000000000 }}",
    "times a text": "{{ 10000000000 * 'a' }}",
    "doubling ~": "{% set n = namespace(x='a') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling +": "{% set n = namespace(x='a') %}{% for i in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling lists": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling blocks": "{% set x = 'aaaa' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "shared lists": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "shared tuples": "{% set n = namespace(x=1) %}{% for i in range(60) %}"
    "{% set n.x = (n.x, n.x) %}{% endfor %}{{ n.x | string }}",
    "shared dicts": "{% set n = namespace(x=1) %}{% for i in range(60) %}"
    "{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}{{ n.x | tojson }}",
    "shared by dict()": "{% set n = namespace(x=1) %}{% for i in range(60) %}"
    "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x }}",
    "compared lists": "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
    "a namespace in itself": "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
    "replace()": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "replace('')": "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
    "|replace": "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "join()": "{{ ('x' * 20000).join(range(20000) | map('string')) }}",
    "|join": "{{ r | join('x' * 99999) }}",
    "|map": "{{ r | map('replace', '1', 'b' * 99999) | list }}",
    "|indent": "{{ ('\n' * 999999) | indent(64) }}",
    "split()": "{{ ('日,' * 1200000).split(',') }}",
    "split() at spaces": "{{ ('日 ' * 1200000).split() }}",
    "|list": "{{ ('日' * 2000000) | list }}",
    "format() again and again": "{{ ('{0}' * 99999).format('a' * 99999) }}",
    "% again and again": "{{ ('%(a)s' * 99999) % {'a': 'a' * 99999} }}",
    "|format again and again": "{{ ('%(a)s' * 99999) | format(a='a' * 99999) }}",
    "|tojson(indent)": "{{ (r | list) | tojson(indent=64) }}",
}

FORBIDDEN = {
    "%": ("{{ '%1000000000d' % 1 }}", "widths"),
    "%*": ("{{ '%*d' % (1000000000, 1) }}", "widths"),
    "|format": ("{{ '%1000000000d' | format(1) }}", "widths"),
    "|format *": ("{{ '%*d' | format(1000000000, 1) }}", "widths"),
    "format": ("{{ '{:>1000000000}'.format('') }}", "widths"),
    "format_map": ("{{ '{a:>1000000000}'.format_map({'a': ''}) }}", "widths"),
    "nested format": ("{{ '{:>{w}}'.format('', w=1000000000) }}", "widths"),
    "strftime": ("{{ strftime_now('%999999999d') }}", "widths"),
    "strftime text": ("{{ strftime_now('%d' * 999) }}", "time format"),
    "power": ("{{ 10 ** (10 ** 9) }}", "bits"),
    "product": ("{% set n = namespace(x=7) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}"
                "{% endfor %}", "bits"),
    "strip": ("{{ ('ab' * 99999).strip('ba' * 999) }}", "one step"),
    "|trim": ("{{ ('ab' * 99999) | trim('ba' * 999) }}", "one step"),
    "rfind": ("{{ ('a' * 99999).rfind('ab' + 'a' * 9999) }}", "one step"),
    "rindex": ("{{ ('a' * 99999).rindex('ab' + 'a' * 9999) }}", "one step"),
    "rpartition": ("{{ ('a' * 99999).rpartition('ab' + 'a' * 9999) }}", "one step"),
    "rsplit": ("{{ ('a' * 99999).rsplit('ab' + 'a' * 9999) }}", "one step"),
    "int": ("{{ ('f' * 999999) | int(0, 16) }}", "number of 999999 characters"),
    "float": ("{{ ('1' * 999999) | float }}", "number of 999999 characters"),
    "large constants": ("{{ 0x" + "f" * 1025 + " // 3 }}", "more than 4096 bits"),
    "named %": ("{{ '%(a)1000000000d' % {'a': 1} }}", "widths"),
    "named % *": ("{{ '%((a))*d' % {'(a)': 1} }}", "widths"),
    "equal hashes": ("{% set p = 2305843009213693951 %}{{ range(0, 99 * p, p) | unique | list }}",
                     "more than 64 keys"),
    "nested keys": ("{% set n = namespace(x=1) %}{% for i in range(99) %}{% set n.x = (n.x,) %}"
                    "{% endfor %}{{ {n.x: 1} }}", "nested too deeply"),
    "indent": ("{{ 'a\nb' | indent(1000000000) }}", "indents by 1000000000"),
    "indent text": ("{{ 'a\nb' | indent('x' * 999) }}", "indents by 999"),
    "tojson indent": ("{{ [1] | tojson(indent=1000000000) }}", "spaced"),
    "tojson separators": ("{{ [1] | tojson(separators=('x' * 999, ':')) }}", "spaced"),
    "round": ("{{ 2.5 | round(1000000000, 'ceil') }}", "rounds"),
}  # fmt: skip

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__.__base__ }}",
    "{{ raise_exception.__globals__.os }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ strftime_now.__closure__[0].cell_contents }}",
    "{{ self.__init__.__globals__ }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '%s'.format.__wrapped__.__self__ }}",
    "{{ namespace(__class__=1) }}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x'.zfill(1000000000) }}",
    "{{ 'x'.encode().hex() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(a=1) }}",
    "{{ messages[0].pop('role') }}",
    "{{ range(9).count(1) }}",
    "{{ (messages | map('upper')).send(none) }}",
    "{{ namespace.mro() }}",
]


def sandbox(template: str) -> Sandbox:
    return Sandbox("{% set r = range(100000) %}" + template)


def render(template: str) -> str:
    return sandbox(template).render({"messages": MESSAGES})


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_stopped(name: str) -> None:
    with pytest.raises(TemplateLimitError, match="does not come to an end"):
        render(ENDLESS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", GIGABYTES)
def test_what_would_be_gigabytes_is_stopped(name: str) -> None:
    template = sandbox(GIGABYTES[name])
    tracemalloc.start()
    try:
        with pytest.raises(TemplateLimitError, match="does not come to an end"):
            template.render({"messages": MESSAGES})
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_would_explode_in_one_step_is_refused(name: str) -> None:
    template, said = FORBIDDEN[name]
    with pytest.raises((TemplateLimitError, jinja2.TemplateAssertionError), match=said):
        render(template)


@pytest.mark.parametrize(
    "template",
    ["{{ '%1000000000d' is odd }}", "{{ '%1000000000d' is even }}", "{{ 'a' | round(9, 'ceil') }}",
     "{{ '%1000000000d' is divisibleby(3) }}", "{{ [1] | round(9, 'floor') }}"],
)  # fmt: skip
def test_arithmetic_is_for_numbers(template: str) -> None:
    with pytest.raises(TypeError, match="is not a number"):
        render(template)


def test_a_rendering_ends_when_nobody_waits() -> None:
    asked: list[int] = []

    def goes_on() -> bool:
        asked.append(1)
        return len(asked) < 5

    template = sandbox("{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}")
    with pytest.raises(RenderingAbandonedError):
        template.render({}, goes_on)
    assert len(asked) == 5


def test_a_long_chat_may_look_at_all_its_messages_in_each() -> None:
    template = Sandbox(
        "{% for m in messages[::-1] %}{% set i = messages | length - 1 - loop.index0 %}"
        "{% if messages[i] is mapping and messages[i].content is string %}{{ i }}{% endif %}"
        "{% endfor %}"
    )
    assert len(template.render({"messages": [{"role": "user", "content": "x"}] * 10_000})) > 10_000


def test_a_source_of_too_many_parts_is_not_compiled() -> None:
    with pytest.raises(TemplateLimitError, match="more than 8192 names"):
        Sandbox("{{a}}" * 9000)


@pytest.mark.parametrize("template", ESCAPES)
def test_nothing_but_plain_values_can_be_reached(template: str) -> None:
    with pytest.raises((jinja2.exceptions.SecurityError, jinja2.exceptions.UndefinedError)):
        render(template)
    assert MESSAGES[0] == {"role": "user", "content": "hi"}
    assert len(MESSAGES) == 2


@pytest.mark.parametrize("name", ["lipsum", "cycler", "joiner", "self.x", "open", "tick"])
def test_there_is_nothing_beside_what_chat_templates_use(name: str) -> None:
    assert render(f"{{{{ {name} is defined }}}}") == "False"


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% block b %}{{ self.b() }}{% endblock %}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ " + "[" * 30_000 + "]" * 30_000 + " }}",
    ],
)
def test_nesting_without_end_is_a_recursion_error(template: str) -> None:
    with pytest.raises(RecursionError):
        render(template)


def test_a_long_conversation_may_cost_more() -> None:
    template = Sandbox("{% for m in messages %}{{ m.role ~ m.content ~ '\n' }}{% endfor %}")
    long = [{"role": "user", "content": "word " * 200_000} for _ in range(50)]
    assert len(template.render({"messages": long})) == 50 * (4 + 1_000_000 + 1)
    many = [{"role": "user", "content": "word"} for _ in range(20_000)]
    assert len(template.render({"messages": many})) == 20_000 * 9


def test_a_refusal_is_the_templates_own_word() -> None:
    with pytest.raises(TemplateRefusedError, match="only users"):
        render("{{ raise_exception('only users') }}")


def test_the_clock_comes_in() -> None:
    sandbox = Sandbox("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26))
    assert sandbox.render({}) == "26 Jul 2024"


def test_one_rendering_takes_nothing_from_the_next() -> None:
    sandbox = Sandbox("{{ range(20000) | list | length }}")
    assert [sandbox.render({}) for _ in range(10)] == ["20000"] * 10
