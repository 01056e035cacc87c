"""Write the docstrings of a stub (`_core.pyi`) as a C++ header: `core_docs.py STUB HEADER`.

The compiled extension and type checkers then have the same text, from one source.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

_HEADER = """\
// Made from {stub} by cmake/core_docs.py.
#pragma once

#include <string_view>
#include <utility>

namespace pb::bindings {{

inline constexpr std::pair<std::string_view, const char*> kDocs[] = {{
{rows}
}};

// The docstring of a function, of a class, or of "Class.member". A name that the stub does not
// document is an error of the compiler.
consteval const char* doc(std::string_view name) {{
  for (const auto& [documented, text] : kDocs) {{
    if (documented == name) return text;
  }}
  throw "the stub has no docstring of this name";
}}

}}  // namespace pb::bindings
"""


def docstrings(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, docstring) of all functions and classes in `body`, and of their members."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            text = ast.get_docstring(node)
            if text is not None:
                yield prefix + node.name, text
        if isinstance(node, ast.ClassDef):
            yield from docstrings(node.body, f"{prefix}{node.name}.")


def header(stub: Path) -> str:
    """Return the text of the header."""
    found = docstrings(ast.parse(stub.read_text(encoding="utf-8")).body)
    rows = "\n".join(f'    {{"{name}",\n     R"doc({text})doc"}},' for name, text in found)
    return _HEADER.format(stub=f"{stub.parent.name}/{stub.name}", rows=rows)


def main() -> None:
    """Write the header that the command line names."""
    stub, target = map(Path, sys.argv[1:])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(header(stub), encoding="utf-8")


if __name__ == "__main__":
    main()
