"""Test doubles: an engine without a model, a batcher with answers, faults, a clock, a tokenizer.

Public, for tests of programs that use pybatcher.
"""

from __future__ import annotations

from .answers import FakeAnswerError
from .byte_tokenizer import byte_tokenizer
from .fake_batcher import fake_batcher
from .fake_clock import FakeClock
from .fake_engine import FakeEngine
from .faults import (
    FailAtRandom,
    FailRestart,
    FailStep,
    FailWhen,
    Fault,
    FaultyEngine,
    HangStep,
    InjectedError,
    SlowStep,
    StepFacts,
    computes,
)

__all__ = [
    "FailAtRandom",
    "FailRestart",
    "FailStep",
    "FailWhen",
    "FakeAnswerError",
    "FakeClock",
    "FakeEngine",
    "Fault",
    "FaultyEngine",
    "HangStep",
    "InjectedError",
    "SlowStep",
    "StepFacts",
    "byte_tokenizer",
    "computes",
    "fake_batcher",
]
