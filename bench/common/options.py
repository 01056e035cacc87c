"""Parse batcher options given on a command line: `victim_policy=cheapest`."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pybatcher.errors import ConfigError
from pybatcher.params import config
from pybatcher.params.config import EngineConfig, SchedulerConfig, split_options

__all__ = ["add_policy_arguments", "configs_of", "exists", "parse", "policies_from"]


def exists(name: str) -> bool:
    """True if a batcher has an option of that name."""
    configs = [kind for kind in vars(config).values() if is_dataclass(kind)]
    return name in {field.name for kind in configs for field in fields(kind)}


def parse(texts: Iterable[str]) -> dict[str, Any]:
    """Return ["victim_policy=cheapest", "n_batch=256"] as keyword arguments of a Batcher.

    Ends the program with a message for an unknown option or a bad value.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            sys.exit(f"option {text!r} has no value; write it as name=value")
        options[name.strip()] = _value(value.strip())
    try:
        split_options(options)
    except ConfigError as error:
        sys.exit(str(error))
    return options


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --option, for all runs, and --policy, one per run to compare."""
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of every run"
    )
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="options of one run of several; '' is a run without any",
    )


def policies_from(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return each run's options by its name, with those of all runs."""
    common = parse(arguments.option)
    texts: list[str] = arguments.policy or [""]
    return {
        text or "defaults": common | parse(part for part in text.split(",") if part)
        for text in texts
    }


def configs_of(options: Mapping[str, Any]) -> tuple[EngineConfig, SchedulerConfig]:
    """Return the engine's and the scheduler's configuration of the options.

    Without an engine nothing resolves `n_parallel="auto"`, so it is 8 unless the options name it.
    """
    engine, scheduler, *_ = split_options({"n_parallel": 8, **options})
    return engine, scheduler


def _value(text: str) -> Any:
    """Return a number, True, False or None if the text is one; else the text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
