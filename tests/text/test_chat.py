from __future__ import annotations

import enum
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from pybatcher.errors import InvalidRequestError, ModelFormatError
from pybatcher.testing.checkpoints import make_tokenizer
from pybatcher.text import ChatTemplate
from pybatcher.text.output import FORMATS, DefaultTools

SPECIAL_TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "  You are <b>terse</b> & kind.  "},
    {"role": "user", "content": "Why is the sky blue? 日本\n\n"},
    {"role": "assistant", "content": "<think>\nlight\n</think>\n\nScattering."},
    {"role": "user", "content": "And at night?", "name": "Ada", "weight": 2},
]

# What the templates of the supported families are made of, each in the manner of one of them.
TEMPLATES = {
    "chatml": """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
""",
    "headers": """\
{{- bos_token }}
{%- set loop_messages = messages %}
{%- for message in loop_messages %}
    {%- set content = '<|header|>' + message['role'] + '<|/header|>\\n\\n'
        + message['content'] | trim + '<|eot|>' %}
    {%- if loop.index0 == 0 %}
        {%- set content = bos_token + content %}
    {%- endif %}
    {{- content }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>\\n\\n' }}{%- endif %}
""",
    "alternating": """\
{%- if messages[0]['role'] == 'system' -%}
  {%- set system = messages[0]['content'] | trim + '\\n\\n' -%}{%- set turns = messages[1:] -%}
{%- else -%}
  {%- set system = '' -%}{%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
  {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('roles must alternate user/assistant/user/assistant') }}
  {%- endif -%}
  {%- if message.role == 'user' -%}
    {{ '[INST] ' ~ (system if loop.first else '') ~ message.content ~ ' [/INST]' }}
  {%- else -%}
    {{ ' ' ~ message.content ~ eos_token }}
  {%- endif -%}
{%- endfor -%}
""",
    "thinking": """\
{%- set ns = namespace(last=messages | length - 1, found=false) -%}
{%- for message in messages[::-1] -%}
  {%- set index = (messages | length - 1) - loop.index0 -%}
  {%- if not ns.found and message.role == "user" -%}
    {%- set ns.found = true -%}{%- set ns.last = index -%}
  {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else '' -%}
  {%- if message.role == 'assistant' and '</think>' in content -%}
    {%- set thought = content.split('</think>')[0].rstrip('\\n') -%}
    {%- set thought = thought.split('<think>')[-1].lstrip('\\n') -%}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
    {%- if loop.index0 > ns.last %}{{ '[' + thought.strip('\\n') + ']' }}{% endif -%}
  {%- endif -%}
  {{- message.role.upper() ~ ':' ~ content ~ '\\n' -}}
{%- endfor -%}
{{- last | default(ns.last) }}
""",
    "machinery": """\
{%- macro line(role, text='', mark=none) -%}
{{ role | capitalize }}{% if mark is not none %}({{ mark }}){% endif -%}
: {{ text | replace('\\n', ' ') }}
{% endmacro -%}
{%- for m in messages if m.role != 'system' -%}
  {%- if loop.index > 5 %}{% break %}{% endif -%}
  {%- if m.role == 'tool' %}{% continue %}{% endif -%}
  {% generation %}{{ line(m.role, m.content, mark=m.get('name')) }}{% endgeneration %}
  {{- m | tojson }}{{ m | tojson(indent=2) }}{{ m.items() | list | length }}
{% else -%}
nobody
{%- endfor -%}
{%- filter upper %}done {{ messages | map(attribute='role') | join(', ') }}{% endfilter -%}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ 7 // 2 }} {{ 2 ** 5 }}
{{ '%s-%03d' % ('x', 7) }} {{ '{}:{:>4}'.format('a', 3) }} {{ [1, 2] + [3] }} {{ 'ab' * 2 }}
{{ dict(a=1, b=[1]) }} {{ messages[0].content[2:9] }} {{ range(3) | list }} {{ (1, 2) | last }}
{{ {'k': messages | length, 'u': 'é'} | tojson }} {{ tools is none }} {{ 'x' is in ['x'] }}
{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}called{% endcall %}
{% set text %}{{ bos_token }}!{% endset %}{{ text }} {{ 'a b' | title }} {{ 3.14159 | round(2) }}
{{ messages | groupby('role') | map('first') | join('|') }}
{{ 'one\\ntwo' | indent(2) }}
{{ messages | map(attribute='content') | map('length') | sort | first }}
""",
}


def oracle(template: str, messages: list[dict[str, Any]], add: bool) -> str:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), **SPECIAL_TOKENS)
    return tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=add
    )


def chat(template: str) -> ChatTemplate:
    return ChatTemplate(template, special_tokens=SPECIAL_TOKENS)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add", [True, False])
