"""The distribution's name: one in the metadata, in messages and in all documentation."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from pybatcher.errors.distribution import DISTRIBUTION, install_extra, version

ROOT = Path(__file__).resolve().parents[2]

# `pip install pybatcher`, `pybatcher[http]` and `pybatcher-*.whl`: the import name in the place of
# the distribution's. A link of Markdown, `[pybatcher](...)`, is none of these.
OTHER_PROJECT = re.compile(
    r"""(?:pip|uv\ pip|pipx)\ install\ (?:-\S+\ )*["']?pybatcher(?![-\w])  # an install
        | (?<![-\w])pybatcher\\?\[[a-z]             # an extra
        | (?<![-\w])pybatcher-[*\d]\S*(?:whl|gz)  # a file
        | metadata\.version\(["']pybatcher["']\)    # its version
        | pypi\.org/(?:p|project)/pybatcher(?![-\w])""",
    re.VERBOSE,
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_name_is_that_of_the_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert version() == metadata.version(DISTRIBUTION) == PROJECT["version"]


def test_messages_name_extras_of_the_project() -> None:
    assert install_extra("http") == "pip install 'pybatcher-engine[http]'"
    named = set()
    for path in (ROOT / "pybatcher").rglob("*.py"):
        named |= set(re.findall(r"install_extra\([\"']([a-z]+)[\"'][,)]", path.read_text()))
    assert {"gguf", "http", "hub", "images", "metrics", "otel", "ray", "structured"} == named
    assert named <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize(
    "text",
    [
        "pip install pybatcher",
        "pip install --upgrade 'pybatcher[gguf]'",
        "pip install dist/pybatcher-*.whl",
        r"pip install 'pybatcher\[ray\]'",
        '"pybatcher[test-without-torch]"',
        'metadata.version("pybatcher")',
        "url: https://pypi.org/p/pybatcher",
    ],
)
def test_the_name_of_the_other_project_is_found(text: str) -> None:
    assert OTHER_PROJECT.search(text)
    assert not OTHER_PROJECT.search(text.replace("pybatcher", "pybatcher-engine"))


@pytest.mark.slow
def test_no_file_names_the_other_project_as_this_one() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    paths = [ROOT / name for name in listed.stdout.decode().split("\0")[:-1]]
    wrong = []
    for path in paths:
        if path == Path(__file__) or path.suffix in {".png", ".svg", ".safetensors"}:
            continue
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        wrong += [f"{path.relative_to(ROOT)}: {found[0]}" for found in OTHER_PROJECT.finditer(text)]
    assert len(paths) > 100
    assert not wrong, "\n".join(wrong)
