"""Downloads real chat templates into build/templates: `make test-templates` runs this.

They are in the source distributions of two packages, which are read and not built. The template of
each model is its maker's; none of them is part of this project.
"""

from __future__ import annotations

import hashlib
import html
import io
import os
import re
import ssl
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin

_INDEX = "https://pypi.org/simple"
_PATIENCE = 60.0  # seconds without a byte


@dataclass(frozen=True)
class Source:
    """A source distribution, and the folder in it whose templates are taken."""

    package: str
    version: str
    sha256: str
    folder: str

    @property
    def name(self) -> str:
        return f"{self.package}-{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}.tar.gz"


SOURCES = [
    Source(
        "llama-cpp-python",
        "0.3.36",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "vendor/llama.cpp/models/templates",
    ),
    Source(
        "vllm",
        "0.33.0",
        "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
        "examples",
    ),
]


def main(folder: Path) -> int:
    """Download what is not there yet; return the status of the program."""
    for source in SOURCES:
        target = folder / source.name
        if target.is_dir():
            continue
        archive = get_archive(source, "The templates are", "tests/templates")
        if archive is None:
            return 1
        unfinished = folder / f"{source.name}.unfinished"
        unfinished.mkdir(parents=True, exist_ok=True)
        found = 0
        for name, text in _templates(archive, source.folder):
            (unfinished / name).write_bytes(text)
            found += 1
        unfinished.rename(target)
        print(f"{found} templates of {source.name} in {target}")
    return 0


def get_archive(source: Source, what: str, tests: str) -> bytes | None:
    """Return the archive; None, with an error printed, where it cannot be had.

    what, tests: for the error: "The templates are", and the folder of tests that needs them.
    """
    try:
        return _download(source)
    except (OSError, ValueError, LookupError) as error:
        print(
            f"{source.file_name} could not be had from {_setting('index-url') or _INDEX}: "
            f"{type(error).__name__}: {error}\n"
            f"{what} not part of the checkout: {tests} needs a package index "
            "(pip's own setting, PIP_INDEX_URL, names another one).",
            file=sys.stderr,
        )
        return None


def _download(source: Source) -> bytes:
    """Return the archive. Raises OSError, ValueError, LookupError."""
    index = (_setting("index-url") or _INDEX).rstrip("/")
    page = f"{index}/{source.package}/"
    # In the page's HTML, and in the JSON that some indexes send whatever is asked for.
    link = re.search(rf'"([^"]*/{re.escape(source.file_name)})["#]', _get(page).decode())
    if link is None:
        raise LookupError(f"{page} has no {source.file_name}")
    archive = _get(urljoin(page, html.unescape(link.group(1))))
    found = hashlib.sha256(archive).hexdigest()
    if found != source.sha256:
        raise ValueError(f"its SHA-256 is {found}; it must be {source.sha256}")
    return archive


def _get(url: str) -> bytes:
    context = ssl.create_default_context(cafile=_setting("cert") or None)
    with urllib.request.urlopen(url, timeout=_PATIENCE, context=context) as answer:
        return bytes(answer.read())


def _setting(name: str) -> str:
    """Return one of pip's settings, from its environment variable or its files."""
    variable = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if variable:
        return variable
    pip = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    return subprocess.run(pip, capture_output=True, text=True, check=False).stdout.strip()


def _templates(archive: bytes, folder: str) -> Iterator[tuple[str, bytes]]:
    """Return the names and texts of the templates right in a folder of the archive."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        for member in members:
            path = PurePosixPath(member.name)
            inside = "/".join(path.parts[1:-1])
            file = members.extractfile(member) if member.isfile() else None
            if inside == folder and path.suffix == ".jinja" and file is not None:
                yield path.name, file.read()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
