"""Extensions for macOS that are made on Linux: their headers, and the checks of macOS' loader."""

from __future__ import annotations

import hashlib
import shutil
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.wheels.versions import MACOS, Python

_SYSTEM = "/usr/lib/libSystem.B.dylib"
_FLAT_LOOKUP = -2  # a symbol of any loaded image: of Python's program
# The layout of a signature: https://opensource.apple.com/source/xnu/ (osfmk/kern/cs_blobs.h).
_SUPER_BLOB = 0xFADE0CC0
_CODE_DIRECTORY = struct.Struct(">IIIIIIIIIBBBB")
_CODE_DIRECTORY_MAGIC = 0xFADE0C02
_SHA256 = 2


def with_headers(python: Python, folder: Path) -> Python:
    """Return a Python of macOS made of the headers of Linux's, which are copied to `folder`.

    All present 64-bit systems have the same pyconfig.h in the parts that extensions use. Debian's
    file includes the machine's and does not know macOS, so the included file replaces it.
    """
    mine = folder / f"{python.version}-macos"
    shutil.rmtree(mine, ignore_errors=True)
    shutil.copytree(python.headers[0], mine)
    for of_machine in python.headers[-1].glob(f"*-linux-gnu/{python.headers[0].name}/pyconfig.h"):
        shutil.copy(of_machine, mine / "pyconfig.h")
    return replace(python, headers=(mine,), program=None)


@dataclass(frozen=True)
class _Extension:
    """The load commands of a macOS file.

    asked: symbols that other images must have.
    signature: empty if there is none.
    """

    cpu: str
    oldest: list[int]
    libraries: set[str]
    exported: set[str]
    asked: set[str]
    signature: bytes


def _read(file: Path) -> _Extension | None:
    """Return the load commands. None: the file is of another kind."""
    import lief

    lief.logging.disable()
    fat = lief.MachO.parse(str(file))
    if fat is None:
        return None
    binary: Any = fat.at(0)
    own = lief.MachO.LoadCommand.TYPE.ID_DYLIB
    return _Extension(
        cpu=binary.header.cpu_type.name,
        oldest=binary.build_version.minos,
        libraries={library.name for library in binary.libraries if library.command != own},
        exported={symbol.name for symbol in binary.exported_symbols},
        asked={
            binding.symbol.name
            for binding in binary.dyld_info.bindings
            if binding.library_ordinal == _FLAT_LOOKUP
        },
        signature=bytes(binary.code_signature.content) if binary.code_signature else b"",
    )


def check(file: Path) -> None:
    """Check that the loader of macOS accepts an extension, since no Mac is available to try it.

    Raises:
        ValueError: the file needs a newer macOS, or missing libraries or symbols, or is not an
            extension, or is not signed, which Macs with ARM require.
    """
    found = _read(file)
    if found is None:
        raise ValueError(f"{file.name} is no file of macOS")
    if found.cpu != "ARM64":
        raise ValueError(f"{file.name} is for {found.cpu}, not for ARM")
    if found.oldest > [*map(int, MACOS.split(".")), 0]:
        raise ValueError(f"{file.name} needs macOS {found.oldest}; it is to run on {MACOS}")
    missing = sorted(found.libraries - {_SYSTEM})
    if missing:
        raise ValueError(f"{file.name} needs {missing}, which Macs do not have")
    if "_PyInit__core" not in found.exported:
        raise ValueError(f"{file.name} exports no PyInit__core")
    strange = sorted(name for name in found.asked if not name.startswith(("_Py", "__Py")))
    if strange:
        raise ValueError(f"{file.name} asks Python's program for {strange}")
    if not found.signature:
        raise ValueError(f"{file.name} is not signed")
    check_signature(file.read_bytes(), found.signature)


def check_signature(signed: bytes, signature: bytes) -> None:
    """Check that a signature belongs to the bytes before it.

    Raises:
        ValueError: a page differs, or the signature has no SHA-256 of pages.
    """
    magic, _, n_blobs = struct.unpack_from(">III", signature)
    starts = [struct.unpack_from(">II", signature, 12 + 8 * i)[1] for i in range(n_blobs)]
    directories = [
        start
        for start in starts
        if struct.unpack_from(">I", signature, start)[0] == _CODE_DIRECTORY_MAGIC
    ]
    if magic != _SUPER_BLOB or not directories:
        raise ValueError("the signature has no directory of code")
    for start in directories:
        fields = _CODE_DIRECTORY.unpack_from(signature, start)
        first, n_pages, limit = fields[4], fields[7], fields[8]
        size, kind, _, log2_page = fields[9:]
        if kind != _SHA256 or n_pages << log2_page < limit:
            raise ValueError("the signature has no SHA-256 of each page")
        for page in range(n_pages):
            begin, end = page << log2_page, min((page + 1) << log2_page, limit)
            said = signature[start + first + page * size :][:size]
            if hashlib.sha256(signed[begin:end]).digest() != said:
                raise ValueError(f"page {page} is not the one that was signed")
