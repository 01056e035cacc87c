"""The name under which this package is distributed; it is imported as `pybatcher`.

Another project has the name `pybatcher` on PyPI.
"""

from __future__ import annotations

DISTRIBUTION = "pybatcher-engine"


def version() -> str:
    """Return the version of the installed distribution.

    Raises:
        importlib.metadata.PackageNotFoundError: the package is imported without being installed.
    """
    from importlib import metadata  # takes longer to import than most of this package

    return metadata.version(DISTRIBUTION)


def install_extra(extra: str, *, upgrade: bool = False) -> str:
    """Return the command that installs an extra.

    upgrade: also replace packages of the extra that are installed in an older version.
    """
    return f"pip install {'--upgrade ' * upgrade}'{DISTRIBUTION}[{extra}]'"
