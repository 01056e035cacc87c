"""Outputs under JSON schemas: sampled by a batcher, checked with `jsonschema` and with the mask."""

from __future__ import annotations

import asyncio
import decimal
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import jsonschema
import regex
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable

from pybatcher import Batcher, InvalidRequestError
from pybatcher.loading import open_model
from pybatcher.params import StructuredOutput, schema_text
from pybatcher.text import Tokenizer
from pybatcher.text.grammars import GrammarCompiler

__all__ = ["Masks", "Output", "Refused", "SchemaOutputs", "judge", "reason"]

PROMPT = "Once upon a time"
_DIGITS = 5000  # digits of exact arithmetic: more than a finished output has


@dataclass
class Output:
    """One output under a schema: its text, its tokens, and its finish reason."""

    schema: int
    seed: int
    text: str
    tokens: tuple[int, ...]
    finished: bool


@dataclass
class Refused:
    """A request that got no output. said: the message of the typed error."""

    schema: int
    seed: int
    said: str


@dataclass
class SchemaOutputs:
    """Outputs of many schemas, and requests that were refused."""

    outputs: list[Output] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    async def draw(
        self,
        batcher: Batcher,
        schemas: Sequence[Any],
        seeds: Sequence[int],
        *,
        at_once: int,
        **options: Any,
    ) -> None:
        """Sample an output of each schema with each seed, with a limit on concurrent schemas.

        The seeds of a schema follow each other, so that the schema is compiled once.
        """
        slots = asyncio.Semaphore(at_once)

        async def one(i: int) -> None:
            async with slots:
                for seed in seeds:
                    await self._draw(batcher, schemas[i], i, seed, options)

        await asyncio.gather(*map(one, range(len(schemas))))

    async def _draw(
        self, batcher: Batcher, schema: Any, i: int, seed: int, options: dict[str, Any]
    ) -> None:
        try:
            made = await batcher.generate(PROMPT, json_schema=schema, seed=seed, **options)
        except InvalidRequestError as error:
            self.refused.append(Refused(i, seed, str(error)))
            return
        finished = made.finish_reason == "stop"
        self.outputs.append(Output(i, seed, made.text, tuple(made.token_ids), finished))


class Masks:
    """The tokens that the masks of the shipped model allow, without the model."""

    def __init__(self) -> None:
        model = open_model(None)
        parts = model.tokenizer
        self._tokenizer = Tokenizer(parts.backend, eos_token_ids=parts.eos_token_ids)
        self._vocab_size = model.config.vocab_size
        self._compiler = GrammarCompiler(self._tokenizer, self._vocab_size)

    def closing_tokens(self) -> list[int]:
        """Return the tokens with a character that ends a text, a list or an object."""
        texts = ((i, self._tokenizer.token(i) or "") for i in range(self._vocab_size))
        return [i for i, text in texts if {'"', "]", "}"} & set(text)]

    def refusal(self, schema: Any) -> str | None:
        """Return the reason why a schema is refused. None: it is accepted."""
        try:
            self._compiler.matcher(_form(schema))
        except InvalidRequestError as error:
            return str(error)
        return None

    def accepts(self, schema: Any, value: Any) -> bool:
        """Return True if a value's text, as `json.dumps` writes it, may be a finished output."""
        text = json.dumps(value, ensure_ascii=False)
        made = self._compiler.matcher(_form(schema))
        for token in self._tokenizer.encode(text, add_special_tokens=False):
            if made.is_complete or not made.matcher.validate_tokens([token]):
                return False
            made.advance([token])
        return bool(made.matcher.is_accepting())

    def follow(self, schema: Any, tokens: Sequence[int]) -> tuple[str | None, list[float]]:
        """Return the fault of an output's tokens, and the seconds of each mask."""
        made, times = self._compiler.matcher(_form(schema)), []
        for i, token in enumerate(tokens):
            if made.is_complete:
                return f"token {i} comes after the end", times
            began = time.perf_counter()
            made.matcher.compute_bitmask()
            times.append(time.perf_counter() - began)
            if not made.matcher.validate_tokens([token]):
                return f"token {i} is not allowed", times
            made.advance([token])
        return None, times


def _form(schema: Any) -> StructuredOutput:
    return StructuredOutput("json_schema", schema_text(schema))


def judge(schema: Any, text: str) -> str:
    """Return "valid", "rounded", or "unjudged: ..." or "invalid: ..." with a reason.

    "rounded" is valid with the decimal numbers of the texts and invalid with binary floats, in
    which `0.07` is not a multiple of `0.01`, and 0.99999999999999999999 is 1.
    """
    try:
        wrong = _wrong(schema, text)
        if wrong is None:
            return "valid"
        return f"invalid: {wrong}" if _wrong_exactly(schema, text) else "rounded"
    except (re.error, regex.error, Unresolvable, RecursionError) as error:
        return f"unjudged: {type(error).__name__} {error}"


def _wrong(schema: Any, text: str, **reading: Any) -> str | None:
    """Return the first complaint of `jsonschema` about a text, formats included."""
    try:
        value = json.loads(text, **reading)
    except ValueError as error:
        return f"no JSON: {error}"
    try:
        return _first_error(schema, value)
    except re.error:  # properties of Unicode, as in \p{Nd}
        with (
            patch.object(jsonschema._keywords, "re", regex),
            patch.object(jsonschema._utils, "re", regex),
        ):
            return _first_error(schema, value)


def _first_error(schema: Any, value: Any) -> str | None:
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for error in kind(schema, format_checker=checker).iter_errors(value):
        return f"{error.json_path}: {error.message}"
    return None


def _wrong_exactly(schema: Any, text: str) -> str | None:
    exact = json.loads(json.dumps(schema), parse_float=decimal.Decimal)
    with decimal.localcontext() as context:
        context.prec = _DIGITS
        return _wrong(exact, text, parse_float=decimal.Decimal)


_REASONS = [
    (r"Unimplemented keys: \[(.*)\]", None),
    (r"(Unknown format: [^']+)'", None),
    (r"oneOf constraints are not supported", "oneOf"),
    (r"Resource '", "$ref to elsewhere"),
    (r"(Unsatisfiable schema)", None),
    (r"(Failed to generate regex)", None),
    (r"(regex parse error)", None),
    (r"(lookarounds) not supported", None),
    (r"patternProperty regexes .* are not disjoint", "patternProperties not disjoint"),
    (r"(min/maxProperties)", None),
    (r"(circular references)", None),
    (r"to compile it takes more than|was not compiled within", "too slow to compile"),
    (r"fuel|too many|too large|limit", "too large"),
    (r"Expected positive integer", "a count with a decimal point"),
    (r"json_schema has (?:the )?(\S+)", None),
    (r"json_schema is (?:True|False)", "a boolean as the schema"),
]


def reason(said: str) -> str:
    """Return the subject of a refusal in a few words: usually a keyword."""
    for pattern, name in _REASONS:
        if found := re.search(pattern, said):
            return name or found[1].replace('"', "").replace("\\", "")
    return said[:60]
