"""`probe`: compiles a grammar in a process of its own first, if it may take very long.

A thread that compiles cannot be stopped, a process can. Most grammars need none: without large
numbers of repetitions, a short grammar takes a fraction of a second, by llguidance's own limits.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from ...errors import InvalidRequestError
from ...params import StructuredOutput

__all__ = ["Abandonment", "is_harmless", "probe"]

_SECONDS = 15
_BYTES = 4 * 2**30
_SHORT = 16_384  # characters
_FEW = 20_000  # product of nested repetition counts

_NUMBER = re.compile(r"\d+")
# Ids, limits of tokens and bounds of numbers, which repeat nothing.
_BOUNDED = re.compile(
    r"<\[\d+\]>|\[max_tokens=\d+\]|\"(?:exclusiveM|m)(?:in|ax)imum\": ?-?\d+(?=[,}])"
)
_COUNTED = re.compile(r"\{(\d*)(,?)(\d*)\}")

_PROGRAM = """
import contextlib, json, os, resource, sys
os.nice(10)
told = json.load(sys.stdin)
with contextlib.suppress(ValueError):  # on macOS a process has more than that from its first moment
    resource.setrlimit(resource.RLIMIT_AS, (told["bytes"],) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (told["seconds"],) * 2)
sys.path += told["path"]  # at the end, since no module of the standard library is to come from it
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
tokens = LLTokenizer(told["tokenizer"], n_vocab=told["n_vocab"], eos_token=told["ends"])
made = LLMatcher(tokens, told["grammar"], log_level=0, limits=LLParserLimits(**told["limits"]))
if not made.is_error():
    made.compute_bitmask()
print("compiled")
"""


class Abandonment:
    """Tells a compilation that nobody waits for it any longer. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_set = False

    def set(self) -> None:
        """End the process of the compilation, now or as soon as it has one."""
        with self._lock:
            self._is_set = True
            if self._process is not None:
                self._process.kill()

    def is_set(self) -> bool:
        """Return whether `set` was called."""
        return self._is_set

    @contextmanager
    def ends(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """Have `set` end a process within this context."""
        with self._lock:
            self._process = process
            if self._is_set:
                process.kill()
        try:
            yield
        finally:
            with self._lock:
                self._process = None


def is_harmless(form: StructuredOutput) -> bool:
    """Return whether a grammar is short and has no large repetition count."""
    text = _BOUNDED.sub("", form.text)
    if form.kind == "choices":
        return len(text) <= 4 * _SHORT
    if len(text) > _SHORT:
        return False
    if any(len(number) > 4 for number in _NUMBER.findall(text)):
        return False
    counts = [max(int(low or 0), int(high or 0)) for low, _, high in _COUNTED.findall(text)]
    return math.prod(max(count, 1) for count in counts) <= _FEW


def probe(
    form: StructuredOutput,
    grammar: str,
    *,
    tokenizer: str,
    n_vocab: int,
    ends: Sequence[int],
    limits: Mapping[str, int],
    abandoned: Abandonment | None = None,
) -> None:
    """Compile a grammar and compute its first mask in another process, within its limits. Blocks.

    abandoned: ends the process. Raises InvalidRequestError then, and if
    the grammar takes too much time or memory. The caller finds out whether the grammar is correct.
    """
    told = {
        "grammar": grammar,
        "tokenizer": tokenizer,
        "n_vocab": n_vocab,
        "ends": list(ends),
        "limits": dict(limits),
        "seconds": _SECONDS,
        "bytes": _BYTES,
        "path": _path_of("llguidance"),
    }
    try:
        # With -I no module comes from the working directory or from PYTHONPATH.
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError as error:
        raise InvalidRequestError(
            f"{form.field} is large, and the process that is to try it cannot be started: {error}; "
            "make it simpler",
            field=form.field,
        ) from error
    with (abandoned or Abandonment()).ends(process), process:
        try:
            output, _ = process.communicate(json.dumps(told), timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            output = ""
        finally:
            process.kill()
    if output != "compiled\n":
        raise InvalidRequestError(
            f"{form.field} cannot be used: to compile it takes more than {_SECONDS} s or "
            f"{_BYTES >> 30} GiB; make it simpler",
            field=form.field,
        )


def _path_of(package: str) -> list[str]:
    """Return the folder that a package was imported from, if it is one."""
    found = find_spec(package)
    places = [] if found is None else found.submodule_search_locations or []
    return [os.path.dirname(os.path.abspath(place)) for place in places]
