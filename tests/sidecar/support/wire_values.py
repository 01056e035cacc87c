"""Values for property tests of the wire: calls, results, and whatever a peer may send."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, get_args

import msgpack
from hypothesis import strategies as st

from pybatcher.calls.call import Call, CallOptions
from pybatcher.calls.chat_settings import CHAT_OPTIONS, ChatSettings
from pybatcher.calls.completion import (
    Completion,
    FinishReason,
    Piece,
    Timeline,
    TokenLogprob,
    Usage,
)
from pybatcher.params import OF_MODELS, SamplingParams
from pybatcher.text.output import plain_tools
from pybatcher.text.tool_call import ToolCall, ToolCallDelta

TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TOKENS: Final = st.lists(st.integers(0, 2**31 - 1), max_size=20).map(tuple)
FLOATS: Final = st.floats(allow_nan=False)
LOGPROBS: Final = st.floats(max_value=0.0, allow_nan=False)
COUNTS: Final = st.integers(0, 2**40)
IDS: Final = st.one_of(st.none(), TEXTS, st.integers(-(2**63), 2**64 - 1))


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    """Any that there can be, all fields."""
    max_tokens = draw(st.integers(1, 2**31 - 1))
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=draw(st.floats(0.0, 100.0) | st.integers(0, 100)),
        top_k=draw(st.integers(0, 2**31 - 1)),
        top_p=draw(st.floats(0.0, 1.0, exclude_min=True)),
        min_p=draw(st.floats(0.0, 1.0)),
        seed=draw(st.none() | st.integers(0, 2**64 - 1)),
        stop=draw(st.lists(TEXTS.filter(bool), max_size=64)),
        stop_token_ids=draw(TOKENS),
        ignore_eos=draw(st.booleans()),
        min_tokens=draw(st.integers(0, max_tokens)),
        repetition_penalty=draw(st.floats(0.0, 100.0, exclude_min=True)),
        presence_penalty=draw(st.floats(-100.0, 100.0)),
        frequency_penalty=draw(st.floats(-100.0, 100.0)),
        logit_bias=draw(
            st.none() | st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-1000.0, 1000.0))
        ),
        logprobs=draw(st.none() | st.integers(0, 32)),
        skip_special_tokens=draw(st.booleans()),
        n=draw(st.integers(1, 64)),
        of_model=draw(st.lists(st.sampled_from(OF_MODELS), max_size=5)),
    )


TRACE: Final = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "a=b",
}
BESIDE: Final = st.fixed_dictionaries(
    {
        "priority": st.integers(-1000, 1000),
        # In eighths of a second: those are exact in milliseconds too.
        "timeout": st.none() | st.integers(1, 2**40).map(lambda eighths: eighths / 8),
        "namespace": st.none() | TEXTS,
        "tenant": st.sampled_from((None, "Nina", "Nina\nphone")),
        "trace_headers": st.sampled_from((None, {}, TRACE)),
    }
)
BESIDES: Final = BESIDE.map(lambda fields: CallOptions(**fields))
PROMPTS: Final = TEXTS | st.lists(st.integers(0, 2**31 - 1), max_size=20)
PLAIN: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
MESSAGES: Final = st.lists(st.dictionaries(TEXTS, PLAIN, max_size=4), max_size=4)


TOOLS: Final = st.lists(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=1, max_size=3, unique=True
).map(
    lambda names: plain_tools(
        [{"name": name, "parameters": {"properties": {"a": {}}}, "strict": True} for name in names]
    )
)
CHATS: Final = st.builds(
    ChatSettings,
    tools=st.none() | TOOLS,
    tool_choice=st.sampled_from([None, "auto", "required", {"name": "a"}]),
    parallel_tool_calls=st.booleans(),
    enable_thinking=st.none() | st.booleans(),
    reasoning_effort=st.none() | TEXTS,
    max_reasoning_tokens=st.none() | st.integers(1, 2**31),
    chat_template_kwargs=st.none() | st.dictionaries(TEXTS, PLAIN, max_size=4),
)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Any that can be sent, in the form in which it is read."""
    is_chat = draw(st.booleans())
    return Call(
        content=draw(MESSAGES if is_chat else PROMPTS),
        chat=draw(CHATS) if is_chat else None,
        params=draw(sampling_params()),
        sampling={},
        output=draw(TOKENS),
        **draw(BESIDE),
    )


TOP_LOGPROBS: Final = st.lists(st.tuples(st.integers(0, 2**31 - 1), LOGPROBS), max_size=4).map(
    tuple
)
TOKEN_LOGPROBS: Final = st.none() | st.lists(
    st.builds(TokenLogprob, st.integers(0, 2**31 - 1), LOGPROBS, TOP_LOGPROBS, st.booleans()),
    max_size=4,
).map(tuple)
ENDS: Final = st.sampled_from(get_args(FinishReason))
ARGUMENTS: Final = st.dictionaries(
    st.text(), st.recursive(st.integers() | st.text() | st.none(), st.lists), max_size=3
)
TOOL_CALLS: Final = st.builds(ToolCall, TEXTS, TEXTS, ARGUMENTS, TEXTS, TEXTS, is_cut=st.booleans())
TOOL_CALL_DELTAS: Final = st.builds(ToolCallDelta, COUNTS, call=st.none() | TOOL_CALLS) | st.builds(
    ToolCallDelta, COUNTS, TEXTS, TEXTS.filter(bool), TEXTS, note=TEXTS
)
PIECES: Final = st.builds(
    Piece,
    TEXTS,
    TOKENS,
    TOKEN_LOGPROBS,
    st.none() | ENDS,
    st.integers(0, 63),
    TEXTS,
    st.lists(TOOL_CALL_DELTAS, max_size=3).map(tuple),
)


def completions(others: bool = True) -> st.SearchStrategy[Completion]:
    """Any there can be; with `n` > 1 too."""
    counts = {field.name: COUNTS for field in fields(Usage)}
    return st.builds(
        Completion,
        text=TEXTS,
        token_ids=TOKENS,
        finish_reason=ENDS,
        usage=st.builds(Usage, **counts),
        timeline=st.builds(
            Timeline,
            submitted=FLOATS,
            admitted=FLOATS,
            first_token=FLOATS,
            finished=FLOATS,
            token_times=st.lists(FLOATS, max_size=4).map(tuple),
            preemptions=COUNTS,
            recomputed_tokens=COUNTS,
        ),
        logprobs=TOKEN_LOGPROBS,
        other_choices=st.lists(completions(False), max_size=3).map(tuple)
        if others
        else st.just(()),
        reasoning=TEXTS,
        tool_calls=st.lists(TOOL_CALLS, max_size=2).map(tuple),
        notes=st.lists(TEXTS, max_size=2).map(tuple),
    )


ANYTHING: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**32)),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.text(max_size=8) | st.binary(max_size=8) | st.integers(-9, 9) | st.booleans(),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
"""What a peer may send, decoded."""

OPTION_NAMES: Final = st.sampled_from(
    [
        *SamplingParams.__dataclass_fields__,
        *CHAT_OPTIONS,
        *("id", "stream", "window", "output", "priority", "timeout_ms", "namespace"),
        "trace_headers",
        *("pooling", "name", "unknown"),
    ]
)
"""Names of options, of any method, and one that is none."""


def over_the_wire(value: object) -> Any:
    """As the other side has it: packed and unpacked again."""
    packed = msgpack.packb(value, unicode_errors="surrogateescape")
    return msgpack.unpackb(packed, strict_map_key=False, unicode_errors="surrogateescape")
