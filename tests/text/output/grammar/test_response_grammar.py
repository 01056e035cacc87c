from __future__ import annotations

from typing import Any

import pytest
from grammar_follower import Follower
from response_texts import deepseek

from pybatcher.errors import InvalidRequestError
from pybatcher.text.output.formats.formats import FORMATS, ResponseFormat
from pybatcher.text.output.grammar.response_grammar import response_grammar
from pybatcher.text.output.read.parser import parse_response
from pybatcher.text.output.tools.tool_choice import read_tool_choice
from pybatcher.text.output.tools.tools import read_tools, schemas_of

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
                "at": {"$ref": "#/$defs/place"},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
            "$defs": {"place": {"type": "array", "items": {"type": "number"}}},
        },
    },
}
PING = {"type": "function", "function": {"name": "ping"}}
TOOLS = read_tools([WEATHER, PING])
PARIS = ("get_weather", {"city": "Paris", "days": 3})

# By family: a call of get_weather, and two calls that follow each other.
WRITTEN = {
    "hermes": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n'
        "</tool_call>",
        '\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    ),
    "qwen_xml": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
    ),
    "llama3": (
        '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}',
        '; {"name": "ping", "parameters": {}}',
    ),
    "mistral": (
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}',
        "[TOOL_CALLS]ping[ARGS]{}",
    ),
    "mistral_json": (
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        ', {"name": "ping", "arguments": {}}',
    ),
    "harmony": (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city":"Paris","days":3}<|call|>',
        "",
    ),
    "gemma3": (
        '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}',
        '; {"name": "ping", "parameters": {}}',
    ),
    "gemma4": (
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>',
        "<|tool_call>call:ping{}<tool_call|>",
    ),
    "function_gemma": (
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}"
        "<end_function_call>",
        "<start_function_call>call:ping{}<end_function_call>",
    ),
    "deepseek": (
        f"{deepseek('calls begin')}{deepseek('call begin')}function{deepseek('sep')}get_weather\n"
        f'```json\n{{"city": "Paris", "days": 3}}\n```{deepseek("call end")}',
        f"\n{deepseek('call begin')}function{deepseek('sep')}ping\n```json\n{{}}\n```"
        f"{deepseek('call end')}",
    ),
    "granite": (
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        ', {"name": "ping", "arguments": {}}',
    ),
    "granite4": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n'
        "</tool_call>",
        '\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    ),
    "deepseek_v31": (
        f"{deepseek('calls begin')}{deepseek('call begin')}get_weather{deepseek('sep')}"
        f'{{"city": "Paris", "days": 3}}{deepseek("call end")}',
        f"{deepseek('call begin')}ping{deepseek('sep')}{{}}{deepseek('call end')}",
    ),
    "functionary": (
        '<function=get_weather>{"city": "Paris", "days": 3}</function>',
        "<function=ping>{}</function>",
    ),
    "glm": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "<tool_call>ping</tool_call>",
    ),
    "seed_oss": (
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        "\n<seed:tool_call>\n<function=ping>\n</function>\n</seed:tool_call>",
    ),
    "nemotron": (
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        ', {"name": "ping", "arguments": {}}',
    ),
    "tool_calls": (
        '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        ', {"name": "ping", "arguments": {}}',
    ),
    "lfm2": (
        '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        ', {"name": "ping", "arguments": {}}',
    ),
    "internlm2": (
        '<|action_start|><|plugin|>\n{"name": "get_weather", "arguments": {"city": "Paris", '
        '"days": 3}}<|action_end|>',
        '<|action_start|><|plugin|>\n{"name": "ping", "arguments": {}}<|action_end|>',
    ),
}
WRITTEN |= {
    "apriel": WRITTEN["tool_calls"],
    "smollm3": WRITTEN["hermes"],
    "generic": WRITTEN["llama3"],
}
ENDS = {
    "mistral_json": "]",
    "granite": "]<|/tool_call|>",
    "deepseek": deepseek("calls end"),
    "deepseek_v31": deepseek("calls end"),
    "nemotron": "]</TOOLCALL>",
    "tool_calls": "]</tool_calls>",
    "apriel": "]</tool_calls>",
    "lfm2": "]<|tool_call_end|>",
}
MARKERS = {m: i for i, m in enumerate(sorted({m for f in FORMATS.values() for m in f.markers}))}


def grammar(name: str, choice: Any = "required", **options: Any) -> str:
    return response_grammar(FORMATS[name], TOOLS, read_tool_choice(choice, TOOLS), **options)


