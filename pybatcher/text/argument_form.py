"""`argument_form_of`: finds the form in which a chat template expects arguments of calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .chat_messages import ArgumentForm

__all__ = ["argument_form_of"]

_KEY = "pybatcher_probe"
_ARGUMENTS = {_KEY: "value"}
_ID = "probe0000"  # nine letters and digits, which Mistral's templates require


def argument_form_of(render: Callable[[Mapping[str, Any]], str]) -> ArgumentForm:
    """Return the form, found by rendering a chat with a call in each of the two.

    Most templates expect mappings. The templates of DeepSeek-V3 and R1 join the arguments to other
    texts: a mapping would be an error, or be written in Python's notation.

    render: takes the variables of the template; it may raise anything.
    """
    text = json.dumps(_ARGUMENTS)
    as_mapping = _rendered(render, _ARGUMENTS)
    if _KEY in as_mapping and f"'{_KEY}'" not in as_mapping:
        return "mapping"
    return "text" if text in _rendered(render, text) else "mapping"


def _rendered(render: Callable[[Mapping[str, Any]], str], arguments: object) -> str:
    """Return the chat's text; "" if there is an error."""
    messages: Sequence[Mapping[str, Any]] = [
        {"role": "user", "content": "question"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": _ID,
                    "type": "function",
                    "function": {"name": "probe", "arguments": arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": _ID, "name": "probe", "content": "answer"},
    ]
    try:
        return render({"messages": messages})
    except Exception:  # of any type, as the template's own code raised it
        return ""
