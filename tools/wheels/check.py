"""Use of a wheel outside the checkout, in an environment that has nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.wheels.debian import NotInDebianError, unpack_python
from tools.wheels.make import PIP, ROOT
from tools.wheels.versions import GLIBC, Python

MOST_BYTES = 8_000_000
_NO_GIL = "import sys, pybatcher; pybatcher.Engine; assert not sys._is_gil_enabled()"


def ten_lines(readme: str) -> str:
    """Return the first program of README."""
    found = re.search(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert found is not None, "README has no program"
    return found.group(1)


def check_size(wheel: Path) -> None:
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{wheel.name} has {size} bytes; it may have {MOST_BYTES}")


def _targets(machine: str) -> list[dict[str, str]]:
    """Return environments that require vector instructions, if the machine has any."""
    if machine == "aarch64":
        return [{"PYBATCHER_CPU_TARGET": target} for target in ("neon", "neon_i8mm")]
    has_avx2 = " avx2 " in Path("/proc/cpuinfo").read_text()
    return [{"PYBATCHER_CPU_TARGET": "avx2"} if has_avx2 else {}]


def _use(
    python: list[str | Path], room: Path, has_gil: bool, targets: list[dict[str, str]], path: str
) -> None:
    (room / "ten_lines.py").write_text(ten_lines((ROOT / "README.md").read_text()))
    programs: list[list[str]] = [
        ["-m", "pybatcher", "demo", "--max-tokens", "24"],
        ["ten_lines.py"],
    ]
    programs += [] if has_gil else [["-c", _NO_GIL]]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept |= {"PYTHONPATH": path} if path else {}
    for target in targets:
        for program in programs:
            subprocess.run([*python, *program], check=True, cwd=room, env={**kept, **target})


def use_here(wheel: Path, python: Python) -> None:
    """Install a wheel with its dependencies in a new environment, and run programs with it.

    Raises:
        subprocess.CalledProcessError: the installation or a program fails.
    """
    assert python.program is not None
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        subprocess.run([python.program, "-m", "venv", "--without-pip", room / "venv"], check=True)
        program = room / "venv" / "bin" / "python"
        subprocess.run([*PIP, "--python", program, "install", wheel], check=True)
        _use([program], room, python.has_gil, _targets("x86_64"), "")


def _install_for(platforms: list[str], version: str, wheel: Path, site: Path) -> None:
    """Install a wheel with its dependencies in a folder, for a machine other than this one."""
    options = [f"--platform={platform}" for platform in platforms]
    options += [f"--python-version={version.removesuffix('t')}", "--implementation=cp"]
    options += [f"--abi=cp{version.replace('.', '')}", "--abi=abi3", "--abi=none"]
    command = [*PIP, "install", "--only-binary=:all:", *options, "--target", site, wheel]
    subprocess.run(command, check=True)


def install_for_macos(wheel: Path, version: str) -> None:
    """Install a wheel with its dependencies as on a Mac, to check that all of them exist.

    Raises:
        subprocess.CalledProcessError: a dependency is missing.
    """
    with tempfile.TemporaryDirectory() as name:
        _install_for(["macosx_14_0_arm64"], version, wheel, Path(name))


def use_under_qemu(wheel: Path, version: str, folder: Path, patchelf: str) -> None:
    """Use a wheel for 64-bit ARM like `use_here`, under an emulator of its user space.

    Raises:
        NotInDebianError: there is no such Python, or no emulator.
        subprocess.CalledProcessError: as in `use_here`.
    """
    qemu = shutil.which("qemu-aarch64")
    if qemu is None:
        raise NotInDebianError("qemu-aarch64 of Debian's package qemu-user is not here")
    program = unpack_python(version, "aarch64", folder, patchelf).program
    assert program is not None
    glibcs = ["_".join(GLIBC.split(".")), "2_27", "2_17"]
    platforms = [*(f"manylinux_{glibc}_aarch64" for glibc in glibcs), "manylinux2014_aarch64"]
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        site = room / "site"
        _install_for(platforms, version, wheel, site)
        _use([qemu, program], room, True, _targets("aarch64"), str(site))
