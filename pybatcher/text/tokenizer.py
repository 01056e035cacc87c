"""`Tokenizer`: turns text into token ids and back, with the `tokenizers` library."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InvalidRequestError, ModelFormatError
from ..errors.checks import REQUEST
from .decoding import bytes_reader
from .longest_token import definition_of, longest_token
from .portions import Portions

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

__all__ = ["Tokenizer"]

_BEFORE = "a"  # a text that any token can follow
_PORTION = 65_536  # characters; they take a tenth of a second
_QUICK = 1024  # characters; tokenised in well under a millisecond
_QUICK_WORK = 8 * _QUICK  # ... that all steps of a normalizer make of a text
_UNMEASURED = 2**20  # characters; the library takes some tens of bytes for each
_MEASURED = 2**18  # characters that one step makes at most of what is measured at once
_LEAST_MEASURED = 64
_GROWS_LITTLE = 4  # times


class Growth(Protocol):
    """Bounds of what a tokenizer makes of texts: `loading.tokenizers.growth.Growth`."""

    @property
    def normalized(self) -> int:
        """The most characters that the normalizer makes of one, at any of its steps."""

    @property
    def work(self) -> int:
        """The characters that all its steps together make of one, at least 1."""

    @property
    def decoded(self) -> int:
        """The most characters that the decoder makes of one character of a token."""

    @property
    def is_quick(self) -> bool:
        """False if the time may not be proportional to the text."""


class Tokenizer:
    """Turns text into token ids and back. Immutable; for any thread.

    backend: a tokenizer without padding or truncation; None for a checkpoint without a tokenizer:
        texts are then refused, and ids decode to nothing.
    bos_token_id: None if the model has none.
    eos_token_ids: every token that ends a text.
    growth: bounds of how much longer `backend` makes texts; None: it does not.

    `encode` and `decode` release the GIL while they work, so that a long text handled on another
    thread does not stall an event loop (the library's own `encode` holds it; its batch calls do
    not, which is why they are used).
    """

    def __init__(
        self,
        backend: Backend | None,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        growth: Growth | None = None,
    ) -> None:
        self._backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_ids = frozenset(eos_token_ids)
        self._tokens: dict[int, str] = {}
        self._analysis = threading.Lock()
        self.special_token_ids: frozenset[int] = frozenset()
        self.decoder_settings: dict[str, Any] | None = None
        self.vocab_size = 0
        self.quick_length = _QUICK
        """The most characters of a text that `encode` surely turns into tokens at once."""
        self._most_normalized = self._most_decoded = 1
        if growth is not None:
            self._most_normalized, self._most_decoded = growth.normalized, growth.decoded
            self.quick_length = min(_QUICK, _QUICK_WORK // growth.work) if growth.is_quick else 0
        if backend is not None:
            self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
            added = backend.get_added_tokens_decoder()
            self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
            if backend.decoder is not None:
                self.decoder_settings = json.loads(backend.decoder.__getstate__())

    @property
    def available(self) -> bool:
        """True if there is a tokenizer, so that texts can be served."""
        return self._backend is not None

    @property
    def definition(self) -> str | None:
        """The tokenizer in the JSON of tokenizer.json; None without one. Slow."""
        return None if self._backend is None else str(_called(definition_of, self._backend))

    @property
    def longest_token(self) -> int:
        """The most bytes of text that one token represents. Slow on first use."""
        with self._analysis:
            return self._longest_token

    @cached_property
    def _longest_token(self) -> int:
        return 1 if self._backend is None else int(_called(longest_token, self._backend))

    @property
    def portions(self) -> Portions | None:
        """The `Portions` of this tokenizer; None if they are not exact. Slow on first use."""
        with self._analysis:
            return self._portions

    @cached_property
    def _portions(self) -> Portions | None:
        if self._backend is None:
            return None
        portions: Portions = _called(Portions, self._backend)
        return portions if portions.is_exact else None

    def encode_long(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        goes_on: Callable[[int], bool] = lambda n_tokens: True,
    ) -> list[int]:
        """Return the token ids that `encode` returns, computed by portions if these are exact.

        goes_on: called between portions with the number of tokens so far. If it returns False, only
            these tokens are returned.
        """
        portions = self.portions if len(text) > _PORTION else None
        if portions is None:
            return self.encode(text, add_special_tokens=add_special_tokens)
        before, after = portions.around if add_special_tokens else ([], [])
        ids = list(before)
        for portion in portions.of(text, _PORTION):
            if not goes_on(len(ids)):
                return ids
            ids += self.encode(portion, add_special_tokens=False)
        return ids + after

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`.

        add_special_tokens: add the tokens that the model expects around a text (such as a BOS).
            False for a rendered chat, which has them already.
        Raises InvalidRequestError for anything but a text, for lone surrogates, and if the model
        has no tokenizer; ModelFormatError if its tokenizer fails.
        """
        text = REQUEST.text("the text", text, "str")
        if self._backend is None:
            raise InvalidRequestError(
                "the model has no tokenizer.json and no tokenizer.model, so that a prompt cannot "
                "be a text; give it as token ids"
            )
        encode = self._backend.encode_batch_fast
        batch = _called(encode, [text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def encode_cut(self, text: str, most: int, *, from_left: bool = False) -> list[int]:
        """Return at most `most` token ids of `text`, the special tokens around it included.

        The text between these is cut at its end, or at its beginning, as by transformers'
        `truncation`. Raises InvalidRequestError if there is no room between the special tokens, and
        the errors of `encode`.
        """
        ids = self.encode_long(text)
        if len(ids) <= most or self._backend is None:
            return ids
        room = most - self._backend.num_special_tokens_to_add(False)
        if room < 1:
            raise InvalidRequestError(
                f"a text is to be cut to {most} tokens, and the special tokens around it are "
                f"{most - room}"
            )
        (whole,) = _called(self._backend.encode_batch_fast, [text], add_special_tokens=False)
        whole.truncate(room, direction="left" if from_left else "right")
        cut: list[int] = _called(self._backend.post_process, whole, None, True).ids
        return cut

    def normalized_length(
        self, text: str, goes_on: Callable[[int], bool] = lambda n_characters: True
    ) -> int:
        """Return about how many characters of memory `encode` takes for a text.

        These are the most characters that the text has before or after any step of the normalizer.
        The text is measured by parts, and not at all if it surely stays small.
        goes_on: called between the parts with the number so far; False ends the measuring.
        """
        most = self._most_normalized
        if self._backend is None or most <= _GROWS_LITTLE or len(text) * most <= _UNMEASURED:
            return len(text)
        stages = list(_flat(self._backend.normalizer))
        lengths = [len(text)] + [0] * len(stages)
        size = max(_LEAST_MEASURED, _MEASURED // most)
        for start in range(0, len(text), size):
            part = text[start : start + size]
            for i, stage in enumerate(stages):
                part = _called(stage.normalize_str, part)
                lengths[i + 1] += len(part)
            if not goes_on(max(lengths)):
                break
        return max(lengths)

    def decoded_length(self, ids: Sequence[int]) -> int:
        """Return an upper bound of the characters of `decode`."""
        n_characters = sum(1 + len(self.token(i) or "") for i in map(int, ids))
        return n_characters * self._most_decoded

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`. An id without a token adds no text.

        Raises ModelFormatError if the tokenizer fails.
        """
        if self._backend is None:
            return ""
        known = [i for i in map(int, ids) if self.token(i) is not None]
        decode = self._backend.decode_batch
        text: str = _called(decode, [known], skip_special_tokens=skip_special_tokens)[0]
        return text

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Return the bytes that each of these tokens adds to a text, after another token.

        The joined bytes of tokens are their text in UTF-8, except that some tokenizers drop the
        space of a text's first token. A token that is a part of a character has the bytes of that
        part, and a special token those of its spelling. An id without a token has none.

        Raises ModelFormatError if the tokenizer fails.
        """
        read = bytes_reader(self.decoder_settings)
        tokens = list(map(self.token, map(int, ids)))
        if read is not None:
            return [b"" if token is None else read(token) for token in tokens]
        before = self.encode(_BEFORE, add_special_tokens=False) if self.available else []
        text = self.decode(before, skip_special_tokens=False)
        after = (self.decode([*before, one], skip_special_tokens=False) for one in ids)
        return [one.removeprefix(text).encode("utf-8", "replace") for one in after]

    def added_token_ids(self, texts: Iterable[str]) -> dict[str, int]:
        """Return the ids of those texts that are added tokens, which are never cut in two."""
        wanted = frozenset(texts)
        if self._backend is None:
            return {}
        added = self._backend.get_added_tokens_decoder()
        return {token.content: i for i, token in added.items() if token.content in wanted}

    def token(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it; None if no token has the id."""
        try:
            return self._tokens[token_id]
        except KeyError:
            token = None
            if self._backend is not None and 0 <= token_id < 2**32:
                token = self._backend.id_to_token(token_id)
                if token is not None:  # so that there are never more than the vocabulary has
                    self._tokens[token_id] = token
            return token


def _flat(normalizer: Any) -> Iterator[Any]:
    """Yield the steps of a normalizer, in order."""
    if not hasattr(type(normalizer), "__getitem__"):
        yield normalizer
        return
    for i in count():
        try:
            step = normalizer[i]
        except IndexError:
            return
        yield from _flat(step)


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the library. Its panics, which are no `Exception`, raise ModelFormatError."""
    try:
        return function(*args, **kwargs)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ModelFormatError(f"the model's tokenizer failed: {error}") from error
