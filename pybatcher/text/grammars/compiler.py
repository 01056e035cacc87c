"""`GrammarCompiler`: makes matchers of structured outputs, for one tokenizer."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

from ...errors import InvalidRequestError
from ...errors.checks import short
from ...errors.distribution import install_extra
from ...params import StructuredOutput
from ..tokenizer import Tokenizer
from .matcher import OutputMatcher
from .probe import Abandonment, is_harmless, probe
from .schemas import strict_schema
from .usable_schemas import refusal_of_schema

__all__ = ["JSON_LAYOUT", "GrammarCompiler"]

_MOST_GRAMMARS = 256
_MOST_CHARACTERS = 2**24  # of all cached grammars, as text
# llguidance cannot roll back grammars with these
_ONE_WAY = re.compile(r"\b(?:max_tokens|stop)\s*=")

# The work that a grammar may take, in llguidance's units. With these limits a mask takes some
# milliseconds at most (14 units of lexer fuel and 20 items a microsecond, by its documentation).
_LIMITS: Any = {
    "initial_lexer_fuel": 400_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 100_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}


# The layout of `json.dumps`. With free white space a model may write it without end, and no part of
# the layout would be forced. It is without \u, since llguidance takes "\u0061" for another name
# than "a".
JSON_LAYOUT: Any = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}


class GrammarCompiler:
    """Compiles grammars, and caches the most recently used ones. For any thread.

    vocab_size: the model's; the tokenizer may have fewer tokens.
    markers: tokens that a grammar names by their ids, and that are no text in it.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, markers: Collection[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._markers = frozenset(markers)
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._tokens: Any = None
        self._definition: dict[str, Any] = {}
        self._compiled: OrderedDict[StructuredOutput, Any] = OrderedDict()
        self._n_characters = 0

    def is_ready(self, form: StructuredOutput) -> bool:
        """Return whether the grammar is compiled already, so that a matcher costs microseconds."""
        with self._lock:
            return form in self._compiled

    def matcher(
        self,
        form: StructuredOutput,
        output: Sequence[int] = (),
        abandoned: Abandonment | None = None,
    ) -> OutputMatcher:
        """Return a matcher of a structured output, at the end of `output`. Too slow for an event
        loop.

        abandoned: if it is set, nobody waits any longer, and slow work ends.

        Raises InvalidRequestError for a grammar that cannot be compiled, or is too large, and for
        an output that violates it.
        """
        with self._lock:
            compiled = self._compiled.get(form)
            if compiled is not None:
                self._compiled.move_to_end(form)
        if compiled is None:
            try:
                compiled = self._compile(form, abandoned)
            except InvalidRequestError:
                if not form.looser:
                    raise
                looser = form._replace(text=form.looser, looser="")
                compiled = self._compile(looser, abandoned)
            self._keep(form, compiled)
        one_way = form.kind == "grammar" and _ONE_WAY.search(form.text) is not None
        made = OutputMatcher(compiled.deep_copy(), self._tokens, goes_back=not one_way)
        made.follow(output)
        if made.error:
            raise InvalidRequestError(
                f"output has a token that {form.field} does not allow: {made.error}; give the "
                "tokens that were drawn with the same form",
                field="output",
            )
        return made

    def _compile(self, form: StructuredOutput, abandoned: Abandonment | None) -> Any:
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError:
            raise InvalidRequestError(
                f"{form.field} is given: for outputs with a form llguidance is needed: "
                f"`{install_extra('structured')}`",
                field=form.field,
            ) from None
        tokens, grammar = self._token_table(), _grammar(form)
        if not is_harmless(form):
            probe(form, grammar, abandoned=abandoned, limits=_LIMITS, **self._definition)
        compiled = LLMatcher(tokens, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))
        if not compiled.is_error():
            compiled.compute_bitmask()  # the mask at the beginning is the slowest of all
        if compiled.is_error():
            if form.kind == "json_schema":
                raise refusal_of_schema(form.text, str(compiled.get_error()).strip())
            raise InvalidRequestError(
                f"{form.field} cannot be used: {short(str(compiled.get_error()).strip())}; "
                "correct it, or make it simpler",
                field=form.field,
            )
        return compiled

    def _keep(self, form: StructuredOutput, compiled: Any) -> None:
        with self._lock:
            if form not in self._compiled:
                self._n_characters += len(form.text) + len(form.looser)
            self._compiled[form] = compiled
            while len(self._compiled) > 1 and (
                len(self._compiled) > _MOST_GRAMMARS or self._n_characters > _MOST_CHARACTERS
            ):
                oldest, _ = self._compiled.popitem(last=False)
                self._n_characters -= len(oldest.text) + len(oldest.looser)

    def _token_table(self) -> Any:
        """Return llguidance's table of the tokens. Slow on first use: 0.5 s for 128k tokens."""
        from llguidance import LLTokenizer

        with self._lock:
            if self._tokens is None:
                ends = [i for i in sorted(self._tokenizer.eos_token_ids) if i < self._vocab_size]
                text = self._tokenizer.definition
                if not ends or text is None:
                    raise InvalidRequestError(
                        "this model cannot give outputs a form: it has no "
                        + ("tokenizer" if text is None else "end token")
                    )
                text = _with_special(text, self._markers)
                self._definition = {"tokenizer": text, "n_vocab": self._vocab_size, "ends": ends}
                self._tokens = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=ends)
            return self._tokens


def _with_special(definition: str, token_ids: Collection[int]) -> str:
    """Return a tokenizer whose tokens with these ids are special."""
    if not token_ids:
        return definition
    plain = json.loads(definition)
    for token in plain.get("added_tokens", ()):
        if token["id"] in token_ids:
            token["special"] = True
    return json.dumps(plain, ensure_ascii=False)


def _grammar(form: StructuredOutput) -> str:
    """Return a structured output in llguidance's own language."""
    from llguidance import LLMatcher

    match form.kind:
        case "regex":
            return LLMatcher.grammar_from_regex(form.text)
        case "grammar":
            return LLMatcher.grammar_from_lark(form.text)
        case "choices":
            texts = (json.dumps(one, ensure_ascii=False) for one in json.loads(form.text))
            return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {' | '.join(texts)}")
        case "json_object":
            return LLMatcher.grammar_from_json_schema('{"type": "object"}', overrides=JSON_LAYOUT)
        case "json_schema":
            text = strict_schema(form.text)
            try:
                return LLMatcher.grammar_from_json_schema(text, overrides=JSON_LAYOUT)
            except ValueError as error:
                raise refusal_of_schema(form.text, str(error)) from None
