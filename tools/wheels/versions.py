"""The Pythons and machines that wheels are for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.14t", "3.15")
MACHINES = ("x86_64", "aarch64")
# The oldest glibc that the wheels run with: that of RHEL 8 and Debian 11.
GLIBC = "2.28"


def platform_tag(machine: str) -> str:
    """Return the platform of a wheel's name, as "manylinux_2_28_x86_64"."""
    return f"manylinux_{GLIBC.replace('.', '_')}_{machine}"


@dataclass(frozen=True)
class Python:
    """A Python that wheels can be built for.

    Attributes:
        version: "3.14", with a "t" behind it where there is no GIL.
        headers: folders for the compiler to look into.
        program: the interpreter, or None where it cannot be run here.
    """

    version: str
    headers: tuple[Path, ...]
    program: Path | None

    @property
    def has_gil(self) -> bool:
        return not self.version.endswith("t")

    @property
    def abi(self) -> str:
        """Return the ABI of a wheel's name: "cp314t"."""
        return "cp" + self.version.replace(".", "")

    @property
    def tag(self) -> str:
        """Return Python and ABI of a wheel's name: "cp314-cp314t"."""
        return f"{self.abi.removesuffix('t')}-{self.abi}"

    def extension_file(self, machine: str) -> str:
        """Return the name by which this Python finds the extension."""
        return f"_core.cpython-{self.abi.removeprefix('cp')}-{machine}-linux-gnu.so"
