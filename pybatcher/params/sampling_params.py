"""`SamplingParams`: how the tokens of one request are sampled."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..errors import InvalidRequestError
from ..errors.checks import REQUEST, plain_float, plain_int, plain_text
from .structured_output import (
    StructuredOutput,
    check_choices,
    check_grammar,
    check_regex,
    schema_text,
    structured_output_of,
)

__all__ = [
    "CHAT_SAMPLING",
    "MAX_LOGPROBS",
    "OF_MODELS",
    "SamplingParams",
    "chat_sampling",
    "left_to_model",
    "with_valid",
]

MAX_LOGPROBS = 32
"""The most likeliest tokens that are reported at one position."""

OF_MODELS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""The fields for which a model's files may recommend values."""

CHAT_SAMPLING: Mapping[str, float] = {"temperature": 0.7, "min_p": 0.05}
"""The sampling of chats that state no temperature, with models that recommend none."""

_MAX_TOKENS = 2**31 - 1
_SAMPLED_BY = ("temperature", "top_k", "top_p")
_MAX_STOPS = 64
# each character is a state of the automaton that searches for stop texts
_MAX_STOP_CHARACTERS = 16_384
_MAX_TOKEN_IDS = 2**20
_MAX_BYTES_OF_SAMPLES = 2**22
_BYTES_OF_ID, _BYTES_OF_BIAS = 8, 16
_MAX_BIAS = 1000.0
_MAX_SAMPLES = 128


def left_to_model(given: Container[str]) -> tuple[str, ...]:
    """Return the `of_model` that leaves all fields except `given` to the model."""
    return tuple(name for name in OF_MODELS if name not in given)


