"""`ResponseFormat`: the syntax of reasoning and tool calls of a family of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "DEEPSEEK_SEPARATOR",
    "FORMATS",
    "HARMONY_MARKERS",
    "CallForm",
    "CallSyntax",
    "ResponseFormat",
    "ThinkMarkers",
]

CallForm = Literal[
    "json",
    "xml",
    "function_json",
    "arg_keys",
    "mistral",
    "deepseek",
    "deepseek_bare",
    "gemma",
    "python",
]
"""How a call is written:

json       {"name": ..., "arguments": {...}}, or a list of those
xml        <function=NAME><parameter=KEY>value</parameter></function>
function_json  NAME>{...}</function>
arg_keys   NAME<arg_key>KEY</arg_key><arg_value>value</arg_value>, and the marker that closes
mistral    NAME[ARGS]{...}, or a JSON list
deepseek   function<SEPARATOR>NAME, then {...} in a fenced block
deepseek_bare  NAME<SEPARATOR>{...}; a reader of either reads both
gemma      call:NAME{key:<|"|>text<|"|>,other:1}
python     NAME(key=value), or a list of those
"""


@dataclass(frozen=True, slots=True)
class ThinkMarkers:
    """Markers that enclose reasoning.

    anywhere: reasoning may come after content too; else at the start of a response only, so that a
        text about such a marker stays a text.
    """

    open: str
    close: str
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """The syntax of a call, or of several in a row.

    opens: texts that begin it; a grammar writes the first. Empty if no text does, so that only the
        start of a response can be a call.
    closes: texts that may end it; a grammar writes the first.
    forms: forms of the call inside; a grammar writes the first.
    listed: a grammar writes a list of calls, not a block for each.
    lead, tail: blanks that the model writes after `opens` and before `closes`.
    between: text that the model writes between two calls; blanks may be left out.
    around: texts that the model writes before the first call and after the last one.
    quote: the text that encloses a text, in the form "gemma".
    name_keys, arguments_keys: keys of the JSON object; a grammar writes the first.
    exact: JSON counts only with a name, arguments and no other keys, so that an answer in JSON
        stays a text. Always so if no text opens a call.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...] = ()
    forms: tuple[CallForm, ...] = ("json",)
    listed: bool = False
    lead: str = ""
    tail: str = ""
    between: str = ""
    around: tuple[str, str] = ("", "")
    quote: str = ""
    name_keys: tuple[str, ...] = ("name",)
    arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    exact: bool = False

    @property
    def opening(self) -> str:
        """The text that a grammar writes before a call; "" if no text opens it."""
        return self.around[0] + (self.opens[0] if self.opens else "")


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The syntax of the responses of a family of models.

    dropped: markers without a meaning here, which are no text.
    harmony: a response is a list of messages in channels; `think` and `calls` do not apply.
    call_ids: "prefixed": `call_0`; "mistral": nine letters and digits, which Mistral's chat
        templates require.
    """

    name: str
    think: tuple[ThinkMarkers, ...] = ()
    calls: tuple[CallSyntax, ...] = ()
    dropped: tuple[str, ...] = ()
    harmony: bool = False
    call_ids: Literal["prefixed", "mistral"] = "prefixed"

    @property
    def markers(self) -> frozenset[str]:
        """The texts that the parser must see.

        Some are special tokens of some tokenizers: a detokenizer that skips special tokens must
            keep these.
        """
        found = {*self.dropped, *(HARMONY_MARKERS if self.harmony else ())}
        for think in self.think:
            found |= {think.open, think.close}
        for syntax in self.calls:
            found |= {*syntax.opens, *syntax.closes, *filter(None, [syntax.quote])}
            for form in syntax.forms:
                found |= _INNER_MARKERS.get(form, frozenset())
        return frozenset(found)

    @property
    def opening_of_calls(self) -> str:
        """The text that begins calls; "" if none does."""
        if self.harmony:
            return "<|channel|>commentary to="
        return self.calls[0].opening if self.calls else ""

    def opens_reasoning(self, prompt: str) -> bool:
        """Return whether a rendered prompt ends inside reasoning.

        The chat templates of DeepSeek-R1 and Qwen3.5 end a prompt with an opened <think>: the
        response then begins with reasoning, and has the closing marker only. The result is the
        argument `in_reasoning` of `ResponseParser`. prompt: its tail is enough.
        """
        end = prompt.rstrip()
        if self.harmony:
            return end.endswith("<|channel|>analysis<|message|>")
        return any(end.endswith(think.open) for think in self.think)


def _token(words: str) -> str:
    """Return a special token of DeepSeek, with a wide bar at both ends and blocks as blanks."""
    return f"<\uff5ctool\u2581{words.replace(' ', chr(0x2581))}\uff5c>"


DEEPSEEK_SEPARATOR = _token("sep")

HARMONY_MARKERS = (
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)

_INNER_MARKERS = {
    "mistral": frozenset({"[ARGS]", "[CALL_ID]"}),
    "deepseek": frozenset({DEEPSEEK_SEPARATOR}),
    "deepseek_bare": frozenset({DEEPSEEK_SEPARATOR}),
    "arg_keys": frozenset({"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}),
}

_THINK = ThinkMarkers("<think>", "</think>")
_TOOL_CALL = CallSyntax(
    ("<tool_call>",), ("</tool_call>",), ("json", "xml"), lead="\n", tail="\n", between="\n"
)
_XML_CALL = CallSyntax(
    ("<tool_call>", "<function="),
    ("</tool_call>",),
    ("xml", "json"),
    lead="\n",
    tail="\n",
    between="\n",
)
_BARE_CALL = CallSyntax(
    (),
    arguments_keys=("parameters", "arguments"),
    forms=("json", "python"),
    between="; ",
    exact=True,
)
_FENCED_CALL = CallSyntax(("```json",), ("```",), exact=True)
_PYTHON_TAG = CallSyntax(
    ("<|python_tag|>",),
    ("<|eom_id|>",),
    ("json", "python"),
    arguments_keys=("parameters", "arguments"),
)
_DEEPSEEK_AROUND = (_token("calls begin"), _token("calls end"))
_TOOL_CALLS = CallSyntax(("<tool_calls>",), ("</tool_calls>",), listed=True)
_GRANITE_LIST = CallSyntax(("<|tool_call|>",), ("<|/tool_call|>",), listed=True)

_ALL = [
    ResponseFormat("hermes", (_THINK,), (_TOOL_CALL,)),
    ResponseFormat("qwen_xml", (_THINK,), (_XML_CALL,)),
    ResponseFormat("smollm3", (_THINK,), (_TOOL_CALL,)),
    ResponseFormat(
        "llama3",
        (_THINK,),
        (
            _BARE_CALL,
            _PYTHON_TAG,
        ),
    ),
    ResponseFormat(
        "functionary",
        (_THINK,),
        (CallSyntax(("<function=",), forms=("function_json",)), _PYTHON_TAG),
    ),
    ResponseFormat(
        "mistral",
        (ThinkMarkers("[THINK]", "[/THINK]"), _THINK),
        (CallSyntax(("[TOOL_CALLS]",), forms=("mistral", "json")),),
        call_ids="mistral",
    ),
    ResponseFormat(
        "mistral_json",
        (ThinkMarkers("[THINK]", "[/THINK]"), _THINK),
        (CallSyntax(("[TOOL_CALLS]",), forms=("json", "mistral"), listed=True, lead=" "),),
        call_ids="mistral",
    ),
    ResponseFormat("harmony", harmony=True),
    ResponseFormat(
        "gemma3",
        calls=(
            _BARE_CALL,
            CallSyntax(
                ("```tool_code", "```tool_call", "```function_call"),
                ("```",),
                ("python", "json"),
            ),
            _FENCED_CALL,
        ),
    ),
    ResponseFormat(
        "gemma4",
        (ThinkMarkers("<|channel>thought", "<channel|>", anywhere=True),),
        (CallSyntax(("<|tool_call>",), ("<tool_call|>",), ("gemma",), quote='<|"|>'),),
    ),
    ResponseFormat(
        "function_gemma",
        calls=(
            CallSyntax(
                ("<start_function_call>",),
                ("<end_function_call>",),
                ("gemma",),
                quote="<escape>",
            ),
        ),
    ),
    ResponseFormat(
        "deepseek",
        (_THINK,),
        (
            CallSyntax(
                (_token("call begin"),),
                (_token("call end"),),
                ("deepseek",),
                between="\n",
                around=_DEEPSEEK_AROUND,
            ),
        ),
        dropped=_DEEPSEEK_AROUND,
    ),
    ResponseFormat(
        "deepseek_v31",
        (_THINK,),
        (
            CallSyntax(
                (_token("call begin"),),
                (_token("call end"),),
                ("deepseek_bare",),
                around=_DEEPSEEK_AROUND,
            ),
        ),
        dropped=_DEEPSEEK_AROUND,
    ),
    ResponseFormat(
        "granite", (_THINK,), (_GRANITE_LIST, _TOOL_CALL), dropped=("<response>", "</response>")
    ),
    ResponseFormat("granite4", (_THINK,), (_TOOL_CALL, _GRANITE_LIST)),
    ResponseFormat(
        "glm",
        (_THINK,),
        (CallSyntax(("<tool_call>",), ("</tool_call>",), ("arg_keys", "json"), between="\n"),),
    ),
    ResponseFormat(
        "seed_oss",
        (ThinkMarkers("<seed:think>", "</seed:think>"),),
        (
            CallSyntax(
                ("<seed:tool_call>",),
                ("</seed:tool_call>",),
                ("xml",),
                lead="\n",
                tail="\n",
                between="\n",
            ),
        ),
    ),
    ResponseFormat(
        "nemotron", (_THINK,), (CallSyntax(("<TOOLCALL>",), ("</TOOLCALL>",), listed=True),)
    ),
    ResponseFormat("tool_calls", (_THINK,), (_TOOL_CALLS,)),
    ResponseFormat(
        "apriel",
        (ThinkMarkers("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),),
        (_TOOL_CALLS,),
    ),
    ResponseFormat(
        "lfm2",
        (_THINK,),
        (
            CallSyntax(
                ("<|tool_call_start|>",), ("<|tool_call_end|>",), ("json", "python"), listed=True
            ),
        ),
    ),
    ResponseFormat(
        "internlm2",
        (_THINK,),
        (CallSyntax(("<|action_start|><|plugin|>",), ("<|action_end|>",), lead="\n"),),
    ),
    ResponseFormat("generic", (_THINK,), (_BARE_CALL, _TOOL_CALL, _FENCED_CALL)),
]

FORMATS: Mapping[str, ResponseFormat] = {one.name: one for one in _ALL}
"""All families by their names."""
