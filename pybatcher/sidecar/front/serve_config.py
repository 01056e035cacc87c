"""The options of the sidecar itself, and the file that all options can be read from."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from ...errors import ConfigError
from ...errors.checks import OPTION
from ...models.hub import absolute_model
from ...params.chat_template import is_jinja
from ...params.config import (
    EngineConfig,
    SchedulerConfig,
    SupervisionConfig,
    bad_value,
    check_choice,
    check_int,
    check_number,
)
from ...params.unknown_names import unknown_option
from ...serving.system_prompt import check_system_prompt
from .named_models import check_models
from .tcp import read_address

__all__ = ["ServeConfig", "read_config", "read_option_file"]

_AccessLog = Literal["text", "json", "off"]
_LogFormat = Literal["text", "json"]
_LogLevel = Literal["debug", "info", "warning", "error"]
_LONGEST = 1e6  # seconds
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s?#@]+")
_HOST = re.compile(r"\*|[^\s/:?#@*\[\]]+")
_FULL_HOST = re.compile(r"(?:[A-Za-z0-9-]+\.)+[A-Za-z][A-Za-z0-9-]*")
_MOST_BYTES = 16 * 2**20  # of a file that an option names
_UID_MAX = 2**32 - 2  # -1 means no user


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """How clients are served, and when a worker that ends or hangs is replaced.

    socket: path of the unix socket. None: $PYBATCHER_SOCKET, or pybatcher.sock in
        $XDG_RUNTIME_DIR, or the socket that an init system hands over; without any of these
        HTTP is served alone. Models with names have a socket each, whose path has the name for
        {model}.
    allow_uids: ids of users who may connect besides the one that serves.
    no_socket: serve HTTP only, and make no unix socket for MessagePack.
    http: address to serve HTTP at, as HOST:PORT. Where other machines can reach it,
        `api_key_file` or `allow_no_key` has to be given. Needs the extra `http`.
    uds: path of a unix socket to serve HTTP at, for the same users as `socket`.
    api_key_file: file with the keys that requests over HTTP must have, one a line. It is
        read again at SIGHUP, and must not be open to others.
    allow_origins: origins of pages that may ask from a browser over HTTP, as
        https://host:port, besides the server's own; "*": all may.
    allow_hosts: names by which requests may call HTTP on loopback, besides localhost,
        addresses and the hosts of `allow_origins`; "*": any.
    allow_image_hosts: full names of hosts that images of requests over HTTP may be fetched
        from, by https at port 443; none: nothing is fetched.
    allow_no_key: serve other machines without keys: all who can connect may.
    served_model_name: name of the model over HTTP. None: its own.
    max_connections: most connections, over HTTP as many again; one more is turned away.
    max_in_flight: most requests of one connection at a time.
    max_frame: most bytes of one message, either way; over HTTP, of the body of a request.
    max_depth: most arrays and maps of a message within each other.
    max_worker_restarts: most workers that are started again within
        `worker_restart_window`; after one more death every request fails and the server
        exits.
    worker_restart_window: seconds in which these restarts are counted.
    hang_timeout: seconds after which a worker that sends nothing, or computes without
        progress, is killed and replaced.
    start_timeout: seconds that a worker may take to open the model; None = no limit.
    drain_timeout: seconds that requests in flight have left when the server is told
        to end.
    otlp_traces_endpoint: URL of an OpenTelemetry collector that gets a span of each
        request. Needs the extra `otel`.
    log_format: of the log on stderr: "text", or "json", one object a line.
    log_level: least severe level that is logged: "debug", "info", "warning" or "error".
    access_log: a line on stderr for each HTTP request and each call: "text", "json", or "off".
    """

    socket: str | None = None
    allow_uids: Sequence[int] = ()
    no_socket: bool = False
    http: str | None = None
    uds: str | None = None
    api_key_file: str | None = None
    allow_origins: Sequence[str] = ()
    allow_hosts: Sequence[str] = ()
    allow_image_hosts: Sequence[str] = ()
    allow_no_key: bool = False
    served_model_name: str | None = None
    max_connections: int = 256
    max_in_flight: int = 1024
    max_frame: int = 16 * 2**20
    max_depth: int = 32
    max_worker_restarts: int = 5
    worker_restart_window: float = 60.0
    hang_timeout: float = 15.0
    start_timeout: float | None = None
    drain_timeout: float = 30.0
    otlp_traces_endpoint: str | None = None
    log_format: _LogFormat = "text"
    log_level: _LogLevel = "info"
    access_log: _AccessLog = "off"

    def __post_init__(self) -> None:
        for name in ("socket", "uds", "api_key_file"):
            if (path := getattr(self, name)) is not None and not _is_text(path):
                raise bad_value(name, path, "a path, or None")
        if self.http is not None and read_address(self.http) is None:
            wanted = "HOST:PORT, as 127.0.0.1:8000 or [::1]:8000, or None"
            raise bad_value("http", self.http, wanted)
        for name in ("no_socket", "allow_no_key"):
            OPTION.flag(name, getattr(self, name))
        if self.served_model_name is not None and not _is_text(self.served_model_name):
            raise bad_value("served_model_name", self.served_model_name, "a text, or None")
        if self.served_model_name is not None:
            OPTION.unicode("served_model_name", self.served_model_name)
        if self.otlp_traces_endpoint is not None and not _is_url(self.otlp_traces_endpoint):
            wanted = "a URL, as http://127.0.0.1:4318/v1/traces, or None"
            raise bad_value("otlp_traces_endpoint", self.otlp_traces_endpoint, wanted)
        object.__setattr__(self, "allow_uids", _uids(self.allow_uids))
        wanted = "a list of origins, as https://host:port, or of '*'"
        origins = _all_matching("allow_origins", self.allow_origins, _ORIGIN, wanted)
        object.__setattr__(self, "allow_origins", origins)
        wanted = "a list of host names without a port, or of '*'"
        hosts = _all_matching("allow_hosts", self.allow_hosts, _HOST, wanted)
        object.__setattr__(self, "allow_hosts", hosts)
        wanted = "a list of full names of hosts, as images.example.org, without a port"
        hosts = _all_matching("allow_image_hosts", self.allow_image_hosts, _FULL_HOST, wanted)
        object.__setattr__(self, "allow_image_hosts", hosts)
        check_int("max_connections", self.max_connections, 1, 2**20)
        check_int("max_in_flight", self.max_in_flight, 1, 2**20)
        check_int("max_frame", self.max_frame, 1024, 2**31 - 1)
        check_int("max_depth", self.max_depth, 4, 512)
        check_int("max_worker_restarts", self.max_worker_restarts, 0, 2**31 - 1)
        check_number(
            "worker_restart_window", self.worker_restart_window, 0.001, _LONGEST, " of seconds"
        )
        check_number("hang_timeout", self.hang_timeout, 0.1, _LONGEST, " of seconds")
        check_number("drain_timeout", self.drain_timeout, 0.0, _LONGEST, " of seconds")
        if self.start_timeout is not None:
            check_number("start_timeout", self.start_timeout, 0.1, _LONGEST, " of seconds")
        check_choice("log_format", self.log_format, get_args(_LogFormat))
        check_choice("log_level", self.log_level, get_args(_LogLevel))
        check_choice("access_log", self.access_log, get_args(_AccessLog))


def _uids(value: object) -> tuple[int, ...]:
    wanted = f"a list of user ids (whole numbers from 0 to {_UID_MAX})"
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise bad_value("allow_uids", value, wanted)
    for uid in value:
        if isinstance(uid, bool) or not isinstance(uid, int) or not 0 <= uid <= _UID_MAX:
            raise bad_value("allow_uids", value, wanted)
    return tuple(value)


def _all_matching(
    name: str, value: object, pattern: re.Pattern[str], wanted: str
) -> tuple[str, ...]:
    """Return the texts of an option, each of which matches the pattern. Raises ConfigError."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise bad_value(name, value, wanted)
    if not all(isinstance(one, str) and pattern.fullmatch(one) for one in value):
        raise bad_value(name, value, wanted)
    return tuple(value)


