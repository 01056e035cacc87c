"""Write the pages and the configuration of the documentation's site.

    python -m tools.docs build/docs

`make docs-site` calls it and then mkdocs, with the options of mkdocs.yml.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .pages import ROOT, navigation, write_pages
from .reference import reference_pages

OPTIONS = ROOT / "mkdocs.yml"


def main() -> None:
    """Write the folder `pages` and the file mkdocs.yml below the folder that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    reference = reference_pages()
    write_pages(folder / "pages", reference)
    options = {"INHERIT": str(OPTIONS), "docs_dir": "pages", "nav": navigation(reference)}
    (folder / "mkdocs.yml").write_text(json.dumps(options, indent=1) + "\n")  # JSON is YAML


if __name__ == "__main__":
    main()
