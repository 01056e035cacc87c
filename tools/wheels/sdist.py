"""Makes the sdist in dist/ from the files that git tracks: `make sdist`.

Tracked files are copied as they are in the checkout, changed or not. No other files are copied.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.wheels.make import ROOT


def copy_tracked(checkout: Path, folder: Path) -> None:
    """Copy a checkout's tracked files, except those that are deleted in the checkout.

    Raises:
        subprocess.CalledProcessError: it is not a git checkout.
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
    """Return 0 if the sdist was made."""
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation"]
    with tempfile.TemporaryDirectory() as name:
        copy_tracked(ROOT, Path(name))
        return subprocess.run([*command, "--outdir", ROOT / "dist", name], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
