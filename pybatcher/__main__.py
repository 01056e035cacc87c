"""Run the command line with `python -m pybatcher`."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":
    main()
