"""`Call`: a prompt to continue, not checked yet. `CallService`: the interface of all services.

Every public method ends in one of three methods of a `CallService`: `submit`, `cancel`, `ask`. The
batcher of a process has one (`serving.service.Service`), the client of a sidecar another.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..errors import EngineError, InvalidRequestError, PybatcherError
from ..errors.checks import short, type_name
from ..params import SamplingParams
from .chat_settings import CHAT_OPTIONS, ChatSettings
from .options import ChatOptions, GenerateOptions, check_names
from .reply import Reply
from .telemetry import Handler
from .trace_headers import current_trace_headers

__all__ = [
    "OF_EVERY_CALL",
    "Call",
    "CallOptions",
    "CallService",
    "Messages",
    "Prompt",
    "Prompts",
    "Question",
    "chat_call",
    "only_typed_errors",
    "prompt_call",
]

Prompt = str | Sequence[int]
"""A text, or token ids (a list, a tuple, a one-dimensional numpy array or tensor)."""

Messages = Sequence[Mapping[str, Any]] | Sequence[int]
"""A chat in OpenAI's format, [{"role": "user", "content": "..."}, ...], or its token ids."""

Prompts = Sequence[str] | Sequence[list[int]] | Sequence[tuple[int, ...]]
"""Several prompts, for which `generate` returns a list."""

T = TypeVar("T")

_LOGGER = logging.getLogger("pybatcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options that every call may have: the fields of `RequestOptions`, not checked yet.

    tenant: the name under which the call takes turns with calls of other tenants. In the sidecar
        each connection is a tenant of its own, unless its calls name one.
    trace_headers: the trace that the call belongs to; by default the trace of the current span.
    """

    priority: int = 0
    timeout: float | None = None
    namespace: str | None = None
    tenant: str | None = None
    trace_headers: Mapping[str, str] | None = field(default_factory=current_trace_headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(CallOptions):
    """A prompt to continue, or messages if `chat` is set. Not checked yet.

    content: the prompt, or the messages of a chat, or the token ids that `Tokenize` returned for
        them.
    chat: the settings of a chat; None for a prompt.
    sampling: fields of SamplingParams that override those of `params`.
    output: token ids that were already generated for the prompt; the output continues after them.
    """

    content: Prompt | Messages
    chat: ChatSettings | None = None
    params: SamplingParams | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    output: Prompt = ()


OF_EVERY_CALL = ("priority", "timeout", "namespace", "tenant", "trace_headers")
"""The keywords of users that are fields of `CallOptions`."""


def prompt_call(
    content: Any,
    params: SamplingParams | None,
    options: Mapping[str, Any],
    kind: type = GenerateOptions,
) -> Call:
    """Make the `Call` of a prompt. Raises InvalidRequestError for an unknown keyword.

    kind: the `TypedDict` of the allowed keywords.
    """
    sampling = dict(options)
    for name in sampling:
        if name in CHAT_OPTIONS:
            raise InvalidRequestError(
                f"{name} is an option of chats; give messages to `chat` or `stream_chat`",
                field=name,
            )
    check_names(sampling, kind)
    own = {name: sampling.pop(name) for name in (*OF_EVERY_CALL, "output") if name in sampling}
    return Call(content=content, params=params, sampling=sampling, **own)


def chat_call(content: Any, params: SamplingParams | None, options: Mapping[str, Any]) -> Call:
    """Make the `Call` of messages. Raises InvalidRequestError for an unknown keyword."""
    sampling = dict(options)
    check_names(sampling, ChatOptions)
    chat = ChatSettings.take(sampling)
    own = {name: sampling.pop(name) for name in OF_EVERY_CALL if name in sampling}
    return Call(content=content, chat=chat, params=params, sampling=sampling, **own)


class Question(Generic[T]):
    """Base of all questions: calls with one answer, of type T. The kinds are in `questions.py`."""

    __slots__ = ()


class CallService(ABC):
    """Takes calls and questions, and serves them here or elsewhere. For one event loop."""

    @abstractmethod
    async def submit(self, call: Call, reply: Reply) -> range:
        """Check a call and send it; return the ids of its requests. Results go to `reply`.

        Nothing is sent if the method raises or is cancelled. Raises a PybatcherError.
        """

    @abstractmethod
    def cancel(self, request_ids: range) -> None:
        """Drop requests; their reply gets no further results. From any thread; never waits."""

    @abstractmethod
    async def ask(self, question: Question[T]) -> T:
        """Return the answer. Cancelling drops the question. Raises a PybatcherError."""

    @abstractmethod
    def attach(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event from now on. Return a function that detaches it."""


@contextmanager
def only_typed_errors(what: str) -> Iterator[None]:
    """Raise an EngineError in place of any exception that is no PybatcherError, with its cause.

    This is the one place where an unforeseen exception (a defect, or a caller's object whose
    methods raise) becomes the error of its own call. The log "pybatcher" gets the traceback.

    what: the name of the call in the message.
    """
    try:
        yield
    except PybatcherError:
        raise
    except Exception as error:
        _LOGGER.exception("a call failed")
        raise EngineError(
            f"{what} could not be served: {type_name(error)}: {short(error)}"
        ) from error
