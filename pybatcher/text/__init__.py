"""Text in, text out: tokenizer, chat template, incremental detokenizer, stop matcher."""

from __future__ import annotations

from .chat import ChatTemplate
from .detokenizer import Detokenizer
from .stops import StopMatcher, StopTexts
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "StopMatcher", "StopTexts", "Tokenizer"]