def test_renders_as_transformers_does(name: str, add: bool) -> None:
    for messages in (CHAT, CHAT[1:], CHAT[1:2]):
        expected = oracle(TEMPLATES[name], messages, add)
        assert chat(TEMPLATES[name]).render(messages, add_generation_prompt=add) == expected


def test_the_clock_is_todays() -> None:
    template = "{{ strftime_now('%d %b %Y') }}"
    before, rendered, after = (
        oracle(template, CHAT, False),
        chat(template).render(CHAT),
        oracle(template, CHAT, False),
    )
    assert rendered in (before, after)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    rendered = chat("{{ messages[0].content }}").render([{"role": "user", "content": parts}])
    assert rendered == "one\ntwo"
    takes_parts = chat(
        "{% for one in messages %}{% if one.content is string %}{{ one.content }}"
        "{% else %}{% for part in one.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    assert takes_parts.render([{"role": "user", "content": parts}]) == "onetwo"
    turns = [CHAT[0], {"role": "assistant", "content": parts}, {"role": "odd", "content": parts}]
    assert takes_parts.render(turns) == f"{CHAT[0]['content']}onetwoone\ntwo"


def test_a_text_of_a_subclass_is_a_text() -> None:
    class Role(enum.StrEnum):
        USER = "user"

    rendered = chat("{{ messages[0].role }}").render([{"role": Role.USER, "content": "x"}])
    assert rendered == "user"


def test_a_message_may_have_no_content() -> None:
    calls = [{"function": {"name": "f", "arguments": {"x": [1, 2.5, None, True]}}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    rendered = chat("{{ messages[0].tool_calls[0].function.arguments | tojson }}").render([message])
    assert rendered == '{"x": [1, 2.5, null, true]}'


def test_an_assistant_that_says_nothing_has_no_text() -> None:
    message = {"role": "assistant", "content": None}
    assert chat("[{{ messages[0].content }}]").render([message]) == "[]"
    asks = "{% if messages[0]['content'] is none %}nothing{% else %}text{% endif %}"
    assert chat(asks).render([message]) == "nothing"


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_others_have_to_say_something(role: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"messages\[1\]\.content is NoneType"):
        chat("x").render([{"role": "user", "content": "hi"}, {"role": role, "content": None}])


@pytest.mark.slow
def test_messages_of_few_objects_that_never_end() -> None:
    value: list[Any] = ["x"]
    for _ in range(30):
        value = [value, value]
    with pytest.raises(InvalidRequestError, match="messages are too large"):
        chat("x").render([{"role": "user", "content": "hi", "x": value}])


def test_numbers_of_numpy_are_numbers() -> None:
    message = {"role": "user", "content": "hi", "x": np.int64(3), "y": np.float32(0.5)}
    assert chat("{{ messages[0].x }} {{ messages[0].y }}").render([message]) == "3 0.5"


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "one"}]}]
    chat("{{ messages[0].content }}").render(messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "one"}]}]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hello", "messages is str"),
        (None, "messages is NoneType"),
        ([], "messages is empty"),
        ({"role": "user"}, "messages is dict"),
        (["hello"], r"messages\[0\] is str"),
        ([{}], r"messages\[0\]\.role is None"),
        ([{"role": 5, "content": ""}], r"messages\[0\]\.role is 5"),
        ([CHAT[1], {"role": "user", "content": 5}], r"messages\[1\]\.content is int"),
        ([{"role": "user", "content": {"a": 1}}], "content is dict"),
        ([{"role": "user", "content": ["text"]}], r"content\[0\] is 'str'"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] is 'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text is None"),
        ([{"role": "user", "content": "", "data": b"x"}], r"messages\[0\]\.data is bytes"),
        ([{"role": "user", "content": "", "data": [object()]}], r"data\[0\] is object"),
        ([{"role": "user", "content": "", 5: 1}], "field 5"),
        ([{"role": "user", "content": "", "x": {5: 1}}], r"messages\[0\]\.x is dict"),
    ],
)
def test_messages_of_another_shape_are_refused(messages: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        chat("{{ messages }}").render(messages)


def test_messages_nested_without_end_are_refused() -> None:
    message: dict[str, Any] = {"role": "user", "content": ""}
    message["self"] = message
    with pytest.raises(InvalidRequestError, match="nested more than 32"):
        chat("{{ messages }}").render([message])


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the <weather>.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def test_tools_and_variables_reach_the_template_as_transformers_gives_them() -> None:
    template = (
        "{% if tools %}{{ tools | tojson(indent=4) }}{% endif %}{{ effort | default('none') }}"
        "{% if think is defined and think is false %}<no thoughts>{% endif %}{{ documents }}"
    )
    variables = {"effort": "high", "think": False, "documents": [{"title": "a", "text": "b"}]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), **SPECIAL_TOKENS)
    expected = tokenizer.apply_chat_template(
        CHAT, chat_template=template, tokenize=False, tools=[TOOL], **variables
    )
    assert chat(template).render(CHAT, tools=[TOOL], variables=variables) == expected
    assert chat(template).render(CHAT) == "noneNone"
    assert chat("{{ tools is none }}").render(CHAT, tools=[]) == "True"


