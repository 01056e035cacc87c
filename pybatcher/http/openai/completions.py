"""Reads requests and writes responses of OpenAI's completions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...calls.completion import Completion, Piece, TokenLogprob, Usage
from ...params import left_to_model
from ..base.http_error import HttpError
from ..base.sampling_fields import (
    bad,
    read_flag,
    read_sampling,
    read_streaming,
    refuse_token_ids,
    renamed_fields,
)
from ..base.token_texts import TokenTexts
from .chat_completions import by_sample, finish_reason_of, joined_logprobs

__all__ = [
    "CompletionAsked",
    "EchoedPrompt",
    "completion_choices",
    "completion_chunks",
    "echo_chunks",
    "read_completion",
    "told_logprobs",
    "usage_of",
]

EchoedPrompt = tuple[str, Sequence[int]]
"""A prompt at the beginning of an answer: its text and its token ids."""

_DEFAULT_TOKENS = 16
_MOST_PROMPTS = 2048  # also with n outputs each
_MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class CompletionAsked:
    """A request for completions: prompts, options of `generate`, and the form of the answer.

    names: the request's fields by argument, if their names differ. tokens_as_ids: tokens are
        written as `token_id:N` in log-probabilities, as in vLLM.
    """

    prompts: list[Any]
    options: dict[str, Any]
    echo: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    add_special_tokens: bool
    names: dict[str, str]
    tokens_as_ids: bool = False

    @property
    def is_drawn(self) -> bool:
        """False if the prompts are echoed and no token is to be generated."""
        return not (self.echo and self.options["max_tokens"] == 0)

    @property
    def prompt_logprobs(self) -> int | None:
        """The number of alternatives for each token of an echoed prompt. None: no
        log-probabilities.

        A prompt that is echoed without generated tokens is scored too, because the request asks for
        nothing else.
        """
        if self.echo and ("logprobs" in self.options or not self.is_drawn):
            return int(self.options.get("logprobs", 0))
        return None


def read_completion(body: Mapping[str, Any]) -> CompletionAsked:
    """Read the body of a request. Ignores unknown keys. Raises HttpError."""
    refuse_token_ids(body)
    given = read_sampling(body)
    # A text is continued with OpenAI's temperature, and not with that of chats.
    options = {"temperature": 1.0, **given, "of_model": left_to_model(given)}
    most = body.get("max_tokens")
    options["max_tokens"] = _DEFAULT_TOKENS if most is None else most
    if (logprobs := body.get("logprobs")) is not None and logprobs is not False:
        is_whole = isinstance(logprobs, int) and 0 <= logprobs <= _MOST_LOGPROBS
        if not is_whole:
            raise bad("logprobs", logprobs, f"a whole number from 0 to {_MOST_LOGPROBS}")
        options["logprobs"] = int(logprobs)
    if body.get("suffix") not in (None, ""):
        raise bad("suffix", body["suffix"], "left out: this server does not fill gaps")
    best = body.get("best_of")
    if best not in (None, 1, body.get("n")) or isinstance(best, bool):
        raise bad("best_of", body["best_of"], "left out, or n")
    streaming = read_streaming(body)
    echo = read_flag(body, "echo", False)
    special = read_flag(body, "add_special_tokens", True)
    prompts = _prompts(body.get("prompt"))
    n = options.get("n")
    if type(n) is int and len(prompts) > 1 and len(prompts) * n > _MOST_PROMPTS:
        told = f"n is {n}, for each of {len(prompts)} prompts; a request can have at most "
        told += f"{_MOST_PROMPTS} outputs: send fewer prompts, or lower n"
        raise HttpError(400, told, code="invalid_value", param="n")
    as_ids = read_flag(body, "return_tokens_as_token_ids", False)
    names = renamed_fields(body)
    return CompletionAsked(prompts, options, echo, *streaming, special, names, as_ids)


def _prompts(prompt: object) -> list[Any]:
    wanted = "a text, a list of texts, a list of token ids, or a list of these lists"
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise bad("prompt", prompt, wanted)
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [prompt]
    if not kinds <= {str, list}:
        raise bad("prompt", prompt, wanted)
    if len(prompt) > _MOST_PROMPTS:
        told = f"prompt has {len(prompt)} prompts; it must have at most {_MOST_PROMPTS}: send fewer"
        raise HttpError(400, told, code="invalid_value", param="prompt")
    return prompt


def completion_choices(
    made: Sequence[Completion],
    prompts: Sequence[EchoedPrompt | None],
    texts: TokenTexts,
    offsets: Sequence[list[int]] | None,
) -> Iterator[dict[str, Any]]:
    """Yield the choices of a response, those of each prompt in turn.

    prompts: the echoed prompt of each answer; None: no echo. offsets: the text offsets of each
        choice's tokens; None: the response has no log-probabilities.
    """
    index = 0
    for one, before in zip(made, prompts, strict=True):
        for choice in one.choices:
            told = None
            if offsets is not None:
                told = _logprobs(one, choice, before, texts, offsets[index])
            yield {
                "index": index,
                "text": ("" if before is None else before[0]) + choice.text,
                "logprobs": told,
                "finish_reason": finish_reason_of(choice.finish_reason),
            }
            index += 1


def usage_of(made: Sequence[Completion]) -> Usage:
    """Return the token counts of several prompts together."""
    return Usage(
        sum(one.usage.prompt_tokens for one in made),
        sum(one.usage.cached_tokens for one in made),
        sum(one.usage.completion_tokens for one in made),
    )


def told_logprobs(choice: Completion, *, is_echo: bool) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of the text's tokens.

    An end token has no part in the text. After an echoed prompt it has an entry all the same,
    because clients that score prompts cut one entry for each generated token.
    """
    return tuple(one for one in choice.logprobs or () if is_echo or not one.is_end)


