"""Make the sdist in dist/ out of the files that git tracks: `make sdist`.

Files that are tracked are taken as they lie in the checkout, changed or not. No others are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.wheels.make import ROOT


def copy_tracked(checkout: Path, folder: Path) -> None:
    """Copy the files of a checkout that git tracks, but for those that are deleted there.

    Raises:
        subprocess.CalledProcessError: it is no checkout of git.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=checkout, check=True, capture_output=True
    ).stdout.decode()
    for name in listed.split("\0")[:-1]:
        source, copy = checkout / name, folder / name
        if source.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)


def main() -> int:
    """Return 0 if it was made."""
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation"]
    with tempfile.TemporaryDirectory() as name:
        copy_tracked(ROOT, Path(name))
        return subprocess.run([*command, "--outdir", ROOT / "dist", name], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
