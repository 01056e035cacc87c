"""`PromptReader`: turns prompts and messages into checked token ids, without blocking the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from ..calls.arguments import MOST_IDS, check_ids, number_of_ids
from ..errors import InvalidRequestError, RequestTooLongError
from ..errors.checks import REQUEST, plain_int, plain_text, short, type_name
from ..scheduling import PromptImages
from ..text import ChatTemplate, Tokenizer
from ..text.chat_images import ChatImage
from .fair_slots import FairSlots
from .image_room import ImageRoom

if TYPE_CHECKING:
    from .image_reader import ImageReader

__all__ = ["ChatPrompt", "PromptReader", "Truncation", "check_messages"]

ChatPrompt = tuple[tuple[int, ...], PromptImages | None]
"""The token ids of a chat, and its images; None: it has none."""

_T = TypeVar("_T")

_SHORT_LIST = 1024  # token ids
_SHORT_DECODED = 2**16  # characters
_SLICE = 8192  # token ids that are checked in one turn of the loop
_AT_A_TIME = 4  # long texts and chats at a time; each takes a thread and some megabytes
_MOST_EACH = 2  # ... of one tenant
_LISTS_AT_ONCE = 256  # lists of token ids that are checked in one turn of the loop
_MOST_COUNTED = 2**18  # tokens of a text in `tokenize`, which the answer has
_MOST_MESSAGES = 2**16
_MOST_GROWN = 2**20  # characters that a normalizer makes of a short text
_MOST_GROWTH = 8  # times that a long text is as long after a normalizer
_MOST_DECODED = 2**26  # characters of one `detokenize`
_MESSAGES = 'a list of at least one {"role": ..., "content": ...}'


def check_messages(messages: object) -> tuple[Any, ...]:
    """Return the messages of a chat, at least one. Only the first one is checked.

    Raises InvalidRequestError.
    """
    if plain_text(messages) is not None:
        raise REQUEST.bad(
            "messages", messages, f"{_MESSAGES}; a text to continue is for `generate`"
        )
    if isinstance(messages, Mapping):
        raise REQUEST.bad("messages", messages, f"{_MESSAGES}, also for one message")
    checked = REQUEST.items("messages", messages, _MOST_MESSAGES, _MESSAGES)
    if not checked:
        raise REQUEST.bad("messages", messages, _MESSAGES)
    first = checked[0]
    hint = ""
    if isinstance(first, (list, tuple)):
        hint = "; a call takes one conversation: make one call for each, with asyncio.gather"
    elif plain_text(first) is not None:
        hint = "; several texts to continue are for `generate`"
    if hint:
        wanted = 'be {"role": ..., "content": ...}'
        raise InvalidRequestError(
            f"messages[0] is {short(first)}, of type {type_name(first)}; it must {wanted}{hint}",
            field="messages[0]",
        )
    return checked


@dataclass(frozen=True, slots=True)
class Truncation:
    """The most tokens of a text to embed or to count, and its treatment if it has more.

    most: the limit. cuts: True if the text is cut, False if it is refused. from_left: True if its
    beginning is cut off, False if its end is. advice: the remedy, for the error. counts: True for
    a text whose tokens are counted, so that it may have more of them than a sequence.
    """

    most: int
    cuts: bool
    from_left: bool
    advice: str
    counts: bool = False


class PromptReader:
    """Turns prompts and chats into token ids of one model.

    vocab_size: size of the model's vocabulary, which a tokenizer with added tokens may exceed.
    n_positions: most tokens of a sequence. A text or a list of token ids that cannot fit is refused
        before it is read.
    advice: the remedy against prompts that are too long, for errors.
    images: reads the images of chats; None: the model takes none.

    Long texts are tokenised on other threads, a few at a time, and only as long as their callers
    wait for them. Belongs to one event loop.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        *,
        vocab_size: int,
        n_positions: int,
        advice: str,
        images: ImageReader | None = None,
    ) -> None:
        self._images, self._image_room = images, ImageRoom()
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._vocab_size = vocab_size
        self._n_positions = n_positions
        # Lists of up to _SLICE ids are read: admission refuses lists that are too long.
        self._most_ids = max(n_positions, _SLICE)
        self._most_counted = max(n_positions, MOST_IDS)
        self._advice = advice
        most = max(n_positions, _MOST_COUNTED)
        counting = f"one call counts at most {most} tokens: divide or shorten it"
        self._counted = Truncation(most, False, False, counting, counts=True)
        self._slots = FairSlots(_AT_A_TIME, _MOST_EACH)

    async def read(
        self,
        prompt: object,
        *,
        before: tuple[int, ...] = (),
        field: str = "prompt",
        add_special_tokens: bool = True,
        any_length: bool = False,
        tenant: str = "",
        limit: Truncation | None = None,
    ) -> tuple[int, ...]:
        """Return the prompt's token ids, at least one.

        before: tokens that come before a text; with any, the text gets no special tokens of its
            own. A prompt of token ids is returned unchanged.
        field: the name of the prompt in errors. add_special_tokens: False leaves out the special
            tokens of a text. any_length: True reads a prompt that has more tokens than a sequence
            has positions, to count them, up to `_MOST_COUNTED` and `MOST_IDS`. limit: a lower limit
            for the tokens of a text.
        Raises InvalidRequestError for a prompt that is empty, is neither a text nor a sequence of
        whole numbers, or has tokens outside the vocabulary; RequestTooLongError for a prompt with
        more tokens than a sequence has positions.
        """
        text = plain_text(prompt)
        if text is None:
            wanted = f"a text or a sequence of token ids{_for_chat(prompt)}"
            most = self._most_counted if any_length else self._most_ids
            return await self._read_ids(prompt, field, wanted, most)
        if not text:
            raise InvalidRequestError(
                f"{field} is ''; it must have at least one character", field=field
            )
        with_special = add_special_tokens and not before
        tokens = before + await self._encode(
            text,
            field,
            tenant=tenant,
            add_special_tokens=with_special,
            any_length=any_length,
            limit=limit,
        )
        if not tokens:
            raise InvalidRequestError(
                f"{field} is {short(text)}, which makes no token", field=field
            )
        return tokens

    async def read_embedded(
        self, text: object, limit: Truncation, *, field: str, prefix: str = "", tenant: str = ""
    ) -> tuple[int, ...]:
        """Return the token ids of a text to embed, at least one and at most `limit.most`.

        prefix: a text that comes before a text, not before token ids. Raises the errors of `read`.
        """
        plain = plain_text(text)
        if not limit.cuts:
            asked: Any = text if plain is None or not prefix else prefix + plain
            tokens = await self.read(asked, field=field, tenant=tenant, limit=limit)
            if len(tokens) > limit.most < self._n_positions:  # else admission refuses the text
                raise self._too_long(field, f"has {len(tokens)} tokens", limit)
            return tokens
        if plain is None:
            wanted = "a text or a sequence of token ids"
            tokens = await self._read_ids(text, field, wanted, self._most_counted)
            return tokens[-limit.most :] if limit.from_left else tokens[: limit.most]
        if not plain:
            return await self.read(plain, field=field)
        REQUEST.unicode(field, plain)
        whole = prefix + plain

        def encode(is_wanted: Callable[[], bool]) -> tuple[int, ...]:
            self._check_growth(whole, field, is_wanted)
            made = self._tokenizer.encode_cut(whole, limit.most, from_left=limit.from_left)
            return self._checked(made)

        is_quick = len(whole) <= self._tokenizer.quick_length
        tokens = encode(lambda: True) if is_quick else await self.on_thread(encode, tenant)
        if not tokens:
            raise InvalidRequestError(
                f"{field} is {short(plain)}, which makes no token", field=field
            )
        return tokens

    async def read_ids(
        self,
        ids: object,
        *,
        field: str,
        may_be_empty: bool = False,
        any_length: bool = False,
    ) -> tuple[int, ...]:
        """Return the token ids of one sequence, at least one unless `may_be_empty`.

        any_length: as in `read`.

        Raises InvalidRequestError, RequestTooLongError.
        """
        if may_be_empty and type(ids) is tuple and not ids:
            return ids
        wanted = "a sequence of token ids"
        most = self._most_counted if any_length else self._most_ids
        return await self._read_ids(ids, field, wanted, most, may_be_empty)

    async def read_chat(
        self,
        messages: object,
        images: Sequence[ChatImage] = (),
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        any_length: bool = False,
        tenant: str = "",
    ) -> ChatPrompt:
        """Return the token ids of a chat, up to where the assistant's turn begins, and its images.

        images: those that `take_images` took out of the messages.
        tools, variables: as in `ChatTemplate.render`. any_length, tenant: as in `read`.

        Rendering runs a program that came with the model, so it always runs on another thread, and
        ends when the caller waits no longer. Images are decoded on that thread too.
        Raises InvalidRequestError for malformed messages and images, RequestTooLongError for more
        text and images than a sequence has room for, ModelFormatError for a broken template.
        """
        checked = check_messages(messages)
        with REQUEST.reading("messages", messages, _MESSAGES):
            n_characters = sum(map(_n_characters, checked))
        if n_characters > self._n_positions and not any_length:
            await self._check_length("messages", n_characters)
        render = partial(self._chat_template.render, checked, tools=tools, variables=variables)
        if images:
            return await self._read_with_images(images, render, tenant, any_length)
        text = await self.on_thread(lambda is_wanted: render(goes_on=is_wanted), tenant)
        tokens = await self._encode(
            text, "messages", tenant=tenant, add_special_tokens=False, any_length=any_length
        )
        if not tokens:
            raise InvalidRequestError(
                "messages: the chat template makes no token of them", field="messages"
            )
        return tokens, None

    async def _read_with_images(
        self,
        images: Sequence[ChatImage],
        render: Callable[..., str],
        tenant: str,
        any_length: bool,
    ) -> ChatPrompt:
        """Return the prompt. render: renders the chat, given `stand_ins` and `goes_on`."""
        reader = self._images
        if reader is None:
            raise InvalidRequestError(
                f"{images[0].where} is an image, and this model takes no images "
                "(model_info().takes_images): leave it out, or open a vision model",
                field=images[0].where,
            )
        reader.check(images)
        limit = self._counted if any_length else None
        most = self._most(limit)

        def check(n_tokens: int) -> None:
            if n_tokens > most:
                fault = f"have images of {n_tokens} tokens or more"
                raise self._too_long("messages", fault, limit)

        def read(is_wanted: Callable[[], bool]) -> tuple[tuple[int, ...], PromptImages]:
            def encode(text: str) -> tuple[int, ...]:
                return self._encode_here(
                    text, "messages", is_wanted, add_special_tokens=False, limit=limit
                )

            return reader.read(
                images,
                lambda stand_ins: render(stand_ins=stand_ins, goes_on=is_wanted),
                encode,
                check,
                is_wanted,
            )

        async with self._image_room.entered(tenant):
            tokens, placed = await self.on_thread(read, tenant)
            self._image_room.hold(placed)
        return tokens, placed

    async def detokenize(self, token_ids: object) -> str:
        """Return the text of token ids, special tokens included.

        Raises InvalidRequestError, and RequestTooLongError for more ids than `check_ids` allows.
        """
        ids = await self._read_decoded(token_ids)
        decode = partial(self._tokenizer.decode, skip_special_tokens=False)
        if self._is_decoded_quickly([ids]):
            return decode(ids)
        return await self.on_thread(lambda _: decode(self._checked_ids([ids])[0]))

    async def token_bytes(self, token_ids: object) -> list[bytes]:
        """Return the bytes of each token, as `Tokenizer.token_bytes` has them.

        Raises the errors of `detokenize`.
        """
        ids = await self._read_decoded(token_ids)
        bytes_of = self._tokenizer.token_bytes
        if self._is_decoded_quickly([ids]):
            return bytes_of(ids)
        return await self.on_thread(lambda _: bytes_of(self._checked_ids([ids])[0]))

    async def detokenize_each(self, lists: object) -> list[str]:
        """Return the text of each list of token ids, special tokens included.

        Raises InvalidRequestError for anything but lists of token ids, and RequestTooLongError for
        more ids in all than `detokenize` takes.
        """
        check_ids("token_ids", lists, self._n_positions)
        wanted = f"at most {self._most_counted} lists of token ids"
        several = REQUEST.items("token_ids", lists, self._most_counted, wanted)
        checked: list[tuple[int, ...]] = []
        n_left = self._most_counted
        for i, one in enumerate(several):
            if i % _LISTS_AT_ONCE == _LISTS_AT_ONCE - 1:
                await asyncio.sleep(0)
            ids = await self._read_ids(one, f"token_ids[{i}]", "a sequence of token ids", n_left)
            n_left -= len(ids)
            checked.append(ids)
        decode = partial(self._tokenizer.decode, skip_special_tokens=False)
        if self._is_decoded_quickly(checked):
            return list(map(decode, checked))
        return await self.on_thread(lambda _: list(map(decode, self._checked_ids(checked))))

    async def _read_decoded(self, token_ids: object) -> tuple[int, ...]:
        check_ids("token_ids", token_ids, self._n_positions)
        wanted = "a sequence of token ids"
        return await self._read_ids(token_ids, "token_ids", wanted, self._most_counted)

    def _is_decoded_quickly(self, lists: Sequence[tuple[int, ...]]) -> bool:
        if sum(map(len, lists)) > _SHORT_LIST:
            return False
        return sum(map(self._tokenizer.decoded_length, lists)) <= _SHORT_DECODED

    def _checked_ids(self, lists: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
        """Return the lists. Raises RequestTooLongError if there may be too much text in them."""
        n_characters = sum(map(self._tokenizer.decoded_length, lists))
        if n_characters > _MOST_DECODED:
            raise RequestTooLongError(
                f"token_ids may be a text of {n_characters} characters; {_MOST_DECODED} can be "
                "read at once: divide the ids among several calls",
                field="token_ids",
            )
        return lists

    def encode(
        self, text: str, *, add_special_tokens: bool, goes_on: Callable[[int], bool] | None = None
    ) -> tuple[int, ...]:
        """Return the token ids of a text, computed on the calling thread.

        goes_on: called between portions of a long text, with the number of tokens so far; False
            ends the encoding with these tokens.

        Raises InvalidRequestError for tokens that the model lacks.
        """
        tokens = tuple(
            self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            if goes_on is None
            else self._tokenizer.encode_long(
                text, add_special_tokens=add_special_tokens, goes_on=goes_on
            )
        )
        return self._checked(tokens)

    def _checked(self, ids: Sequence[int]) -> tuple[int, ...]:
        tokens = tuple(ids)
        if tokens and max(tokens) >= self._vocab_size:
            raise InvalidRequestError(
                f"the text has the token {max(tokens)}, which the tokenizer knows and the model "
                f"does not: its token ids are from 0 to {self._vocab_size - 1}"
            )
        return tokens

    async def _encode(
        self,
        text: str,
        field: str,
        *,
        tenant: str,
        add_special_tokens: bool,
        any_length: bool,
        limit: Truncation | None = None,
    ) -> tuple[int, ...]:
        if len(text) <= self._tokenizer.quick_length:
            REQUEST.unicode(field, text)
            return self.encode(text, add_special_tokens=add_special_tokens)
        if any_length:
            limit = self._counted
        most = self._most(limit)
        if len(text) > most:
            await self._check_length(field, len(text), limit)
        REQUEST.unicode(field, text)

        encode = partial(
            self._encode_here, text, field, add_special_tokens=add_special_tokens, limit=limit
        )
        return await self.on_thread(encode, tenant)

    def _encode_here(
        self,
        text: str,
        field: str,
        is_wanted: Callable[[], bool],
        *,
        add_special_tokens: bool,
        limit: Truncation | None,
    ) -> tuple[int, ...]:
        """Return the token ids of a text of any length, computed on the calling thread.

        Raises RequestTooLongError for more than the limit.
        """
        most = self._most(limit)
        self._check_growth(text, field, is_wanted)
        tokens = self.encode(
            text,
            add_special_tokens=add_special_tokens,
            goes_on=lambda n_tokens: n_tokens <= most and is_wanted(),
        )
        if len(tokens) > most:
            raise self._too_long(field, f"has {len(tokens)} tokens or more", limit)
        return tokens

    def _check_growth(self, text: str, field: str, is_wanted: Callable[[], bool]) -> None:
        """Raise RequestTooLongError for a text that the normalizer makes far too long."""
        most = max(_MOST_GROWN, _MOST_GROWTH * len(text))
        grown = self._tokenizer.normalized_length(text, lambda n: n <= most and is_wanted())
        if grown > most:
            raise RequestTooLongError(
                f"{field} has {len(text)} characters, of which the normalizer of the tokenizer "
                f"makes {grown} or more; expected at most {most}: shorten it",
                field=field,
            )

    async def _check_length(
        self, field: str, n_characters: int, limit: Truncation | None = None
    ) -> None:
        """Raise RequestTooLongError for a text that is too long whatever its characters are."""
        longest = await asyncio.to_thread(lambda: self._tokenizer.longest_token)
        most = self._most(limit)
        if n_characters > most * longest:
            raise self._too_long(
                field,
                f"has {n_characters} characters, and no token stands for more than {longest} bytes",
                limit,
            )

    def _most(self, limit: Truncation | None) -> int:
        """Return the most tokens of a text."""
        if limit is None:
            return self._n_positions
        return limit.most if limit.counts else min(limit.most, self._n_positions)

    def _too_long(
        self, field: str, fault: str, limit: Truncation | None = None
    ) -> RequestTooLongError:
        if limit is not None and (limit.counts or limit.most < self._n_positions):
            return RequestTooLongError(f"{field} {fault}; {limit.advice}", field=field)
        return RequestTooLongError(
            f"{field} {fault}; a sequence has {self._n_positions} positions: {self._advice}",
            field=field,
        )

    async def on_thread(self, work: Callable[[Callable[[], bool]], _T], tenant: str = "") -> _T:
        """Run `work` on another thread, a few at a time.

        work: called with a function that returns whether the caller still waits for the result.
        """
        await self._slots.acquire(tenant)
        is_wanted = True
        try:
            running = asyncio.get_running_loop().run_in_executor(
                None, lambda: work(lambda: is_wanted)
            )
        except BaseException:
            self._slots.release(tenant)
            raise
        running.add_done_callback(partial(self._release_slot, tenant))
        try:
            return await asyncio.shield(running)
        finally:
            is_wanted = False

    def _release_slot(self, tenant: str, running: asyncio.Future[Any]) -> None:
        self._slots.release(tenant)
        if not running.cancelled():
            # without this call asyncio logs an exception that was never retrieved, if the caller is
            # gone
            running.exception()

    async def _read_ids(
        self, ids: object, field: str, wanted: str, most: int, may_be_empty: bool = False
    ) -> tuple[int, ...]:
        with REQUEST.reading(field, ids, wanted):
            n_ids = number_of_ids(ids)
            if n_ids is None:
                raise InvalidRequestError(
                    f"{field} is {short(ids)}, of type {type_name(ids)}; it must be {wanted}",
                    field=field,
                )
            if n_ids > most:
                raise self._too_many(field, n_ids, most)
            listed = ids.tolist() if hasattr(ids, "tolist") else ids
            # `tolist` of an array without dimensions returns no sequence
            if not isinstance(listed, Sequence):
                raise REQUEST.bad(field, ids, wanted)
            remaining = iter(listed)
            checked: list[int] = []
            while slice_ := list(islice(remaining, _SLICE)):
                if checked:
                    await asyncio.sleep(0)
                checked += _check_slice(slice_, len(checked), self._vocab_size, field)
                if len(checked) > most:
                    raise self._too_many(field, len(checked), most)
        if not checked and not may_be_empty:
            raise InvalidRequestError(
                f"{field} is {short(ids)}; it must have at least one token id", field=field
            )
        return tuple(checked)

    def _too_many(self, field: str, n_ids: int, most: int) -> RequestTooLongError:
        if most == self._most_ids:
            return self._too_long(field, f"has {n_ids} token ids")
        return RequestTooLongError(
            f"{field} has {n_ids} token ids; one call takes at most {most}: shorten it", field=field
        )


def _for_chat(value: object) -> str:
    """Return the remedy for a message in the place of a prompt or a token id, else ""."""
    return "; messages are for `chat`" if issubclass(type(value), Mapping) else ""


def _n_characters(message: object) -> int:
    """Return the number of text characters in a message's content.

    The template checks any other content.
    """
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, (list, tuple)):
        return 0
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return sum(len(text) for text in texts if isinstance(text, str))


def _check_slice(values: list[Any], start: int, vocab_size: int, field: str) -> list[int]:
    ids: list[int] = []
    if set(map(type, values)) == {int}:
        ids = values
    else:
        for i, value in enumerate(values):
            token = plain_int(value)
            if token is None:
                raise InvalidRequestError(
                    f"{field}[{start + i}] is {short(value)}, of type {type_name(value)}; "
                    f"a token id is a whole number{_for_chat(value)}",
                    field=f"{field}[{start + i}]",
                )
            ids.append(token)
    if min(ids) < 0 or max(ids) >= vocab_size:
        bad = next(i for i, token in enumerate(ids) if not 0 <= token < vocab_size)
        raise InvalidRequestError(
            f"{field}[{start + bad}] is {short(ids[bad])}; token ids of this model are "
            f"from 0 to {vocab_size - 1}",
            field=f"{field}[{start + bad}]",
        )
    return ids