def test_tools_are_not_changed() -> None:
    before = json.loads(json.dumps(TOOL))
    chat("{{ tools }}").render(CHAT, tools=(TOOL,))
    assert before == TOOL


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ("weather", "tools is 'weather'"),
        ({"a": 1}, "tools is {'a': 1}; it must be a list"),
        ([TOOL, "weather"], r"tools\[1\] is 'weather'"),
        ([{"a": object()}], r"tools\[0\]\.a is object"),
        ([{"a": "\ud800"}], r"tools\[0\]\.a is .* lone surrogate"),
        ([{"a": CYCLE}], "nested more than 32"),
        ([{"a": ["x" * 2**20] * 300}], "tools are too large"),
    ],
)
def test_tools_of_another_shape_are_refused(tools: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        chat("x").render(CHAT, tools=tools)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ([("a", 1)], r"chat_template_kwargs is \[\('a', 1\)\]; it must be a mapping"),
        ({1: 2}, "chat_template_kwargs is dict with the field 1"),
        ({"a": object()}, r"chat_template_kwargs\.a is object"),
        ({"a": {"b": 10**5000}}, r"chat_template_kwargs\.a\.b is a whole number of"),
        ({"a": CYCLE}, "nested more than 32"),
        ({"a": ["x" * 2**20] * 80}, "they are too large"),
        ({"a b": 1}, "chat_template_kwargs has 'a b'"),
        *(
            ({name: "x"}, f"chat_template_kwargs has '{name}'; names must be")
            for name in ("messages", "tools", "add_generation_prompt", "eos_token", "unk_token")
        ),
        *(({name: "x"}, "functions") for name in ("range", "raise_exception", "self", "loop")),
    ],
)
def test_variables_of_another_shape_are_refused(variables: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        chat("x").render(CHAT, variables=variables)


CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None},
]


def with_arguments(arguments: object) -> list[dict[str, Any]]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [CALLS[0], {**CALLS[1], "tool_calls": [call]}]


WANTS_MAPPING = (
    "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}"
)
WANTS_TEXT = "{% for m in messages %}{% for c in m.tool_calls %}{{ '|' + c.function.arguments }}"
END = "{% endfor %}{% endfor %}"


def test_arguments_are_as_the_template_wants_them() -> None:
    wants_mapping, wants_text = chat(WANTS_MAPPING + END), chat(WANTS_TEXT + END)
    for _ in range(2):
        for arguments in ('{"a":  "é"}', {"a": "é"}):
            assert wants_mapping.render(with_arguments(arguments)) == '{"a": "é"}'
        assert wants_text.render(with_arguments({"a": "é"})) == '|{"a": "é"}'
        assert wants_text.render(with_arguments('{"a":  "é"}')) == '|{"a":  "é"}'


def test_arguments_that_the_template_can_do_nothing_with_are_the_requests_fault() -> None:
    template = chat("{% for m in messages %}{% for c in m.tool_calls %}"
                    "{{ c.function.arguments.items() | list }}" + END)  # fmt: skip
    assert template.render(with_arguments({"a": 1})) == "[('a', 1)]"
    said = r"messages\[1\]\.tool_calls\[0\]\.function\.arguments is no JSON object"
    with pytest.raises(InvalidRequestError, match=said):
        template.render(with_arguments('{"a": x'))


def test_what_the_template_refuses_is_the_requests_fault() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        chat(TEMPLATES["alternating"]).render([CHAT[1], CHAT[1]])


def test_a_field_that_the_template_needs_and_has_not_got() -> None:
    with pytest.raises(InvalidRequestError, match="has no attribute 'tool'"):
        chat("{{ messages[0].tool.name }}").render(CHAT)


def test_chats_with_tools_have_a_template_of_their_own_where_there_is_one() -> None:
    template = ChatTemplate("plain", tool_source="{{ tools[0].name }} for {{ messages[0].role }}")
    assert template.render(CHAT, tools=[{"name": "weather"}]) == "weather for system"
    assert template.render(CHAT) == template.render(CHAT, tools=[]) == "plain"
    only = ChatTemplate(None, tool_source="{{ tools | length }}")
    assert only.render(CHAT, tools=({"name": "weather"},)) == "1"
    with pytest.raises(InvalidRequestError, match="no chat template"):
        only.render(CHAT)
    with pytest.raises(InvalidRequestError, match="tools is 5; it must be a list"):
        template.render(CHAT, tools=5)  # type: ignore[arg-type]


