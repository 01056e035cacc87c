"""Make command-line options from the fields of configuration classes.

An option of the library is an option of the command line, with the same name; its help comes from
the class's docstring. There is no second list to keep consistent.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption
from typing_extensions import override

from ..errors import ConfigError
from ..params import SamplingParams
from ..params.config import (
    BlockSize,
    CachePlace,
    ContextSize,
    EngineConfig,
    MmprojSource,
    SchedulerConfig,
    SupervisionConfig,
    TemplateSource,
)
from ..params.unknown_names import flag_hint
from ..sidecar.front.serve_config import ServeConfig

__all__ = [
    "HELP_ALL",
    "BatcherOptions",
    "LongHelpCommand",
    "ModelArgument",
    "ModelOption",
    "SystemPromptOption",
    "chosen_model",
    "takes_options",
]

ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="The same as --model.", show_default=False),
]

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A Hugging Face directory, a .gguf file, or a name on the hub as Qwen/Qwen3-0.6B; "
        "without it, the model that ships inside.",
        show_default=False,
    ),
]
SystemPromptOption = Annotated[
    str | None,
    typer.Option(
        "--system-prompt",
        "-s",
        help="Text before every prompt, computed once.",
        show_default=False,
    ),
]


def chosen_model(argument: str | None, option: str | None) -> str | None:
    """Return the model, which is an argument or an option. Raises ConfigError for two models."""
    if argument is not None and option is not None and argument != option:
        raise ConfigError(f"two models are given: {argument!r} and --model {option!r}; leave one")
    return option if argument is None else argument


def _whole_or_auto(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a valid integer, nor 'auto'.") from None


def _schema(text: str) -> str:
    """Return a JSON schema: the content of a file, or `text` itself if it begins with a brace."""
    if text.lstrip().startswith("{"):
        return text
    try:
        return Path(text).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{text!r} cannot be read: {error}") from None


# Types that typer does not know, each with the type that typer gets instead and a converter.
_SPELLED: dict[Any, Any] = {
    Sequence[str]: list[str],
    Sequence[str] | None: list[str],
    Sequence[int]: list[int],
    Any: str,
    CachePlace: str,
    ContextSize: str,
    BlockSize: str,
    TemplateSource: str,
    MmprojSource: str,
}
_PARSERS: dict[Any, Any] = {ContextSize: _whole_or_auto, BlockSize: _whole_or_auto, Any: _schema}
_METAVARS: dict[Any, str] = {
    ContextSize: "<int|auto>",
    BlockSize: "<int|auto>",
    Any: "<file|json>",
    TemplateSource: "<file|jinja>",
    MmprojSource: "<file>",
}
_PANELS = {
    SamplingParams: "Sampling",
    EngineConfig: "Engine",
    SchedulerConfig: "Scheduler",
    SupervisionConfig: "Supervision",
    ServeConfig: "Serving",
}
_USUAL = {
    *("max_tokens", "temperature", "top_p", "stop", "seed", "n", "json_schema"),
    *("dtype", "n_ctx", "n_parallel", "n_threads", "device", "overcommit"),
    *("http", "api_key_file", "socket", "served_model_name", "log_format", "access_log"),
}
"""Options that --help shows; --help-all shows the others too."""
HELP_ALL = "--help-all"
_NOT_ON_THE_COMMAND_LINE = {"logit_bias", "logprobs", "of_model", "skip_special_tokens"}

BatcherOptions = dict[str, Any]
Command = Callable[..., None]


class LongHelpCommand(TyperCommand):
    """A command whose --help shows the usual options, and --help-all all of them."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        if HELP_ALL in args[:end]:
            for parameter in self.params:
                if isinstance(parameter, TyperOption):
                    parameter.hidden = False
            self.epilog = None
            args = ["--help"]
        given = args[:end]  # the parser takes words out of `args`
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter:
            raise
        except Exception as error:
            self._give_right_name(error, given)
            raise

    def _give_right_name(self, error: Any, args: list[str]) -> None:
        """Add the right name to the error for an unknown option, if it is another program's.

        Several letters after one dash are parsed one by one, and the error has the first of them.
        """
        wrong = getattr(error, "option_name", None)
        if wrong is None or not hasattr(error, "possibilities"):
            return
        known = {flag for one in self.params for flag in (*one.opts, *one.secondary_opts)}
        words = [word.partition("=")[0] for word in args if word.startswith(wrong)]
        for flag in (*words, wrong):
            if hint := flag_hint(flag, known):
                error.message, error.possibilities = f"No such option: {flag}; {hint}", None
                return


def takes_options(
    *classes: type, only: Collection[str] | None = None, defaults: bool = True
) -> Callable[[Command], Command]:
    """Give a command an option for each field of `classes`, or for the fields named in `only`.

    The command gets `sampling: dict` with the fields of SamplingParams and `options: dict` with
        those of the configurations. Both hold only the options that were given: defaults stay the
        library's.

    defaults: False if an option that is not given keeps a value other than the default; the help
        then shows no defaults.
    """

    def decorate(command: Command) -> Command:
        made: dict[str, tuple[str, inspect.Parameter]] = {}
        for owner in classes:
            group = "sampling" if owner is SamplingParams else "options"
            for parameter in _parameters(owner, defaults):
                if only is None or group == "options" or parameter.name in only:
                    made[parameter.name] = (group, parameter)
        groups = {group for group, _ in made.values()}
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name not in groups]

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            collected: dict[str, BatcherOptions] = {group: {} for group in groups}
            for name, (group, _) in made.items():
                value = given.pop(name)
                if value is not None and value != []:
                    collected[group][name] = value
            command(**given, **collected)

        parameters = [*own, *(parameter for _, parameter in made.values())]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _parameters(owner: type, defaults: bool) -> list[inspect.Parameter]:
    hints, meanings = get_type_hints(owner), _meanings(owner)
    return [
        _parameter(field, hints[field.name], meanings.get(field.name, ""), _PANELS[owner], defaults)
        for field in fields(owner)
        if field.name not in _NOT_ON_THE_COMMAND_LINE
    ]


def _parameter(
    field: Field[Any], hint: Any, meaning: str, panel: str, defaults: bool
) -> inspect.Parameter:
    flag = "--" + field.name.replace("_", "-")
    if field.default is True:
        flag += flag.replace("--", "/--no-", 1)
    unset = field.default is None or field.default is False or field.default == ()
    default = f" Default: {field.default}." if defaults and not unset else ""
    meaning = meaning[:1].upper() + meaning[1:]
    metavar = _METAVARS.get(hint)
    if metavar is None and get_origin(hint) is Literal:  # the library checks the text
        hint, metavar = str, f"<{'|'.join(get_args(hint))}>"
    option = typer.Option(
        flag,
        help=meaning + default,
        rich_help_panel=panel,
        show_default=False,
        hidden=field.name not in _USUAL,
        parser=_PARSERS.get(hint),
        metavar=metavar,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[_SPELLED.get(hint, hint) | None, option],
    )


def _meanings(owner: type) -> dict[str, str]:
    """Return each field's help: the entries `name: text` or `a, b: text` of the docstring."""
    entries = re.findall(
        r"^([a-z][a-z_, ]*): (.*(?:\n +.*)*)", inspect.getdoc(owner) or "", re.MULTILINE
    )
    return {
        name: " ".join(meaning.split()) for names, meaning in entries for name in names.split(", ")
    }
