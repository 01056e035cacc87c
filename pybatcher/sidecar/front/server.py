"""`Server`: the front process: its listeners, its signals and its shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import Any

from ...calls.threads.loop_thread import on_own_thread
from ...errors import BatcherClosedError, ConfigError, PybatcherError
from ..protocol.address import default_socket_path
from .descriptors import allow_descriptors
from .front import Front
from .http_listener import HttpListener
from .listener import Listener
from .listening import inherited_socket
from .notify import Notifier
from .otlp_traces import OtlpTraces
from .serve_config import ServeConfig
from .socket_listener import SocketListener
from .worker_spec import WorkerSpec

__all__ = ["Server"]

_LOGGER = logging.getLogger("pybatcher.sidecar")
_FAILED = 1
_INTERRUPTED = 130

_HANG_UP_GRACE = 1.0
"""Seconds that clients have to read their last answers."""

_READING_TIMEOUT = 10.0
"""Seconds in which the files of the options must be read at a SIGHUP."""

_RELOADED = (
    *("allow_uids", "allow_origins", "allow_hosts", "api_key_file", "allow_no_key"),
    "drain_timeout",
    *("max_worker_restarts", "worker_restart_window", "hang_timeout", "start_timeout"),
)
"""The options of ServeConfig that a reload applies, now or to the new workers."""


class Server:
    """Serves clients from `run` until a signal ends it, or until no worker can be started.

    specs: specifications of the workers, by the names of their models; "" stands for the model's
        own name. Each worker has a front of its own and does not affect the others.
    read: called on a thread at a SIGHUP; returns the new `specs` and `config`.
    """

    def __init__(
        self,
        specs: Mapping[str, WorkerSpec],
        config: ServeConfig,
        read: Callable[[], tuple[Mapping[str, WorkerSpec], ServeConfig]],
    ) -> None:
        self._specs = dict(specs)
        self._config = config
        self._read = read
        self._listeners: list[Listener] = []
        self._http: HttpListener | None = None
        self._traces: OtlpTraces | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._n_interrupts = 0
        self._reading: asyncio.Future[Any] | None = None

    async def run(self) -> int:
        """Serve. Returns the exit status.

        Raises ConfigError or ModelFormatError where the server cannot start.
        """
        self._loop = asyncio.get_running_loop()
        self._told_to_end = asyncio.Event()
        self._told_to_stop = asyncio.Event()
        self._notifier = Notifier.from_environ(os.environ)
        try:
            self._listen()
            self._fronts = {
                name: Front(spec, self._config, partial(self._n_connections, name))
                for name, spec in self._specs.items()
            }
            try:
                served = self._fronts
                if (name := self._config.served_model_name) is not None:
                    (front,) = self._fronts.values()
                    served = {name: front}
                if self._traces is not None:
                    self._traces.start(served)
                for listener in self._listeners:
                    await listener.start(served if listener is self._http else self._fronts)
                self._handle_signals()
                return await self._serve()
            finally:
                await self._close_fronts("the sidecar has ended")
                if self._traces is not None:
                    await self._traces.close()
        finally:
            for listener in self._listeners:
                listener.close()

    def _listen(self) -> None:
        """Open all sockets. Raises ConfigError."""
        config = self._config
        _check(config)
        serves_http = _serves_http(config)
        if any(self._specs) and config.served_model_name is not None:
            raise ConfigError("served_model_name is given, and model has a name; give one of them")
        if serves_http and not config.no_socket and not self._has_place_for_sockets():
            _LOGGER.info("HTTP only: there is no place for a unix socket; give socket to have one")
        elif not config.no_socket:
            self._check_sockets()
            for model in self._specs:
                self._listeners.append(SocketListener(config, model))
        elif inherited_socket(os.environ, os.getpid()) is not None:
            raise ConfigError("no_socket is given, and an init system hands over a socket")
        if serves_http:
            self._http = HttpListener(config)
            self._listeners.append(self._http)
        # HTTP may have twice as many connections before others are cut.
        allow_descriptors(config.max_connections * (len(self._listeners) + serves_http))
        if config.otlp_traces_endpoint is not None:
            self._traces = OtlpTraces(config.otlp_traces_endpoint)

    def _has_place_for_sockets(self) -> bool:
        """Return False if no socket is named or handed over, and a user's directory is missing."""
        if self._config.socket is not None or len(self._specs) > 1:
            return True
        if inherited_socket(os.environ, os.getpid()) is not None:
            return True
        try:
            default_socket_path(os.environ)
        except ConfigError:
            return False
        return True

    def _check_sockets(self) -> None:
        """Raise ConfigError if several models would have one socket."""
        if len(self._specs) == 1:
            return
        if inherited_socket(os.environ, os.getpid()) is not None:
            raise ConfigError("there are several models, and an init system hands over one socket")
        if "{model}" not in (self._config.socket or ""):
            raise ConfigError(
                "there are several models, and each has a socket of its own: give socket with "
                "{model} in its path, or no_socket to serve HTTP only"
            )

    def _n_connections(self, model: str) -> int:
        """Return the number of clients that can call a model."""
        return sum(one.n_connections for one in self._listeners if one.serves(model))

    @property
    def _n_in_flight(self) -> int:
        return sum(front.n_in_flight for front in self._fronts.values())

    async def _close_fronts(self, why: str) -> None:
        closing = [front.close(BatcherClosedError(why)) for front in self._fronts.values()]
        await asyncio.gather(*closing)

    # -- from start to end ------------------------------------------------------------------

    async def _serve(self) -> int:
        for listener in self._listeners:
            for name, address in listener.addresses.items():
                _LOGGER.info("listening on %s", address, extra={name: address})
        failed = self._loop.create_task(self._all_failed())
        ending = self._loop.create_task(self._told_to_end.wait())
        opening = self._loop.create_task(self._all_opened())
        try:
            either: set[asyncio.Future[Any]] = {opening, ending}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
                self._notifier.ready()
                either = {failed, ending}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            self._notifier.stopping()
            if not failed.done():
                await self._drain()
        finally:
            for waiting in (opening, ending, failed):
                waiting.cancel()
            await self._hang_up_all()
        if failed.done() and not failed.cancelled():
            _LOGGER.critical("%s", failed.result())
            return _FAILED
        return _INTERRUPTED if self._told_to_stop.is_set() else 0

    async def _all_opened(self) -> None:
        """Wait until all models are served. Raises the error of a model that cannot be."""
        await asyncio.gather(*(front.opened() for front in self._fronts.values()))

    async def _all_failed(self) -> PybatcherError:
        """Wait until no model can be served any more. Return the last one's error."""
        while True:
            failures = [front.failed for front in self._fronts.values()]
            left = [failed for failed in failures if not failed.done()]
            if not left:
                return failures[-1].result()
            await asyncio.wait(left)

    async def _drain(self) -> None:
        """Wait for the calls in flight, until `drain_timeout` or a second Ctrl-C."""
        _LOGGER.info("ending: %d calls in flight are being finished", self._n_in_flight)
        for listener in self._listeners:
            listener.close_soon()
        done = self._loop.create_task(self._all_gone())
        stop = self._loop.create_task(self._told_to_stop.wait())
        limit = self._config.drain_timeout
        await asyncio.wait({done, stop}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            _LOGGER.warning("%d calls were not finished", self._n_in_flight)
            await self._close_fronts("the sidecar was told to end before this request was finished")
        done.cancel()
        stop.cancel()

    async def _all_gone(self) -> None:
        for listener in self._listeners:
            await listener.gone()

    async def _hang_up_all(self) -> None:
        """Let clients read their last answers, then close all connections."""
        for listener in self._listeners:
            listener.close_soon()
        with suppress(TimeoutError):
            async with asyncio.timeout(_HANG_UP_GRACE):
                await self._all_gone()
        for listener in self._listeners:
            listener.abort()

    # -- signals ----------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        self._loop.add_signal_handler(signal.SIGTERM, self._told_to_end.set)
        self._loop.add_signal_handler(signal.SIGINT, self._interrupt)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _interrupt(self) -> None:
        self._n_interrupts += 1
        self._told_to_end.set()
        if self._n_interrupts > 1:
            self._told_to_stop.set()

    def _hang_up(self) -> None:
        if self._told_to_end.is_set():
            return
        task = self._loop.create_task(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        self._notifier.reloading()
        try:
            specs, asked, config, keys = await self._read_again()
        except PybatcherError as error:
            _LOGGER.warning("not reloaded, all is as it was: %s", error)
        else:
            for field in fields(config):
                if getattr(asked, field.name) != getattr(config, field.name):
                    _LOGGER.warning("%s changed; start again to apply it", field.name)
            self._config = config
            # at once: clients that may no longer connect must not stay
            for listener in self._listeners:
                listener.use(config)
            if self._http is not None:
                self._http.use_keys(keys)
            # one after another: each needs memory for one more worker
            for name, front in self._fronts.items():
                with suppress(PybatcherError):  # the front logs the error
                    await front.reload({}, specs[name], config)
        self._notifier.ready()

    async def _read_again(
        self,
    ) -> tuple[Mapping[str, WorkerSpec], ServeConfig, ServeConfig, tuple[str, ...] | None]:
        """Return what the files say now: specs, options, the options to use, and the keys.

        They are read on a thread of its own, because a file on a mount that hangs is never read.
        Raises ConfigError, also after `_READING_TIMEOUT`.
        """

        def read() -> Any:
            specs, asked = self._read()
            if specs.keys() != self._fronts.keys():
                raise ConfigError(
                    f"the models are {', '.join(specs)} now; to add, remove or rename one, start "
                    "the server again"
                )
            applied = {name: getattr(asked, name) for name in _RELOADED}
            config = replace(self._config, **applied)
            _check(config)
            http = self._http
            return specs, asked, config, http and http.read_keys(config, regular_only=True)

        if self._reading is not None and not self._reading.done():
            raise ConfigError("the files of an earlier SIGHUP are still being read")
        try:
            self._reading = on_own_thread(read, "pybatcher-reload")
            async with asyncio.timeout(_READING_TIMEOUT):
                return await asyncio.shield(self._reading)
        except TimeoutError as error:
            raise ConfigError(
                f"the files of the options were not read within {_READING_TIMEOUT:g} s"
            ) from error
        except RuntimeError as error:  # the system has no thread now
            raise ConfigError(f"the files of the options cannot be read: {error}") from error


def _serves_http(config: ServeConfig) -> bool:
    return config.http is not None or config.uds is not None


def _check(config: ServeConfig) -> None:
    """Raise ConfigError for an option that goes with HTTP, which is not served."""
    if _serves_http(config):
        return
    for name in ("no_socket", "api_key_file"):
        if getattr(config, name):
            raise ConfigError(f"{name} goes with http or uds; give one of them as well")
