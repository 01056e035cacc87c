"""`pybatcher serve`: run the sidecar, one engine for the processes of a machine."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..params.chat_template import read_chat_template
from ..params.config import EngineConfig, SchedulerConfig, SupervisionConfig
from ..sidecar.front.logs import set_up_logs
from ..sidecar.front.named_models import read_models, specs_of
from ..sidecar.front.serve_config import ServeConfig, read_config, read_option_file
from ..sidecar.front.worker_spec import WorkerSpec
from .loading_bar import loading_bar
from .options import SystemPromptOption, takes_options

__all__ = ["serve"]

ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="[NAME=]PATH",
        help="A Hugging Face directory or a .gguf file; without it, the model that ships inside. "
        "Several with a NAME each: requests over HTTP choose by it, and each has a worker.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A TOML file with options by their names; those of the command line win.",
        show_default=False,
    ),
]
SystemPromptFileOption = Annotated[
    Path | None,
    typer.Option(
        "--system-prompt-file", help="A file with the system prompt, UTF-8.", show_default=False
    ),
]

_OWN = {field.name for field in fields(ServeConfig)}


@takes_options(ServeConfig, EngineConfig, SchedulerConfig, SupervisionConfig)
def serve(
    model: ModelsOption = None,
    system_prompt: SystemPromptOption = None,
    system_prompt_file: SystemPromptFileOption = None,
    config: ConfigOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Serve other processes over a unix socket, in MessagePack-RPC.

    A worker process has the engine. If it dies, another takes its place and all streams
    go on with the same tokens. SIGTERM and Ctrl-C finish what is in flight; a second
    Ctrl-C stops at once. SIGHUP reads the config file again: new workers have what it says
    then, and who may connect changes at once; the log names options that need a new start.
    Exit status: 0 told to end, 1 the worker cannot be started or died too often, 2 refused
    to start, 130 stopped by a second Ctrl-C.
    """
    given = dict(options)
    if model:
        given |= read_models(model)
    if system_prompt is not None:
        given["system_prompt"] = system_prompt
    if system_prompt_file is not None:
        given["system_prompt_file"] = str(system_prompt_file)

    def read(*, regular_only: bool = False) -> dict[str, Any]:
        read_in = {} if config is None else read_config(config, regular_only=regular_only)
        if model:
            read_in = {name: read_in[name] for name in read_in.keys() - {"model", "models"}}
        return {**read_in, **given}

    def read_again() -> tuple[dict[str, WorkerSpec], ServeConfig]:
        asked = read(regular_only=True)
        return specs_of(_of_worker(asked, regular_only=True)), _of_server(asked)

    asked = read()
    own = _of_server(asked)
    set_up_logs(own.log_format, own.log_level, access_log=own.access_log)
    with loading_bar("downloading the model") as progress:
        specs = {name: spec.found(progress) for name, spec in specs_of(_of_worker(asked)).items()}
    sys.exit(_run(specs, own, read_again))


def _run(specs: Mapping[str, WorkerSpec], config: ServeConfig, read: Any) -> int:
    from ..sidecar.front.loops import run
    from ..sidecar.front.server import Server

    return run(Server(specs, config, read).run())


def _of_server(asked: Mapping[str, Any]) -> ServeConfig:
    return ServeConfig(**{name: asked[name] for name in asked if name in _OWN})


def _of_worker(asked: Mapping[str, Any], *, regular_only: bool = False) -> dict[str, Any]:
    """Return the worker's options, with system prompt and chat template read from their files.

    Raises ConfigError for a file that cannot be read, or two system prompts.
    """
    theirs = {name: value for name, value in asked.items() if name not in _OWN}
    if theirs.get("chat_template") is not None:
        theirs["chat_template"] = read_chat_template(theirs["chat_template"])
    file = theirs.pop("system_prompt_file", None)
    if file is not None:
        if theirs.get("system_prompt") is not None:
            raise ConfigError("system_prompt and system_prompt_file are both given; give one")
        try:
            data, _ = read_option_file(file, regular_only=regular_only)
            theirs["system_prompt"] = io.StringIO(data.decode("utf-8"), newline=None).read()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read system_prompt_file {file}: {error}") from error
    return theirs
