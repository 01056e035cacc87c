"""Against jinja2's own filters (and transformers' tojson): what they give must be the same."""

from __future__ import annotations

from collections.abc import Iterator

import jinja2
import pytest
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_TESTS

from pybatcher.text.metering import METER, Meter, TemplateLimitError
from pybatcher.text.sandbox import Sandbox
from pybatcher.text.template_filters import FILTERS, TESTS
from pybatcher.text.template_rewrite import CONTAINS, KEY, TICK

VALUES = {
    "text": "one <b> two\nthree & four ",
    "words": ["b", "a", "C", "a"],
    "rows": [{"k": 2, "v": "x"}, {"k": 1, "v": "y"}, {"k": 2}],
    "mapping": {"b": 1, "a": [2, None]},
}
EXPRESSIONS = [
    "-3 | abs",
    "text | capitalize",
    "words | count",
    "nothing | default('d') ~ nothing | d('e')",
    "mapping | dictsort",
    "text | escape ~ text | e",
    "words | first ~ words | last",
    "'2.5' | float ~ '7' | int",
    "'%s=%r, %3d' | format('a', text, 7) ~ '%(k)s' | format(k=words)",
    "rows | groupby('k') | list",
    "text | indent ~ text | indent(2, true) ~ text | indent('> ')",
    "mapping | items | list",
    "words | join ~ words | join(', ') ~ rows | join('|', attribute='k')",
    "text | length ~ text | list ~ text | lower ~ text | upper",
    "words | map('upper') | list ~ rows | map(attribute='v', default='-') | list",
    "words | max ~ words | min",
    "words | reject('eq', 'a') | list ~ words | select('in', 'ab') | list",
    "rows | rejectattr('v') | list ~ rows | selectattr('k', 'gt', 1) | list",
    "text | replace('o', '0') ~ text | replace('o', '0', 1) ~ text | replace('', '-')",
    "words | reverse | list ~ text | reverse",
    "2.567 | round ~ 2.567 | round(1) ~ 2.567 | round(2, 'floor') ~ 7 | round(method='ceil')",
    "text | safe",
    "words | sort ~ words | sort(true) ~ rows | sort(attribute='k')",
    "mapping | string",
    "text | title ~ text | trim ~ 'xax' | trim('x')",
    "words | unique | list",
    "text | wordcount",
]


@pytest.fixture(autouse=True)
def meter() -> Iterator[Meter]:
    """So that filters can be called outside a rendering."""
    meter = Meter([])
    token = METER.set(meter)
    yield meter
    METER.reset(token)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_filters_give_what_jinjas_give(expression: str) -> None:
    template = f"{{{{ {expression} }}}}"
    assert Sandbox(template).render(VALUES) == jinja2.Template(template).render(VALUES)


def test_every_filter_is_tried_here_or_in_the_chat_tests() -> None:
    public = {name for name in FILTERS if name.isidentifier()} - {"tojson"}
    assert public == {name for name in public if any(f"| {name}" in e for e in EXPRESSIONS)}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("in", ("a", "bab")), ("eq", (2, 2.0)), ("lower", ("Ab",)), ("divisibleby", (9, 3)),
     ("mapping", ({},)), ("none", (None,)), ("gt", (2, 1)), ("string", (5,))],
)  # fmt: skip
def test_tests_give_what_jinjas_give(name: str, arguments: tuple[object, ...]) -> None:
    assert TESTS.keys() == DEFAULT_TESTS.keys()
    assert TESTS[name](*arguments) == DEFAULT_TESTS[name](*arguments)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("{'a': 'é<', 'b': [1, none, true]} | tojson", '{"a": "é<", "b": [1, null, true]}'),
        ("'é' | tojson(ensure_ascii=true)", '"\\u00e9"'),
        ("[1, 2] | tojson(indent=1)", "[\n 1,\n 2\n]"),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=true)", '{"a": 2, "b": 1}'),
        ("[1, 2] | tojson(separators=(',', ':'))", "[1,2]"),
    ],
)
def test_json_is_plain(call: str, expected: str) -> None:
    assert Sandbox(f"{{{{ {call} }}}}").render({}) == expected


_JINJA = jinja2.Environment()
_ARGUMENTS: dict[str, tuple[object, ...]] = {
    "replace": ("x", "x", "y"), "join": (_JINJA, ["x"]), "round": (1.5,), TICK: (64,), KEY: ("x",),
    CONTAINS: ("x", ["x"]), "abs": (1,), "odd": (1,), "even": (1,), "divisibleby": (1, 2),
    "in": ("x", ["x"]), "map": (_JINJA, ["x"], "upper"), "filter": (_JINJA, "x"),
    "test": (_JINJA, "x"),
    "dictsort": ({"x": 1},), "items": ({"x": 1},), "int": ("1",), "float": ("1",),
}  # fmt: skip
_FIRST = "first last groupby sort list max min reject rejectattr select selectattr unique"
_ARGUMENTS |= {name: (_JINJA, ["x"]) for name in _FIRST.split()}


@pytest.mark.parametrize("name", [*FILTERS, *TESTS])
def test_each_is_metered(name: str) -> None:
    spent_up = Meter([])
    spent_up.spend(200_064)
    METER.set(spent_up)
    with pytest.raises(TemplateLimitError):
        list((FILTERS | TESTS)[name](*_ARGUMENTS.get(name, (["x"],))))  # of an iterator, each item


def test_everything_of_jinja_is_metered_or_refused() -> None:
    """A filter or a test that a new version of Jinja brings must get a cost before it is used."""
    refused = """
        attr batch center filesizeformat forceescape pprint random slice striptags sum truncate
        urlencode urlize wordwrap xmlattr
    """
    assert {name for name in FILTERS if name.isidentifier()} == {*DEFAULT_FILTERS} - {
        *refused.split()
    }
    for name in refused.split():
        with pytest.raises(jinja2.TemplateAssertionError, match="No filter named"):
            Sandbox(f"{{{{ x | {name} }}}}")
    assert TESTS.keys() == DEFAULT_TESTS.keys()
