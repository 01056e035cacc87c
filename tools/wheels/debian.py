"""Pythons from Debian's packages, which are unpacked into a folder and run from there.

Nothing is installed. A package is used if it has the SHA-256 in the index of its suite.
"""

from __future__ import annotations

import hashlib
import lzma
import shutil
import subprocess
import urllib.request
from pathlib import Path

from tools.wheels.versions import Python

MIRROR = "https://deb.debian.org/debian"
# The suite of each Python. No suite on the mirror has 3.12. `from_source` compiles 3.14t.
SUITES = {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid", "3.15": "forky"}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
# Package names. A suite has some of them, because libraries were renamed when time_t grew.
_LIBRARIES = (
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libbz2-1.0"),
    *("libssl3", "libssl3t64", "liblzma5", "libsqlite3-0", "libuuid1", "libzstd1"),
    *("libtinfo6", "libncursesw6", "libreadline8", "libreadline8t64"),
)


class NotInDebianError(Exception):
    """A Python is not available; the message says why."""


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return bytes(answer.read())


def read_index(path: str) -> str:
    """Return the text of a compressed index: `Packages` or `Sources` of a suite.

    Raises:
        OSError: it cannot be read.
    """
    return lzma.decompress(_read(f"{MIRROR}/{path}.xz")).decode()


def read_file(path: str, digest: str) -> bytes:
    """Return a file that an index names, by its path and SHA-256.

    Raises:
        OSError: it cannot be read.
        NotInDebianError: it is another one.
    """
    file = _read(f"{MIRROR}/{path}")
    if hashlib.sha256(file).hexdigest() != digest:
        raise NotInDebianError(f"{path} has not the SHA-256 {digest}")
    return file


def index_of(packages: str) -> dict[str, tuple[str, str]]:
    """Return the path and SHA-256 of each package from the text of a file `Packages`."""
    found = {}
    for paragraph in packages.split("\n\n"):
        fields = dict(
            line.split(": ", 1)
            for line in paragraph.splitlines()
            if line.startswith(("Package: ", "Filename: ", "SHA256: "))
        )
        if len(fields) == 3:
            found[fields["Package"]] = (fields["Filename"], fields["SHA256"])
    return found


def _index(suite: str, architecture: str) -> dict[str, tuple[str, str]]:
    return index_of(read_index(f"dists/{suite}/main/binary-{architecture}/Packages"))


def _unpack(root: Path, names: list[str], index: dict[str, tuple[str, str]]) -> None:
    for name in names:
        file = root.with_suffix(".deb")
        file.write_bytes(read_file(*index[name]))
        subprocess.run(["dpkg-deb", "--extract", file, root], check=True)
        file.unlink()


def unpack_python(version: str, machine: str, folder: Path, patchelf: str) -> Python:
    """Return a Python under `folder`; download and unpack it if it is not there.

    Its program is patched to name its own loader and C library.

    Raises:
        NotInDebianError: no suite has it, the mirror cannot be read, or there is no dpkg-deb.
    """
    if version not in SUITES:
        raise NotInDebianError(f"no suite of Debian has Python {version}")
    if shutil.which("dpkg-deb") is None:
        raise NotInDebianError("Debian's packages are unpacked by dpkg-deb, which is not here")
    suite, architecture = SUITES[version], ARCHITECTURES[machine]
    root = folder.resolve() / f"{version}-{architecture}"
    program = root / "usr" / "bin" / f"python{version}"
    done = root / ".unpacked"
    if not done.exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        parts = [f"python{version}-minimal", f"libpython{version}-dev"]
        parts += [f"libpython{version}-{part}" for part in ("minimal", "stdlib")]
        try:
            index = _index(suite, architecture)
            _unpack(root, [name for name in (*parts, *_LIBRARIES) if name in index], index)
        except OSError as error:
            raise NotInDebianError(f"{MIRROR} cannot be read: {error}") from error
        libraries = next(root.glob(f"usr/lib/{machine}-linux-gnu"))
        loader = next(path for path in root.rglob(LOADERS[machine]) if path.resolve().is_file())
        for option, value in (("interpreter", loader), ("rpath", libraries)):
            subprocess.run(
                [patchelf, "--force-rpath", f"--set-{option}", value, program], check=True
            )
        done.touch()
    # The first folder's pyconfig.h includes the machine's, by a path from the second.
    headers = (root / "usr" / "include" / f"python{version}", root / "usr" / "include")
    return Python(version, headers, program)
