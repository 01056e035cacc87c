"""`SamplingParams`: how one request draws its tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InvalidRequestError

__all__ = ["SamplingParams"]

_MAX_TOKENS = 2**31 - 1
_MAX_LOGPROBS = 32
_MAX_STOPS = 64
_MAX_SAMPLES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request draws its tokens. Immutable, checked where it is made.

    max_tokens: most tokens to generate, >= 1. A sequence also ends where the
        model's positions end.
    temperature: 0 is greedy: the most likely token, of equals the lowest id.
    top_k: draw among the k most likely, 0 = all.
    top_p: draw among the fewest tokens whose probabilities sum to top_p (0, 1].
    min_p: draw among tokens at least min_p times as likely as the likeliest.
    seed: seed of the request's own random stream. None: one is drawn when the
        request is submitted and kept through every replay.
    stop: texts that end the output (they are not part of it).
    stop_token_ids: tokens that end the output, besides the model's own.
    ignore_eos: the model's own end tokens do not end the output.
    min_tokens: no end token is drawn before this many tokens.
    repetition_penalty: > 1 makes tokens of prompt and output less likely.
    presence_penalty, frequency_penalty: subtracted from the logits of tokens
        of the output: once, and once per occurrence.
    logit_bias: token id -> number added to its logit.
    logprobs: None = none; n = log-probabilities of the chosen token and of
        the n most likely ones, of the model's own distribution (before
        penalties, bias and temperature).
    skip_special_tokens: special tokens leave no trace in the text.
    n: number of outputs of the prompt, 1 to 64; they share its KV:
        `Completion.choices`, or pieces with an `index`. The first is the one that
        n = 1 gives; the others draw with seeds made of its seed. If one fails all do;
        so each has to have a token before a `timeout` is over.

    Raises InvalidRequestError that names the field, the value and the range.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None
    skip_special_tokens: bool = True
    n: int = 1

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, 1, _MAX_TOKENS)
        _check_int("n", self.n, 1, _MAX_SAMPLES)
        _check_int("top_k", self.top_k, 0, _MAX_TOKENS)
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check_float("temperature", self.temperature, 0.0, 100.0)
        _check_float("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        _check_float("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _check_float("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, 2**64 - 1)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, _MAX_LOGPROBS)
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise _bad(name, getattr(self, name), "True or False")
        self._freeze("stop", _strings("stop", self.stop))
        self._freeze("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if self.logit_bias is not None:
            self._freeze("logit_bias", _bias(self.logit_bias))

    def _freeze(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _bad(name: str, value: object, wanted: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} is {value!r}; it must be {wanted}")


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _bad(name, value, f"a whole number from {low} to {high}")


def _check_float(
    name: str, value: object, low: float, high: float, *, low_open: bool = False
) -> None:
    begin, end = ("above", "and at most") if low_open else ("from", "to")
    wanted = f"a number {begin} {low:g} {end} {high:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise _bad(name, value, wanted)
    if not low <= value <= high or (low_open and value == low):
        raise _bad(name, value, wanted)


def _strings(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    wanted = f"a text or at most {_MAX_STOPS} texts, none of them empty"
    if not isinstance(value, Sequence) or len(value) > _MAX_STOPS:
        raise _bad(name, value, wanted)
    if any(not isinstance(item, str) or not item for item in value):
        raise _bad(name, value, wanted)
    return tuple(value)


def _ids(name: str, value: object) -> tuple[int, ...]:
    wanted = "a sequence of token ids (whole numbers, 0 or more)"
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise _bad(name, value, wanted)
    if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in value):
        raise _bad(name, value, wanted)
    return tuple(value)


def _bias(value: object) -> Mapping[int, float]:
    wanted = "a mapping from token id to a number from -1000 to 1000"
    if not isinstance(value, Mapping):
        raise _bad("logit_bias", value, wanted)
    for token, bias in value.items():
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise _bad("logit_bias", value, wanted)
        if isinstance(bias, bool) or not isinstance(bias, (int, float)):
            raise _bad("logit_bias", value, wanted)
        if not -1000.0 <= bias <= 1000.0:  # also refuses NaN
            raise _bad("logit_bias", value, wanted)
    return dict(value)
