"""The Pythons and machines that wheels are for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.14t", "3.15")
# The CPUs of Linux machines, and Macs.
MACHINES = ("x86_64", "aarch64", "macos_arm64")
# The oldest glibc that the wheels run with, which is that of RHEL 8 and Debian 11.
GLIBC = "2.28"
# The oldest macOS that the wheels run with, which is the first one for ARM.
MACOS = "11.0"


def is_macos(machine: str) -> bool:
    return machine.startswith("macos_")


def platform_tag(machine: str) -> str:
    """Return the platform in a wheel's name, as "manylinux_2_28_x86_64"."""
    if is_macos(machine):
        return f"macosx_{MACOS.replace('.', '_')}_{machine.removeprefix('macos_')}"
    return f"manylinux_{GLIBC.replace('.', '_')}_{machine}"


def zig_target(machine: str) -> str:
    """Return zig's name of the target."""
    if is_macos(machine):
        return f"{machine.removeprefix('macos_').replace('arm64', 'aarch64')}-macos.{MACOS}"
    return f"{machine}-linux-gnu.{GLIBC}"


@dataclass(frozen=True)
class Python:
    """A Python that wheels can be built for.

    Attributes:
        version: "3.14", followed by "t" if it is free-threaded.
        headers: include folders for the compiler.
        program: the interpreter, or None if it cannot run here.
    """

    version: str
    headers: tuple[Path, ...]
    program: Path | None

    @property
    def has_gil(self) -> bool:
        return not self.version.endswith("t")

    @property
    def abi(self) -> str:
        """The ABI in a wheel's name: "cp314t"."""
        return "cp" + self.version.replace(".", "")

    @property
    def tag(self) -> str:
        """The Python and ABI in a wheel's name: "cp314-cp314t"."""
        return f"{self.abi.removesuffix('t')}-{self.abi}"

    def extension_file(self, machine: str) -> str:
        """Return the name by which this Python finds the extension."""
        system = "darwin" if is_macos(machine) else f"{machine}-linux-gnu"
        return f"_core.cpython-{self.abi.removeprefix('cp')}-{system}.so"
