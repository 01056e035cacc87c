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
from .tool_choice import ToolChoice, read_tool_choice
from .tool_grammar import tool_grammar
from .tools import ToolSpec, read_tools, schemas_of

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
    "read_tool_choice",
    "read_tools",
    "schemas_of",
    "tool_grammar",
]
