"""`ChatReader`: what a chat asks for, the form of its response, and what reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_model import MARKERS, chat_model

from pybatcher import InvalidRequestError
from pybatcher.calls.chat_settings import ChatSettings
from pybatcher.loading import open_model
from pybatcher.params import StructuredOutput
from pybatcher.serving.chats import ChatReader
from pybatcher.testing.checkpoints import make_tokenizer
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler
from pybatcher.text.output import FORMATS

TOOL = {"name": "ping", "parameters": {"type": "object", "properties": {}}}
FORM = StructuredOutput("regex", "a+")
PROMPT = (1, 2, 3)


def reader(
    path: Path | None, format: str, template: str = "", *, takes_several: bool = True
) -> ChatReader:
    parts = open_model(path).tokenizer
    tokenizer = Tokenizer(parts.backend, eos_token_ids=parts.eos_token_ids)
    return ChatReader(tokenizer, FORMATS[format], template, lambda: takes_several)


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> ChatReader:
    return reader(chat_model(tmp_path_factory.mktemp("chat")), "hermes")


def form(
    own: ChatReader, given: StructuredOutput | None, *, inside: bool = False, **asked: Any
) -> Any:
    return own.form(own.read(ChatSettings(**asked)), given, inside)


def test_without_reasoning_and_calls_a_form_is_what_was_given() -> None:
    plain = reader(None, "generic", "{{ messages }}")
    for tools in (None, [TOOL]):
        assert form(plain, None, tools=tools) is None
    assert form(plain, FORM) is FORM
    assert form(plain, FORM, tools=[TOOL], tool_choice="none") is FORM
    assert form(plain, None, max_reasoning_tokens=5) is None  # it does not think


def test_a_template_that_names_a_marker_is_of_a_model_that_may_think() -> None:
    may = reader(None, "generic", "... <think> ...")
    assert form(may, FORM).kind == "grammar"
    assert form(may, FORM, enable_thinking=False) is FORM
    assert form(may, None) is None


@pytest.mark.parametrize(
    ("asked", "given", "field"),
    [
        ({}, FORM, "regex"),
        ({"tools": [TOOL]}, FORM, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, None, "tools"),
        ({"tools": [TOOL | {"strict": True}]}, None, "tools"),
        ({"tools": [TOOL], "max_reasoning_tokens": 5}, None, "max_reasoning_tokens"),
        ({"max_reasoning_tokens": 5}, FORM, "regex"),
    ],
)
def test_what_a_grammar_is_of(
    thinking: ChatReader, asked: dict[str, Any], given: StructuredOutput | None, field: str
) -> None:
    made = form(thinking, given, **asked)
    assert (made.kind, made.field) == ("grammar", field)
    assert ("max_tokens=5" in made.text) is ("max_reasoning_tokens" in asked)


def test_where_no_call_is_allowed_the_prompt_has_no_tools(thinking: ChatReader) -> None:
    asked = {"tools": [TOOL], "tool_choice": "none"}
    assert thinking.read(ChatSettings(**asked)).rendered_tools() is None
    assert thinking.read(ChatSettings(tools=[TOOL])).rendered_tools()
    made = form(thinking, None, **asked)  # a token opens a call, and no text does
    assert (made.kind, made.field) == ("grammar", "tool_choice")
    assert form(reader(None, "hermes"), None, **asked) is None  # texts open a call


@pytest.mark.parametrize("arguments", ["{}", "{oh", '{"a'])
def test_a_call_that_is_not_allowed_is_no_text(thinking: ChatReader, arguments: str) -> None:
    chat = thinking.read(ChatSettings(tools=[TOOL], tool_choice="none"))
    response = thinking.response(chat, PROMPT, 1, in_reasoning=False)
    call = f'<tool_call>\n{{"name": "ping", "arguments": {arguments}'
    is_cut = arguments == '{"a'
    end = "" if is_cut else "}\n</tool_call>"
    parts = [response.feed(letter, is_last=False) for letter in f"Well. {call}{end}"]
    parts.append(response.feed("", is_last=True, is_cut=is_cut))
    text = "".join(part.text for part in parts)
    assert (text if arguments == "{}" else text[:5], response.tool_calls) == ("Well.", ())
    assert "<tool_call>" not in text
    assert not any(part.tool_calls for part in parts)
    assert len(response.notes) == 1


def test_calls_of_the_models_own_accord_have_no_grammar(thinking: ChatReader) -> None:
    assert form(thinking, None, tools=[TOOL]) is None
    assert form(thinking, None) is None


def test_markers_that_are_tokens_are_known_by_their_ids(thinking: ChatReader) -> None:
    assert set(thinking.markers) == set(MARKERS)
    assert reader(None, "hermes").markers == {}


def test_a_limit_where_the_marker_is_no_token_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="max_reasoning_tokens: the model ends its"):
        form(reader(None, "hermes", "<think>"), None, max_reasoning_tokens=5)


HARMONY = "hm<|end|><|start|>assistant"
FREE_CALLS = {
    "hermes": 'hm</think>\n\nWell.<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    "mistral": "hm[/THINK][TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]pong[ARGS]{",
    "deepseek_v31": "hm</think>So.<BARtool▁calls▁beginBAR><BARtool▁call▁beginBAR>ping"
    "<BARtool▁sepBAR>{}<BARtool▁call▁endBAR><BARtool▁calls▁endBAR>".replace("BAR", "\uff5c"),
    "harmony": HARMONY
    + "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|>",
    "harmony, as its template": HARMONY
    + " to=functions.ping<|channel|>commentary json<|message|>{}<|call|>",
}


@pytest.mark.parametrize("name", FREE_CALLS)
@pytest.mark.parametrize("special", [False, True])
def test_a_limit_of_reasoning_leaves_tokens_of_calls_to_the_model(name: str, special: bool) -> None:
    pytest.importorskip("llguidance")
    format = FORMATS[name.split(",")[0]]
    backend = make_tokenizer()
    (backend.add_special_tokens if special else backend.add_tokens)(sorted(format.markers))
    tokenizer = Tokenizer(backend, eos_token_ids=[1])
    own = ChatReader(tokenizer, format, "", lambda: True)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, own.markers.values())
    asked = {"max_reasoning_tokens": 5, "tools": [TOOL]}

    def follows(made: StructuredOutput, text: str) -> bool:
        try:
            compiler.matcher(made, tokenizer.encode(text, add_special_tokens=False))
        except InvalidRequestError:
            return False
        return True

    free = form(own, None, inside=True, **asked)
    assert follows(free, FREE_CALLS[name])
    assert not follows(free, "too long a reasoning. " * 9 + FREE_CALLS[name])
    for again in (*(one.open for one in format.think), "<|start|>"):
        if again in own.markers:
            assert not follows(free, FREE_CALLS[name] + again), "the limit is of all reasoning"
    for without in ({"tools": []}, {"tool_choice": "none"}):
        plain = form(own, None, inside=True, **{**asked, **without})
        assert not follows(plain, FREE_CALLS[name])


def test_a_prompt_may_end_inside_reasoning(thinking: ChatReader) -> None:
    ids = thinking.markers
    assert thinking.begins_inside_reasoning((5, ids["<think>"]))
    assert not thinking.begins_inside_reasoning((5, ids["<think>"], ids["</think>"]))
    assert not thinking.begins_inside_reasoning((5,))


def test_ids_of_calls_follow_from_the_prompt_and_the_seed(thinking: ChatReader) -> None:
    chat = thinking.read(ChatSettings(tools=[TOOL]))
    text = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'

    def ids(prompt: tuple[int, ...], seed: int) -> list[str]:
        response = thinking.response(chat, prompt, seed, in_reasoning=False)
        response.feed(text + text, is_last=True)
        return [call.id for call in response.tool_calls]

    first = ids(PROMPT, 7)
    assert len(set(first)) == 2
    assert ids(PROMPT, 7) == first
    assert not set(first) & {*ids(PROMPT, 8), *ids((*PROMPT, 4), 7)}
    assert ids(PROMPT, 2**64 - 1) != ids(PROMPT, 0)


def test_a_response_that_may_have_one_call_is_over_with_it(thinking: ChatReader) -> None:
    chat = thinking.read(ChatSettings(tools=[TOOL], parallel_tool_calls=False))
    response = thinking.response(chat, PROMPT, 1, in_reasoning=False)
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    part = response.feed(f"Well. {call}{call} So.", is_last=True)
    assert (part.text, len(response.tool_calls), response.is_over) == ("Well.", 1, True)
    assert response.feed("more", is_last=True) == ("", "", ())


def test_a_call_that_is_none_after_all_is_void(thinking: ChatReader) -> None:
    chat = thinking.read(ChatSettings(tools=[TOOL]))
    response = thinking.response(chat, PROMPT, 1, in_reasoning=True)
    part = response.feed("I call.</think>", is_last=False)
    assert part.reasoning == "I call."
    text = '<tool_call>\n{"name": "ping", "arguments": {"a": oh}}\n</tool_call>'
    parts = [response.feed(letter, is_last=False) for letter in text]
    parts.append(response.feed("", is_last=True))
    deltas = [delta for part in parts for delta in part.tool_calls]
    assert deltas[0].name == "ping"
    assert deltas[-1].note
    assert deltas[-1].call is None
    assert "".join(part.text for part in parts) == text
    assert (response.tool_calls, len(response.notes)) == ((), 1)


ODD = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize(
    "format",
    [name for name, one in FORMATS.items() if one.calls and one.calls[0].forms[0] != "gemma"],
)
def test_only_a_strict_tool_is_refused_for_its_schema(format: str) -> None:
    own = reader(None, format)
    odd = {"name": "odd", "parameters": ODD}
    asked = {"tools": [TOOL, odd], "tool_choice": "required"}
    assert form(own, None, **asked).field == "tools"
    with pytest.raises(InvalidRequestError) as raised:
        form(own, None, **asked | {"tools": [TOOL, odd | {"strict": True}]})
    assert raised.value.field == "tools[1]"
    assert str(raised.value).startswith("tools[1].parameters.properties.a has uniqueItems, which")


def test_a_large_schema_has_a_looser_form_for_the_case_that_it_takes_too_long() -> None:
    own = reader(None, "hermes")
    large = {"type": "object", "properties": {"a": {"enum": ["x" * 20_000]}}}
    asked = {"tools": [TOOL, {"name": "big", "parameters": large}], "tool_choice": "required"}
    made = form(own, None, **asked)
    assert len(made.looser) < 2000 < len(made.text)
    assert '"big"' in made.looser.replace("\\", "")
    assert not form(own, None, tools=[TOOL], tool_choice="required").looser
    asked["tools"] = [asked["tools"][1] | {"strict": True}]
    assert not form(own, None, **asked).looser


@pytest.mark.parametrize("takes_several", [True, False])
def test_a_response_has_as_many_calls_as_the_template_takes(takes_several: bool) -> None:
    own = reader(None, "llama3", takes_several=takes_several)
    assert own.read(ChatSettings(tools=[TOOL])).parallel is takes_several
    assert not own.read(ChatSettings(tools=[TOOL], parallel_tool_calls=False)).parallel