def test_a_model_without_a_template_takes_no_messages() -> None:
    assert not ChatTemplate(None).available
    with pytest.raises(InvalidRequestError, match="no chat template"):
        ChatTemplate(None).render(CHAT)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ ", "not a valid template"),
        ("{% nonsense %}", "unknown tag"),
        ("{{ messages | nonsense }}", "No filter named 'nonsense'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{% import 'os' as os %}", "loads another template"),
        ("{{ ''.__class__.__mro__ }}", "stopped: access to attribute '__class__'"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "end"),
        ("{{ " + "(" * 20_000 + ")" * 20_000 + " }}", "nested too deeply"),
        ("x" * 2**18, "262144 characters"),
    ],
)
def test_a_broken_template_harms_only_chats(template: str, said: str) -> None:
    broken = chat(template)
    assert broken.available
    for _ in range(2):
        with pytest.raises(ModelFormatError, match=said):
            broken.render(CHAT)


def test_threads_share_it() -> None:
    template = chat(TEMPLATES["machinery"])
    chats = [[{"role": "user", "content": f"message {n} " * n}] for n in range(1, 60)]
    expected = [template.render(messages) for messages in chats]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(template.render, chats)) == expected


@pytest.mark.parametrize("content", [None, ""])
def test_null_where_the_probe_does_not_see_it_is_an_empty_text(content: str | None) -> None:
    """The template compares in one place, and takes the length of the content in another."""
    source = (
        "{% for m in messages %}{% if m.content is none %}-{% endif %}"
        "{% if messages | length > 4 %}{{ m.content | length }}{% endif %}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}" + END
    )
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    turns = [CHAT[0], {"role": "assistant", "content": content, "tool_calls": [call]}]
    assert '{"a": 1}' in chat(source).render(turns)
    assert '0{"a": 1}' in chat(source).render(turns * 3)


def test_a_template_is_asked_whether_it_takes_several_calls() -> None:
    one = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    loop = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}" + END
    assert chat("{% for m in messages %}" + loop).takes_several_calls()
    assert not chat("{% for m in messages %}" + one + loop).takes_several_calls()
    assert chat("{% broken").takes_several_calls()
    assert ChatTemplate(None).takes_several_calls()


def with_default_tools(template: str, tool_source: str | None = None) -> ChatTemplate:
    tools = DefaultTools(FORMATS["hermes"])
    return ChatTemplate(template, tool_source=tool_source, default_tools=tools)


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def test_a_template_that_ignores_tools_gets_them_in_the_system_message() -> None:
    asked = [{"role": "user", "content": "hi"}]
    shown = with_default_tools(PLAIN).render(asked, tools=[TOOL])
    assert shown.startswith("<system># Tools\n")
    assert json.dumps(TOOL["function"]) in shown
    assert shown.endswith("<user>hi")
    assert with_default_tools(PLAIN).render(asked) == "<user>hi"
    assert with_default_tools(PLAIN).render(asked, tools=[]) == "<user>hi"
    assert ChatTemplate(PLAIN).render(asked, tools=[TOOL]) == "<user>hi"
    both = with_default_tools(PLAIN, "{{ tools[0].function.name }}")
    assert both.render(asked, tools=[TOOL]) == "weather"
    assert both.takes_tools()
    neither = with_default_tools("no", PLAIN)
    assert neither.render(asked, tools=[TOOL]) == shown
    assert not neither.takes_tools()


def test_what_a_template_without_a_source_takes() -> None:
    nothing = ChatTemplate(None)
    assert not nothing.takes_tools()
    assert nothing.thinking_variables() == ()
    nothing.check()
    broken = ChatTemplate("{% if %}{{ tools }}")
    assert broken.takes_tools()
    assert broken.thinking_variables() == ()
    with pytest.raises(ModelFormatError, match="chat_template: not a valid template"):
        broken.check()


def test_warnings_come_once_for_each_template(caplog: pytest.LogCaptureFixture) -> None:
    asked = [{"role": "user", "content": "hi"}]
    for template in (with_default_tools(PLAIN), with_default_tools(PLAIN)):
        for _ in range(2):
            template.render(asked, tools=[TOOL], variables={"reasoning_effort": "low", "own": 1})
    told = [record.getMessage()[:24] for record in caplog.records]
    assert told == ["reasoning_effort has no ", "the model's chat templat"] * 2
