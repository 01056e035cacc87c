"""Finds Pythons: named ones, this machine's, Debian's, and a compiled one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tools.wheels import macos
from tools.wheels.debian import NotInDebianError, unpack_python
from tools.wheels.from_source import compiled_python
from tools.wheels.versions import Python, is_macos

_QUESTIONS = (
    "import sys, sysconfig\n"
    "has_no_gil = bool(sysconfig.get_config_var('Py_GIL_DISABLED'))\n"
    "print('%d.%d' % sys.version_info[:2] + 't' * has_no_gil)\n"
    "print(sysconfig.get_path('include'), sys.executable, sep='\\n')\n"
)


def ask(program: str | Path) -> Python | None:
    """Return a program's Python version. None: it does not run, or has no headers."""
    try:
        answer = subprocess.run(
            [program, "-c", _QUESTIONS], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version, include, executable = answer.stdout.splitlines()
    if not Path(include, "Python.h").is_file():
        return None
    return Python(version, (Path(include),), Path(executable))


def _programs(version: str) -> Iterator[str | Path]:
    found = shutil.which(f"python{version}")
    if found:
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}*/bin/python{version}"))


def _here(version: str, named: Sequence[Path]) -> Python | None:
    for program in (*named, *_programs(version)):
        python = ask(program)
        if python is not None and python.version == version:
            return python
    return None


def find(
    version: str, machine: str, named: Sequence[Path], folder: Path, patchelf: str
) -> tuple[Python | None, str]:
    """Return a Python for a machine and "", or what there is of it and why there is not more.

    Args:
        version: "3.14t".
        machine: "x86_64", whose Pythons run here, or another one.
        named: programs to take if they are of that version.
        folder: where Debian's Pythons and those that were compiled lie, or will.
        patchelf: that program.
    """
    if is_macos(machine):
        linux, problem = find(version, "x86_64", named, folder, patchelf)
        return (None if linux is None else macos.with_headers(linux, folder)), problem
    here = _here(version, named)
    if here is not None and machine == "x86_64":
        return here, ""
    try:
        if version.endswith("t") and machine == "x86_64":
            return ask(compiled_python(version, folder)), ""
        return unpack_python(version, machine, folder, patchelf), ""
    except NotInDebianError as error:
        problem = str(error)
    if here is not None:
        # Headers are the same on all 64-bit Linuxes, except for those of the C library.
        return replace(here, program=None), problem
    if version.endswith("t"):
        # Headers with the GIL differ only by a definition, which cmake/wheels.cmake makes.
        python, _ = find(version.removesuffix("t"), machine, (), folder, patchelf)
        if python is not None:
            return replace(python, version=version, program=None), problem
    return None, f"no python{version} with headers is on this machine, and {problem}"
