"""Responses of chat models in their parts: content, reasoning, calls of tools."""

from __future__ import annotations

from .deltas import (
    ContentDelta,
    Delta,
    MarkupDelta,
    ParsedResponse,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallEnded,
    ToolCallRejected,
    ToolCallStarted,
)
from .format_of import format_of
from .formats import FORMATS, ResponseFormat
from .parser import ResponseParser, parse_response
from .response_grammar import response_grammar
from .tool_choice import ToolChoice, read_tool_choice
from .tools import ToolSpec, plain_tools, read_tools, schemas_of

__all__ = [
    "FORMATS",
    "ContentDelta",
    "Delta",
    "MarkupDelta",
    "ParsedResponse",
    "ReasoningDelta",
    "ResponseFormat",
    "ResponseParser",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallEnded",
    "ToolCallRejected",
    "ToolCallStarted",
    "ToolChoice",
    "ToolSpec",
    "format_of",
    "parse_response",
    "plain_tools",
    "read_tool_choice",
    "read_tools",
    "response_grammar",
    "schemas_of",
]
