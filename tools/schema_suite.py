"""Fetch the JSON-Schema-Test-Suite, and read its cases.

    python -m tools.schema_suite [--folder build/schema-suite]

The suite is in the source distribution of `jsonschema`, which pip downloads by name and version. An
existing folder is left alone. The exit status is 2 if no package index answers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "schema-suite"
PACKAGE, VERSION = "jsonschema", "4.26.0"
TESTS = "json/tests/draft2020-12"
SECONDS = 300


class Instance(NamedTuple):
    """A value, and whether it is an instance of its case's schema."""

    description: str
    value: Any
    valid: bool


class Case(NamedTuple):
    """A schema of the suite with its instances."""

    name: str
    schema: dict[str, Any] | bool
    instances: tuple[Instance, ...]


def fetch(folder: Path = FOLDER) -> Path:
    """Return the folder of the suite's tests; download it if it does not exist. Blocks.

    Raises SystemExit with the output of pip.
    """
    tests = folder / f"{PACKAGE}-{VERSION}" / TESTS
    if tests.is_dir():
        return tests
    folder.mkdir(parents=True, exist_ok=True)
    asked = [f"{PACKAGE}=={VERSION}", "--no-deps", "--no-binary", PACKAGE, "--dest", str(folder)]
    archive = folder / f"{PACKAGE}-{VERSION}.tar.gz"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", *asked],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        said = done.stderr.strip()
    except subprocess.TimeoutExpired:
        said = f"It took more than {SECONDS} s."
    if not archive.exists():
        print(
            f"The JSON-Schema-Test-Suite is not here, and pip brings no source of {asked[0]}: "
            f"no registry answers, or it has none.\n{said}",
            file=sys.stderr,
        )
        raise SystemExit(2)
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")
    return tests


def read_cases(tests: Path) -> Iterator[Case]:
    """Yield the cases of all files, ordered by their names."""
    for file in sorted(tests.rglob("*.json")):
        keyword = file.relative_to(tests).with_suffix("").as_posix()
        for case in json.loads(file.read_text(encoding="utf-8")):
            instances = (
                Instance(one["description"], one["data"], one["valid"]) for one in case["tests"]
            )
            yield Case(f"{keyword}: {case['description']}", case["schema"], tuple(instances))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    print(fetch(parser.parse_args().folder))


if __name__ == "__main__":
    main()
