"""Codecs of statistics, health and telemetry events, to and from the wire.

The wire has maps of the fields by their names; unknown fields are ignored. The functions that read
raise ProtocolError and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from ...calls.statistics import BatcherStatistics, Health
from ...calls.telemetry import RequestEvent, StepEvent, TelemetryEvent
from .sidecar_statistics import SidecarStatistics
from .wire_fields import ANSWERED

__all__ = [
    "event_from_wire",
    "event_to_wire",
    "health_from_wire",
    "health_to_wire",
    "statistics_from_wire",
    "statistics_to_wire",
]

_EVENTS: dict[str, type[StepEvent | RequestEvent]] = {"step": StepEvent, "request": RequestEvent}
_OF_NO_FRONT = {
    "worker_restarts": 0,
    "replayed_requests": 0,
    "connections": 0,
    "in_flight": 0,
    "worker_pids": [],
}
_OF_OLD_SIDECARS = {"max_running": 0, "max_rows": 0}
_STATES = get_args(get_type_hints(Health)["status"])
_NEW = ("kind", "trace_headers", "max_tokens", "temperature", "top_p")
"""Fields of events that an older sidecar does not send."""
_TYPES = {kind: get_type_hints(kind) for kind in _EVENTS.values()}


def statistics_to_wire(statistics: BatcherStatistics) -> dict[str, Any]:
    """Return the map of statistics, with the fields of its own class."""
    return {field.name: getattr(statistics, field.name) for field in fields(statistics)}


def statistics_from_wire(wire: object) -> SidecarStatistics:
    """Return the received statistics; missing counts of the front are 0.

    Raises ProtocolError.
    """
    said = {**_OF_NO_FRONT, **_OF_OLD_SIDECARS, **ANSWERED.map(wire, "the statistics")}
    pids = ANSWERED.wholes(said["worker_pids"], "statistics.worker_pids")
    return SidecarStatistics(
        **{
            field.name: ANSWERED.whole(said.get(field.name), f"statistics.{field.name}")
            for field in fields(SidecarStatistics)
            if field.name != "worker_pids"
        },
        worker_pids=tuple(pids),
    )


def health_to_wire(health: Health) -> dict[str, Any]:
    """Return the map of a health."""
    return {"status": health.status, "reason": health.reason, "ok": health.ok}


def health_from_wire(wire: object) -> Health:
    """Return the received health. Raises ProtocolError."""
    said = ANSWERED.map(wire, "the health")
    status: Any = ANSWERED.text(said.get("status"), "health.status")
    if status not in _STATES:
        raise ANSWERED.bad("health.status", status, "one of " + ", ".join(_STATES))
    return Health(status, ANSWERED.text(said.get("reason"), "health.reason"))


def event_to_wire(event: TelemetryEvent) -> list[Any]:
    """Return the params of an `event` Notification: [kind, fields]."""
    kind = "step" if isinstance(event, StepEvent) else "request"
    return [kind, {field.name: getattr(event, field.name) for field in fields(event)}]


def event_from_wire(params: Sequence[object]) -> TelemetryEvent:
    """Return the received event. Raises ProtocolError."""
    if len(params) != 2:
        raise ANSWERED.bad("the event", params, "[kind, fields]")
    name = ANSWERED.text(params[0], "the event's kind")
    if name not in _EVENTS:
        raise ANSWERED.bad("the event's kind", name, "one of " + ", ".join(_EVENTS))
    kind, said = _EVENTS[name], ANSWERED.map(params[1], "the event")
    return kind(
        **{
            key: _read(said, key, wanted, f"event.{key}")
            for key, wanted in _TYPES[kind].items()
            if key in said or key not in _NEW
        }
    )


def _read(said: Mapping[str, Any], key: str, wanted: object, name: str) -> Any:
    value = said.get(key)
    if wanted is float:
        return ANSWERED.number(value, name)
    if wanted is str:
        return ANSWERED.text(value, name)
    if wanted == Mapping[str, str]:
        return {
            ANSWERED.text(one, name): ANSWERED.text(text, name)
            for one, text in ANSWERED.map(value, name).items()
        }
    if wanted == tuple[float, ...]:
        return ANSWERED.numbers(value, name)
    if wanted == float | None:
        return None if value is None else ANSWERED.number(value, name)
    return ANSWERED.whole(value, name, -1000)  # a priority may be below 0