def chat_sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat's `SamplingParams`: those that are given, and their defaults.

    A field that is not given has the value that the model's files recommend. If they recommend
    none, it has that of `CHAT_SAMPLING`. A given temperature is the plain one, without a `min_p`.
    """
    usual = {} if "temperature" in given else CHAT_SAMPLING
    return {**usual, **given, "of_model": left_to_model(given)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are sampled. Immutable, validated on construction.

    max_tokens: most tokens to generate, >= 1. A sequence also ends where the model's positions end.
    temperature: 0 is greedy: the most likely token, or the lowest id among equals.
    top_k: sample among the k most likely tokens, 0 or -1 = all.
    top_p: sample among the fewest tokens whose probabilities sum to top_p [0, 1]. 0 is greedy.
    min_p: sample among tokens at least min_p times as likely as the likeliest.
    seed: seed of the request's own random stream, of 64 bits; a negative seed is the same as the
        unsigned number with its bits. None: a random seed is chosen when the request is
        submitted, and kept through every replay.
    stop: texts that end the output (they are not part of it).
    stop_token_ids: tokens that end the output, besides the model's own; each is kept once.
    ignore_eos: the model's own end tokens do not end the output.
    min_tokens: no end token is sampled before this many tokens.
    repetition_penalty: > 1 makes tokens of prompt and output less likely.
    presence_penalty: subtracted once from the logit of each token that the output has.
    frequency_penalty: subtracted from a token's logit once for each time the output has it.
    logit_bias: token id -> number added to its logit.
    logprobs: None = none; n = log-probabilities of the chosen token and of the n most likely ones,
        in the model's own distribution (before penalties, bias and temperature).
    skip_special_tokens: special tokens leave no trace in the text.
    json_schema: the output is an instance of this JSON schema: a dict, a JSON text, or a type that
        pydantic can read (a model, a dataclass, `list[int]`, ...). `Completion.parsed` is its
        value.
    regex: the whole output matches this regular expression (Rust's syntax, without look-around and
        back-references).
    grammar: the output is a sentence of this grammar, in llguidance's Lark syntax.
    choices: the output is one of these texts.
    json_object: the output is a JSON object.
    n: number of outputs of the prompt, 1 to 128; they share its KV: `Completion.choices`, or pieces
        with an `index`. The first output equals that of n = 1; the seeds of the others derive from
        its seed. If one fails all do, so each must have a token before a `timeout` ends. Each has
        lists, texts and grammars of its own, which must take at most 4 MiB together.
    of_model: names of fields that take the values that the model's files recommend
        (generation_config.json, or a GGUF file's general.sampling), among temperature, top_k,
        top_p, min_p and repetition_penalty. A field without a recommendation keeps its value,
        except that min_p is 0 if the model recommends a temperature, top_k or top_p without it.

    At most one of json_schema, regex, grammar, choices and json_object may be given: the output is
    then a structured output. It ends when the structure is complete and nothing can follow
    (finish_reason "stop"), whatever `min_tokens` and `ignore_eos` are; where it may continue or
    end, the model chooses; `max_tokens` and `stop` cut it. All other fields choose among the tokens
    that the structure allows, and log-probabilities are the model's own, as without a structure.

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
    json_schema: Any = None
    regex: str | None = None
    grammar: str | None = None
    choices: Sequence[str] | None = None
    json_object: bool = False
    of_model: Sequence[str] = ()

    def __post_init__(self) -> None:
        with REQUEST.reading("SamplingParams", self.__class__, "made of plain values"):
            self._check_numbers()
            self._check_lists()
            self._check_form()
            if self.n > 1:
                self._check_samples()

    @classmethod
    def for_chat(cls, **given: Any) -> SamplingParams:
        """Return parameters with the defaults of chats over HTTP, in place of the greedy ones.

        given: fields, by name. Other fields among those of `of_model` have the values that the
            model's files recommend, else a temperature of 0.7 with a min_p of 0.05.
        """
        return cls(**chat_sampling(given))

    @property
    def form(self) -> StructuredOutput | None:
        """The structure that the output must have; None: any text."""
        return structured_output_of(self)

    def with_recommended(self, values: Mapping[str, Any]) -> SamplingParams:
        """Return these parameters with the values of the fields that `of_model` names.

        values: the values that the model's files recommend, by field. They were checked when the
            files were read.
        """
        taken = {name: values[name] for name in self.of_model if name in values}
        # The values of a model are a set: none of them is meant to go with another's min_p.
        if "min_p" in self.of_model and not values.keys().isdisjoint(_SAMPLED_BY):
            taken.setdefault("min_p", 0.0)
        return with_valid(self, **taken, of_model=())

    def _check_form(self) -> None:
        self._set("json_object", REQUEST.flag("json_object", self.json_object))
        checks = (
            ("json_schema", schema_text),
            ("regex", check_regex),
            ("grammar", check_grammar),
            ("choices", check_choices),
        )
        for name, check in checks:
            if (value := getattr(self, name)) is not None:
                self._set(name, check(value))
        structured_output_of(self)

    def _check_numbers(self) -> None:
        self._whole("max_tokens", 1, _MAX_TOKENS)
        self._whole("n", 1, _MAX_SAMPLES)
        self._whole("top_k", -1, _MAX_TOKENS)
        self._set("top_k", max(self.top_k, 0))
        self._whole("min_tokens", 0, self.max_tokens)
        self._number("temperature", 0.0, 100.0)
        self._number("top_p", 0.0, 1.0)
        self._number("min_p", 0.0, 1.0)
        self._number("repetition_penalty", 0.0, 100.0, above=True)
        self._number("presence_penalty", -100.0, 100.0)
        self._number("frequency_penalty", -100.0, 100.0)
        if self.seed is not None:
            self._whole("seed", -(2**63), 2**64 - 1)
            self._set("seed", self.seed % 2**64)
        if self.logprobs is not None:
            self._whole("logprobs", 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "skip_special_tokens"):
            self._set(name, REQUEST.flag(name, getattr(self, name)))

    def _check_lists(self) -> None:
        self._set("stop", _stops(self.stop))
        wanted = f"a sequence of at most {_MAX_TOKEN_IDS} token ids (whole numbers, 0 or more)"
        ids = REQUEST.items("stop_token_ids", self.stop_token_ids, _MAX_TOKEN_IDS, wanted)
        if set(map(type, ids)) != {int} or min(ids) < 0:
            ids = tuple(_token_id("stop_token_ids", self.stop_token_ids, i, wanted) for i in ids)
        self._set("stop_token_ids", tuple(dict.fromkeys(ids)))
        if self.logit_bias is not None:
            self._set("logit_bias", _bias(self.logit_bias))
        wanted = f"a sequence of names of fields, of {', '.join(OF_MODELS)}"
        names = REQUEST.items("of_model", self.of_model, len(OF_MODELS), wanted)
        fields = tuple(map(plain_text, names))
        if not set(fields) <= set(OF_MODELS):
            raise REQUEST.bad("of_model", self.of_model, wanted)
        self._set("of_model", fields)

    def _check_samples(self) -> None:
        """Refuse arguments that are small once and large for each of `n` samples."""
        sizes = {
            "stop": sum(map(len, self.stop)),
            "stop_token_ids": _BYTES_OF_ID * len(self.stop_token_ids),
            "logit_bias": _BYTES_OF_BIAS * len(self.logit_bias or ()),
            "choices": sum(_BYTES_OF_ID + len(one) for one in self.choices or ()),
            **{
                name: len(getattr(self, name) or "") for name in ("json_schema", "regex", "grammar")
            },
        }
        size = sum(sizes.values())
        if size * self.n > _MAX_BYTES_OF_SAMPLES:
            largest = max(sizes, key=sizes.__getitem__)
            raise InvalidRequestError(
                f"{largest} has about {sizes[largest]} bytes, and each of n = {self.n} samples "
                f"needs them: together at most {_MAX_BYTES_OF_SAMPLES} bytes are allowed; lower n, "
                f"or shorten {largest}",
                field=largest,
            )

    def _whole(self, name: str, low: int, high: int) -> None:
        self._set(name, REQUEST.whole(name, getattr(self, name), low, high))

    def _number(self, name: str, low: float, high: float, *, above: bool = False) -> None:
        self._set(name, REQUEST.number(name, getattr(self, name), low, high, above=above))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


_FIELDS = tuple(field.name for field in fields(SamplingParams))


def with_valid(params: SamplingParams, **values: Any) -> SamplingParams:
    """Return a copy with other values of some fields, without validating any field again.

    values: by field; the caller guarantees that they are valid, also with the other fields.
    """
    copy = object.__new__(SamplingParams)
    for name in _FIELDS:
        object.__setattr__(copy, name, values[name] if name in values else getattr(params, name))
    return copy


def _stops(value: object) -> tuple[str, ...]:
    wanted = f"a text or at most {_MAX_STOPS} texts, none of them empty"
    one = plain_text(value)
    texts = (one,) if one is not None else REQUEST.items("stop", value, _MAX_STOPS, wanted)
    stops = []
    for i, item in enumerate(texts):
        text = plain_text(item)
        if not text:
            raise REQUEST.bad("stop", value, wanted)
        REQUEST.unicode("stop" if one is not None else f"stop[{i}]", text)
        stops.append(text)
    if (total := sum(map(len, stops))) > _MAX_STOP_CHARACTERS:
        raise InvalidRequestError(
            f"stop has {total} characters in all; it must have at most {_MAX_STOP_CHARACTERS}",
            field="stop",
        )
    return tuple(stops)


def _token_id(name: str, whole_value: object, token_id: object, wanted: str) -> int:
    found = plain_int(token_id)
    if found is None or found < 0:
        raise REQUEST.bad(name, whole_value, wanted)
    return found


def _bias(value: object) -> Mapping[int, float]:
    wanted = (
        f"a mapping of at most {_MAX_TOKEN_IDS} token ids to numbers "
        f"from {-_MAX_BIAS:g} to {_MAX_BIAS:g}"
    )
    biases: dict[int, float] = {}
    for token_id, bias in REQUEST.pairs("logit_bias", value, _MAX_TOKEN_IDS, wanted):
        number = plain_float(bias)
        if number is None or not -_MAX_BIAS <= number <= _MAX_BIAS:  # also refuses NaN
            raise REQUEST.bad("logit_bias", value, wanted)
        biases[_token_id("logit_bias", value, token_id, wanted)] = number
    return biases
