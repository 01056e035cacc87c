"""The output of chat models, parsed into content, reasoning and tool calls."""

from __future__ import annotations

from .formats.default_tools import DefaultTools, write_calls, write_response
from .formats.format_of import format_of
from .formats.formats import FORMATS, ResponseFormat
from .grammar.response_grammar import response_grammar
from .read.deltas import (
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
from .read.parser import ResponseParser, parse_response
from .tools.tool_choice import ToolChoice, read_tool_choice
from .tools.tools import MAX_TOOLS, ToolSpec, plain_tools, read_tools, schemas_of

__all__ = [
    "FORMATS",
    "MAX_TOOLS",
    "ContentDelta",
    "DefaultTools",
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
    "write_calls",
    "write_response",
]
