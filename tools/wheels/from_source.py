"""Compiles a Python from Debian's sources, because no package of Debian is free-threaded.

    python -m tools.wheels.from_source [--version 3.14t] [--folder build/wheels/debian]

prints the path of the program. It is compiled within minutes if it does not exist, with a C
compiler and make.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tools.wheels.debian import MIRROR, NotInDebianError, read_file, read_index
from tools.wheels.make import ROOT
from tools.wheels.versions import VERSIONS

# The release that the tests have passed on, for as long as the mirror has it, and the suites with
# others.
KNOWN = {
    "3.14": (
        "pool/main/p/python3.14/python3.14_3.14.7.orig.tar.xz",
        "3b48dac8fb59f62eaa67ac83c1eb12bda1b7a08406dd286e252c11a66be27f81",
    )
}
SUITES = ("sid", "forky")
# The build silently leaves these modules out if the headers of their libraries are missing.
MODULES = ("ctypes", "ssl", "zlib")
PACKAGES = ("libffi-dev", "libssl-dev", "zlib1g-dev")


def sources_of(package: str, sources: str) -> Iterator[tuple[str, str]]:
    """Yield the path and SHA-256 of a package's unpatched sources from the text of `Sources`."""
    for paragraph in sources.split("\n\n"):
        if not re.search(rf"^Package: {re.escape(package)}$", paragraph, re.MULTILINE):
            continue
        folder = re.search(r"^Directory: (.+)$", paragraph, re.MULTILINE)
        file = re.search(r"^ ([0-9a-f]{64}) \d+ (\S+\.orig\.tar\.xz)$", paragraph, re.MULTILINE)
        if folder and file:
            yield f"{folder[1]}/{file[2]}", file[1]


def _candidates(version: str) -> Iterator[tuple[str, str]]:
    if version in KNOWN:
        yield KNOWN[version]
    for suite in SUITES:
        index = read_index(f"dists/{suite}/main/source/Sources")
        yield from sources_of(f"python{version}", index)


def _sources(version: str) -> bytes:
    """Return the first available archive."""
    problem = f"no suite of Debian has sources of Python {version}"
    try:
        for path, digest in _candidates(version):
            try:
                return read_file(path, digest)
            except OSError as error:
                problem = f"{MIRROR}/{path} cannot be read: {error}"
    except OSError as error:
        problem = f"{MIRROR} cannot be read: {error}"
    raise NotInDebianError(problem)


def compiled_python(version: str, folder: Path) -> Path:
    """Return the program of a Python, "3.14t" or "3.14". Compiles it if it does not exist.

    Raises:
        NotInDebianError: there are no sources, or they cannot be compiled here.
    """
    root = folder.resolve() / f"{version}-compiled"
    program, done, log = root / "bin" / f"python{version}", root / ".compiled", root / "log.txt"
    if done.exists():
        return program
    if not (shutil.which("cc") and shutil.which("make")):
        raise NotInDebianError(f"Python {version} is compiled with cc and make, which are not here")
    shutil.rmtree(root, ignore_errors=True)
    build = root / "build"
    build.mkdir(parents=True)
    archive = build.with_suffix(".tar.xz")
    archive.write_bytes(_sources(version.removesuffix("t")))
    with tarfile.open(archive) as file:
        file.extractall(build, filter="data")
    (sources,) = build.iterdir()
    no_gil = ["--disable-gil"] if version.endswith("t") else []
    steps: list[tuple[str | Path, ...]] = [
        ("./configure", "-q", "--without-ensurepip", *no_gil, f"--prefix={root}"),
        ("make", "-s", f"-j{os.cpu_count()}"),
        ("make", "-s", "install"),
        (program, "-c", f"import {', '.join(MODULES)}"),
    ]
    for step in steps:
        print(f"Python {version}:", *step, file=sys.stderr)
        with log.open("a") as told:
            ended = subprocess.run(step, cwd=sources, stdout=told, stderr=told, check=False)
        if ended.returncode:
            packages = " ".join(PACKAGES)
            raise NotInDebianError(
                f"Python {version} could not be compiled, which takes {packages}: see {log}"
            )
    shutil.rmtree(build)
    archive.unlink()
    done.touch()
    return program


def main() -> int:
    """Return 0 if there is a program; its path is printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", choices=VERSIONS, default="3.14t")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "wheels" / "debian")
    options = parser.parse_args()
    try:
        print(compiled_python(options.version, options.folder))
    except NotInDebianError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
