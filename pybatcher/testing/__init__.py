"""Test doubles, for our tests and for yours: an engine without a model, a clock that you turn."""

from __future__ import annotations

from .byte_tokenizer import byte_tokenizer
from .fake_batcher import fake_batcher
from .fake_clock import FakeClock
from .fake_engine import FakeEngine

__all__ = ["FakeClock", "FakeEngine", "byte_tokenizer", "fake_batcher"]
