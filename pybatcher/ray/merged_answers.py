"""`merged`: combines the answers of all replicas into one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ..calls.call import Question
from ..calls.questions import ReadHealth, ReadStatistics
from ..calls.statistics import BatcherStatistics, Health
from ..errors import EngineFailedError, PybatcherError
from ..sidecar.protocol.codecs import Codec
from ..sidecar.protocol.wire import error_from_wire
from .replicas import Message

__all__ = ["answer_of", "merged"]


def answer_of(codec: Codec[Any], message: Message) -> Any:
    """Return the answer of one replica. Raises the error that it sent instead."""
    name, value = message
    if name != "end":
        raise error_from_wire(value)
    return codec.answer_from_wire(value)


def merged(question: Question[Any], codec: Codec[Any], messages: Sequence[Message]) -> Any:
    """Return the answer to a question that was sent to all replicas.

    Statistics are summed. The health is that of the healthiest replica. For any other question it
    is the first answer that is no error; if all are errors, the first is raised.
    """
    answers: list[Any] = []
    errors: list[PybatcherError] = []
    for message in messages:
        try:
            answers.append(answer_of(codec, message))
        except PybatcherError as error:
            errors.append(error)
    if isinstance(question, ReadHealth):
        return _healthiest(answers)
    if not answers:
        raise errors[0] if errors else EngineFailedError("no replica has answered; try again")
    return _sum(answers) if isinstance(question, ReadStatistics) else answers[0]


def _healthiest(answers: Sequence[Health]) -> Health:
    if not answers:
        return Health("failed", "no replica has answered")
    n_ready = sum(one.ok for one in answers)
    best = next((one for one in answers if one.ok), answers[0])
    return Health(best.status, f"{n_ready} of {len(answers)} replicas are ready: {best.reason}")


def _sum(answers: Sequence[BatcherStatistics]) -> BatcherStatistics:
    names = [field.name for field in fields(BatcherStatistics)]
    return BatcherStatistics(**{name: sum(getattr(one, name) for one in answers) for name in names})