def test_each_family_is_written() -> None:
    assert set(WRITTEN) == set(FORMATS)


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_a_call_in_the_familys_own_syntax_follows(name: str) -> None:
    one, more = WRITTEN[name]
    end = ENDS.get(name, "")
    required = Follower(grammar(name))
    assert required.follows(one + end)
    assert not required.follows(one.replace("3", "three") + end)
    assert not required.follows(one.replace("get_weather", "get_money") + end)
    assert not required.follows(one.replace("days", "nights") + end)
    assert not required.follows("Sure. " + one + end)
    assert not required.follows("")
    if more:
        assert required.follows(one + more + end)
        alone = Follower(grammar(name, parallel=False))
        assert alone.follows(one + end)
        assert not alone.follows(one + more + end)
    named = {"type": "function", "function": {"name": "ping"}}
    assert not Follower(grammar(name, named)).follows(one + end)


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_what_follows_is_parsed_as_calls(name: str) -> None:
    text = "".join(WRITTEN[name]) + ENDS.get(name, "")
    response = parse_response(text, FORMATS[name], schemas=schemas_of(TOOLS))
    calls = [(call.name, call.arguments) for call in response.tool_calls]
    assert calls == [PARIS, ("ping", {})][: len(calls)]
    assert len(calls) == 1 + bool(WRITTEN[name][1])
    assert not response.content
    assert not response.notes


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_text_may_come_before_calls_that_are_free(name: str) -> None:
    one, more = WRITTEN[name]
    end = ENDS.get(name, "")
    free = Follower(grammar(name, "auto"))
    header = "<|channel|>final<|message|>" if name == "harmony" else ""
    assert free.follows(header + "Just an answer: {1}.\n")
    assert free.follows(one + more + end)
    broken = one.replace("days", "nights") + end
    assert not free.follows(broken)
    if FORMATS[name].calls and FORMATS[name].calls[0].opens:
        assert free.follows("Let me see.\n" + one + end)
        assert not free.follows("Let me see.\n" + broken)


@pytest.mark.parametrize("name", [n for n in sorted(WRITTEN) if FORMATS[n].think])
def test_reasoning_comes_first(name: str) -> None:
    think = FORMATS[name].think[0]
    one = WRITTEN[name][0] + ENDS.get(name, "")
    closed = f"Hm.\n{think.close}\n\n"
    assert Follower(grammar(name)).follows(think.open + closed + one)
    assert Follower(grammar(name)).follows(f"{think.close}\n{one}")
    inside = Follower(grammar(name, in_reasoning=True))
    assert inside.follows(closed + one)
    assert not inside.follows(one)
    assert Follower(grammar(name, "auto", in_reasoning=True)).follows(closed + "Yes.")


@pytest.mark.parametrize("name", ["llama3", "gemma3", "generic"])
def test_bare_json_may_be_a_list_and_have_either_key(name: str) -> None:
    paris = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
    ping = '{"name": "ping", "parameters": {}}'
    for choice in ("required", "auto"):
        follower = Follower(grammar(name, choice))
        for text in (paris, f"[{paris}]", f"[{paris}, {ping}]", f"{ping}; {paris}"):
            assert follower.follows(text), text
        assert not follower.follows(f"[{paris}")
        assert not follower.follows(f"[{paris.replace('days', 'nights')}]")
    assert Follower(grammar(name, "auto")).follows('[{"a": 1}]')
    alone = Follower(grammar(name, parallel=False))
    assert alone.follows(f"[{paris}]")
    assert not alone.follows(f"[{paris}, {ping}]")


def test_calls_of_mistral_may_have_ids() -> None:
    arguments = '{"city": "Paris", "days": 3}'
    follower = Follower(grammar("mistral"))
    assert follower.follows(f"[TOOL_CALLS]get_weather[CALL_ID]aB3dE6gH9[ARGS]{arguments}")
    assert not follower.follows(f"[TOOL_CALLS]get_weather[CALL_ID]aB3[ARGS]{arguments}")
    call = f'{{"name": "get_weather", "arguments": {arguments}, "id": "aB3dE6gH9"}}'
    assert Follower(grammar("mistral_json")).follows(f"[TOOL_CALLS][{call}, {call}]")
    hermes = Follower(grammar("hermes"))
    assert not hermes.follows(f"<tool_call>\n{call}\n</tool_call>")


def test_the_recipient_of_harmony_may_come_first() -> None:
    text = " to=functions.get_weather<|channel|>commentary json<|message|>"
    follower = Follower(grammar("harmony"))
    assert follower.follows(text + '{"city":"Paris","days":3}<|call|>')
    assert not follower.follows(text.replace("weather", "money") + '{"city":"Paris","days":3}')


def test_harmony_has_reasoning_and_comments_first() -> None:
    one = WRITTEN["harmony"][0]
    rest = "Hm.<|end|><|start|>assistant"
    assert Follower(grammar("harmony")).follows(f"<|channel|>analysis<|message|>{rest}{one}")
    inside = Follower(grammar("harmony", in_reasoning=True))
    assert inside.follows(f"{rest}<|channel|>commentary<|message|>{rest}{one}")
    assert not inside.follows(one)


