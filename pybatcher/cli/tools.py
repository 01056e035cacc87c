"""Tools of `pybatcher chat`: Python functions that the command line names."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import typer

from ..text.tool_call import ToolCall

__all__ = ["Tools", "load_tools", "shown"]

Tools = dict[str, Callable[..., Any]]
_MOST_SHOWN = 200  # characters


def load_tools(text: str) -> Tools:
    """Import the functions of "module:name,name", or of "module:name", by their names.

    A module in the current directory is found too. Raises typer.BadParameter.
    """
    module_name, colon, names = text.partition(":")
    if not (module_name and colon and names):
        raise typer.BadParameter(f"{text!r} is not like 'module:function,function'.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything when it is imported
        raise typer.BadParameter(f"{module_name!r} cannot be imported: {error}") from error
    tools: Tools = {}
    for name in filter(None, map(str.strip, names.split(","))):
        function = getattr(module, name, None)
        if not callable(function):
            raise typer.BadParameter(f"{module_name!r} has no function {name!r}.")
        tools[function.__name__ if inspect.isfunction(function) else name] = function
    return tools


def shown(call: ToolCall, result: str) -> str:
    """Return a call and its result as one line."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    line = f"{call.name}({arguments}) -> {result}"
    line = " ".join(line.split())
    return line if len(line) <= _MOST_SHOWN else line[:_MOST_SHOWN] + "..."