def _logprobs(
    made: Completion,
    choice: Completion,
    before: EchoedPrompt | None,
    texts: TokenTexts,
    offsets: list[int],
) -> dict[str, Any]:
    drawn = told_logprobs(choice, is_echo=before is not None)
    told = {**_columns(drawn, texts), "text_offset": offsets}
    if before is None or made.prompt_logprobs is None:
        return told
    tokens = [texts.name(token) for token in before[1]]
    logprobs = made.prompt_logprobs
    tops = made.prompt_top_logprobs or [()] * len(tokens)
    likeliest = [
        None if logprob is None else _top(TokenLogprob(token, logprob, top), texts)
        for token, logprob, top in zip(before[1], logprobs, tops, strict=True)
    ]
    return {
        "tokens": tokens + told["tokens"],
        "token_logprobs": [*logprobs, *told["token_logprobs"]],
        "top_logprobs": likeliest + told["top_logprobs"],
        "text_offset": offsets,
    }


def _top(one: TokenLogprob, texts: TokenTexts) -> dict[str, float]:
    """Return the log-probabilities of a token's alternatives and of the token itself, by text.

    Several tokens can have the same text. The token itself has its text as its key, as `tokens` has
    it, and otherwise the likeliest one; the others are `token_id:N`, a key of vLLM.
    """
    own = texts.name(one.token_id)
    found: dict[str, float] = {}
    for token, logprob in one.top:
        name = texts.name(token)
        if token != one.token_id and (name == own or name in found):
            name = f"token_id:{token}"
        found[name] = logprob
    found.setdefault(own, one.logprob)
    return found


def _columns(logprobs: Sequence[TokenLogprob], texts: TokenTexts) -> dict[str, list[Any]]:
    return {
        "tokens": [texts.name(one.token_id) for one in logprobs],
        "token_logprobs": [one.logprob for one in logprobs],
        "top_logprobs": [_top(one, texts) for one in logprobs],
    }


def echo_chunks(
    prompts: Sequence[EchoedPrompt],
    scored: Sequence[Completion] | None,
    n: int,
    texts: TokenTexts,
    head: Mapping[str, Any],
    offsets: Sequence[list[int]],
    *,
    is_all: bool,
) -> list[dict[str, Any]]:
    """Return the chunks that send the prompt to each of `n` samples before generated text.

    scored: completions of the prompts alone, with log-probabilities; None: no log-probabilities.
    offsets: the text offsets of each prompt's tokens, if log-probabilities are sent. is_all: no
        token is generated.
    """
    chunks = []
    for i, prompt in enumerate(prompts):
        one = None if scored is None else scored[i]
        choice = {
            "text": prompt[0],
            "logprobs": None if one is None else _logprobs(one, one, prompt, texts, offsets[i]),
            "finish_reason": "length" if is_all else None,
        }
        chunks += [{**head, "choices": [{"index": i * n + k, **choice}]} for k in range(n)]
    return chunks


def completion_chunks(
    pieces: Iterable[Piece],
    first_index: int,
    offsets: Mapping[int, list[int]],
    texts: TokenTexts,
    head: Mapping[str, Any],
    *,
    is_echo: bool = False,
) -> list[dict[str, Any]]:
    """Return the chunks for the pieces of one step: one for each sample.

    first_index: the index of the prompt's first sample. offsets: the text offsets of each sample's
        tokens, by its index, if log-probabilities are sent. is_echo: the prompts came first.
    """
    chunks = []
    for own_index, own in by_sample(pieces).items():
        index = first_index + own_index
        text = "".join(piece.text for piece in own)
        reason = own[-1].finish_reason
        drawn = joined_logprobs(own, with_end=is_echo)
        logprobs = None
        if drawn is not None:
            logprobs = {**_columns(drawn, texts), "text_offset": offsets[index]}
        if text or logprobs or reason:
            choice = {
                "index": index,
                "text": text,
                "logprobs": logprobs,
                "finish_reason": None if reason is None else finish_reason_of(reason),
            }
            chunks.append({**head, "choices": [choice]})
    return chunks