@pytest.mark.parametrize("name", ["qwen_xml", "gemma4"])
@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"city": "a\nb </x>", "days": -1, "unit": "C", "at": [1, 2.5]}, True),
        ({"city": "", "days": 0, "at": []}, True),
        ({"city": "a", "days": 1.5}, False),
        ({"city": "a", "days": 1, "unit": "K"}, False),
        ({"city": "a", "days": 1, "at": ["x"]}, False),
        ({"city": "a"}, False),
    ],
)
def test_arguments_that_are_not_json_follow_the_schema(
    name: str, arguments: dict[str, Any], fits: bool
) -> None:
    if name == "qwen_xml":
        values = {k: v if isinstance(v, str) else str(v) for k, v in arguments.items()}
        values = {k: v.replace("'", '"') for k, v in values.items()}
        order = [k for k in ("city", "days", "unit", "at") if k in values]
        inside = "".join(f"<parameter={k}>\n{values[k]}\n</parameter>\n" for k in order)
        text = f"<tool_call>\n<function=get_weather>\n{inside}</function>\n</tool_call>"
    else:
        quoted = {
            k: f'<|"|>{v}<|"|>' if isinstance(v, str) else str(v).replace(" ", "")
            for k, v in arguments.items()
        }
        inside = ",".join(f"{k}:{quoted[k]}" for k in sorted(quoted))
        text = f"<|tool_call>call:get_weather{{{inside}}}<tool_call|>"
    assert Follower(grammar(name)).follows(text) is fits
    if fits:
        response = parse_response(text, FORMATS[name], schemas=schemas_of(TOOLS))
        assert response.tool_calls[0].arguments == arguments


ODD_SCHEMAS: list[dict[str, Any]] = [
    {},
    {"additionalProperties": {"type": "integer"}},
    {"properties": {"a": True, "b": {}}},
    {"properties": {"a": {"type": ["string", "null"]}, 'k"\n': {"const": 7}}},
    {"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
    {"properties": {"a": {"type": "object", "properties": {"b": {"type": "boolean"}}}}},
    {"properties": {"a": {"type": "array", "items": {"enum": [1, "é", None, True, 2.5]}}}},
    {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "number"}}},
    {
        "properties": {"a": {"$ref": "#/$defs/node"}},
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "left": {"$ref": "#/$defs/node"},
                    "right": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
            }
        },
    },
]


@pytest.mark.parametrize("name", sorted(WRITTEN))
@pytest.mark.parametrize("schema", ODD_SCHEMAS, ids=range(len(ODD_SCHEMAS)))
def test_schemas_of_all_kinds_make_a_valid_grammar(name: str, schema: dict[str, Any]) -> None:
    tools = read_tools([{"name": "f", "parameters": schema}, {"name": "g"}])
    for mode in ("auto", "required"):
        Follower(response_grammar(FORMATS[name], tools, read_tool_choice(mode, tools)))


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_markers_that_are_special_tokens_are_named_by_their_ids(name: str) -> None:
    for choice in ("auto", "required"):
        lark = grammar(name, choice, special_tokens=MARKERS)
        Follower(lark)
        for marker in FORMATS[name].markers:
            assert marker not in lark.replace("<[", "")
        assert ("<[" in lark) is (name != "gemma3")  # which has no special tokens


def test_a_format_without_calls_has_no_grammar_of_them() -> None:
    with pytest.raises(InvalidRequestError, match="has no calls of tools"):
        response_grammar(ResponseFormat("own"), TOOLS, read_tool_choice("auto", TOOLS))


@pytest.mark.parametrize(
    "schema",
    [None, {}, {"type": "object"}, {"properties": {}, "required": [], "title": "x"}],
    ids=str,
)
@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_a_tool_without_parameters_takes_no_arguments(name: str, schema: Any) -> None:
    tools = read_tools([{"name": "get_weather", "parameters": schema}])
    choice = read_tool_choice("required", tools)
    follower = Follower(response_grammar(FORMATS[name], tools, choice))
    text = WRITTEN[name][0] + ENDS.get(name, "")
    assert not follower.follows(text)
    for arguments in (
        *('{"city": "Paris", "days": 3}', '{"city":"Paris","days":3}'),
        *("<parameter=city>Paris</parameter>\n", "<parameter=days>3</parameter>\n"),
        *("<parameter=city>\nParis\n</parameter>\n", "<parameter=days>\n3\n</parameter>\n"),
        *("<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n",),
        *("<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n",),
        *('{city:<|"|>Paris<|"|>,days:3}', "{city:<escape>Paris<escape>,days:3}"),
    ):
        text = text.replace(arguments, "{}" if arguments.startswith("{") else "")
    assert follower.follows(text), text


def test_a_tool_that_allows_any_arguments_takes_them() -> None:
    tools = read_tools([{"name": "f", "parameters": {"additionalProperties": True}}])
    follower = Follower(response_grammar(FORMATS["hermes"], tools, read_tool_choice(None, tools)))
    assert follower.follows('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
