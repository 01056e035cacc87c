"""Installs the clients that tests/clients runs: `make test-clients` runs this.

    install.py FOLDER [SECTION ...]

`python` and `aiperf` are environments with packages of PyPI, `node` is a folder with packages of
npm. The versions are those of the files beside this one. What is there already stays. The status is
1 where a section could not be installed, which is said by name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_HERE = Path(__file__).parent
_DONE = ".installed"  # the hash of what was asked for
_PATIENCE = 900.0  # seconds


def main(folder: Path, sections: list[str]) -> int:
    """Install what is not there yet; return the status of the program."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in _SECTIONS if not sections or name in sections]
    with ThreadPoolExecutor() as threads:
        return 1 - all(list(threads.map(lambda name: _installed(folder / name, name), wanted)))


def _installed(target: Path, name: str) -> bool:
    """Install a section if it is not there; say what is wrong where that cannot be done."""
    registry, files, install = _SECTIONS[name]
    done, wanted = target / _DONE, _hash(files)
    if done.exists() and done.read_text() == wanted:
        return True
    try:
        install(target)
        done.write_text(wanted)
    except (OSError, subprocess.SubprocessError) as error:
        print(
            f"the clients of {registry} (section {name!r}) could not be installed: {error}\n"
            f"They are not part of the checkout: tests/clients needs {registry}, or a mirror of it "
            "that the settings of pip and npm name.",
            file=sys.stderr,
        )
        return False
    return True


def _hash(files: list[str]) -> str:
    return hashlib.sha256(b"".join((_HERE / name).read_bytes() for name in files)).hexdigest()


def _python(requirements: str) -> Callable[[Path], None]:
    def install(target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        venv.create(target, with_pip=True)
        python = str(target / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        _run([*pip, "--requirement", str(_HERE / "uv.txt")])
        # It downloads at once what pip would download one after the other, for minutes.
        uv = [str(target / "bin" / "uv"), "pip", "install", "--quiet", "--python", python]
        _run([*uv, "--no-deps", "--requirement", str(_HERE / requirements)], _index())

    return install


def _index() -> dict[str, str]:
    """Return the package index that pip uses, for uv, which does not read pip's settings."""
    pip = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    found = os.environ.get("PIP_INDEX_URL")
    if not found:
        found = subprocess.run(pip, capture_output=True, text=True, check=False).stdout.strip()
    return {"UV_DEFAULT_INDEX": found} if found else {}


def _node(target: Path) -> None:
    target.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_HERE / "node" / name, target)
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    # `npm ci` wants all optional packages in the lockfile, those of other platforms too.
    _run([npm, "--prefix", str(target), "install", "--no-audit", "--no-fund", "--loglevel=error"])


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    own = {**os.environ, **(environment or {})}
    subprocess.run(command, env=own, timeout=_PATIENCE, check=True)


_SECTIONS: dict[str, tuple[str, list[str], Callable[[Path], None]]] = {
    "python": ("PyPI", ["uv.txt", "python.txt"], _python("python.txt")),
    "aiperf": ("PyPI", ["uv.txt", "aiperf.txt"], _python("aiperf.txt")),
    "node": ("npm", ["node/package.json", "node/package-lock.json"], _node),
}

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
