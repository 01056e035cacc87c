"""Structured outputs: grammars compiled by llguidance, and the tokens that they allow."""

from __future__ import annotations

from .compiler import GrammarCompiler
from .grammar_step import GrammarJob, after_step, before_step
from .matcher import OutputMatcher
from .step_masks import MaskMemory, StepMasks

__all__ = [
    "GrammarCompiler",
    "GrammarJob",
    "MaskMemory",
    "OutputMatcher",
    "StepMasks",
    "after_step",
    "before_step",
]