_TABLES: dict[str, type] = {
    "engine": EngineConfig,
    "scheduler": SchedulerConfig,
    "supervision": SupervisionConfig,
    "serve": ServeConfig,
}
_OWNERS = {field.name: table for table, kind in _TABLES.items() for field in fields(kind)}
_MODEL_KEYS = ("model", "models", "system_prompt", "system_prompt_file")
_PATHS = ("system_prompt_file", "socket", "uds", "api_key_file", "weights_cache")
_NO_PATHS = ("auto", "off")  # words of the weights_cache option that are no paths


def read_option_file(
    path: str | os.PathLike[str], *, regular_only: bool
) -> tuple[bytes, os.stat_result]:
    """Return the contents of a file that an option names, and its status. Raises OSError.

    regular_only: refuse what is no regular file at once, without waiting for the other end of a
        pipe. At the start, a file may be a pipe, as of a shell's process substitution.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags | (getattr(os, "O_NONBLOCK", 0) if regular_only else 0))
    with ExitStack() as opened:
        opened.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        if regular_only and not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES} bytes")
    return data, status


def read_config(path: str | Path, *, regular_only: bool = False) -> dict[str, Any]:
    """Read options by their names from a TOML file. All of them are checked.

    Keys are `model`, or the table [models] of paths by name, `system_prompt` or
    `system_prompt_file`, and every field of EngineConfig, SchedulerConfig,
    SupervisionConfig and ServeConfig, each at the top or in its table: [engine],
    [scheduler], [supervision], [serve].
    Paths in it are relative to its folder; they are returned absolute.
    regular_only: as in `read_option_file`.
    Raises ConfigError, with the file's name, for what cannot be read or is no option.
    """
    file = Path(path)
    try:
        data, _ = read_option_file(file, regular_only=regular_only)
        entries = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config file {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # invalid TOML or UTF-8
        raise ConfigError(f"the config file {file} is not TOML: {error}") from error
    folder = file.absolute().parent
    try:
        options = _flat(entries)
        template = options.get("chat_template")
        if isinstance(template, str) and template and not is_jinja(template):
            options["chat_template"] = str(folder / os.path.expanduser(template))
        _check(options)
    except ConfigError as error:
        raise ConfigError(f"in the config file {file}: {error}") from error
    if "model" in options:
        options["model"] = absolute_model(options["model"], folder)
    if "mmproj" in options:
        options["mmproj"] = absolute_model(options["mmproj"], folder)
    for name in _PATHS:
        value = options.get(name)
        if isinstance(value, str) and not (name == "weights_cache" and value in _NO_PATHS):
            options[name] = str(folder / os.path.expanduser(value))
    if "models" in options:
        options["models"] = {
            name: absolute_model(path, folder) for name, path in options["models"].items()
        }
    return options


def _flat(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of all tables together.

    Raises ConfigError for an option that is unknown, misplaced or repeated.
    """
    options: dict[str, Any] = {}
    for name, value in entries.items():
        if name not in _TABLES:
            _add(options, name, value)
            continue
        if not isinstance(value, dict):
            raise bad_value(name, value, f"a table of options: [{name}]")
        for inner, inner_value in value.items():
            if inner in _MODEL_KEYS:
                raise ConfigError(f"{inner} is in [{name}]; its place is the top, before any table")
            if _OWNERS.get(inner, name) != name:
                raise ConfigError(f"{inner} is in [{name}]; its table is [{_OWNERS[inner]}]")
            _add(options, inner, inner_value)
    return options


def _add(options: dict[str, Any], name: str, value: object) -> None:
    if name not in _OWNERS and name not in _MODEL_KEYS:
        raise unknown_option(name, {*_MODEL_KEYS, *_OWNERS})
    if name in options:
        raise ConfigError(f"{name} is there twice: at the top and in [{_OWNERS[name]}]")
    options[name] = value


def _check(options: Mapping[str, Any]) -> None:
    """Raise the ConfigErrors of the classes, before anything is started with these options."""
    for kind in _TABLES.values():
        kind(**{f.name: options[f.name] for f in fields(kind) if f.name in options})
    for name in ("model", "system_prompt_file"):
        if name in options and not _is_text(options[name]):
            raise bad_value(name, options[name], "a path")
    if "models" in options:
        check_models(options["models"])
    if "model" in options and "models" in options:
        raise ConfigError("model and models are both there; give one of them")
    check_system_prompt(options.get("system_prompt"))
    if "system_prompt" in options and "system_prompt_file" in options:
        raise ConfigError("system_prompt and system_prompt_file are both there; give one of them")


def _is_url(value: object) -> bool:
    return _is_text(value) and bool(re.fullmatch(r"https?://[!-~]+", str(value)))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value
