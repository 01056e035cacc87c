"""Wheels: their names, what is in them, and that all who make them mean the same Pythons."""

from __future__ import annotations

import base64
import csv
import hashlib
import platform
import re
import struct
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from mac_extension import MAC_EXTENSION

from tools.wheels import from_source, macos
from tools.wheels.check import MOST_BYTES, check_size, ten_lines
from tools.wheels.debian import NotInDebianError, index_of, unpack_python
from tools.wheels.make import check_audited, with_extension
from tools.wheels.pythons import ask, find
from tools.wheels.versions import (
    MACHINES,
    MACOS,
    VERSIONS,
    Python,
    is_macos,
    platform_tag,
    zig_target,
)

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_GIL = Python("3.14t", (), None)


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def release() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_a_python_is_named_as_wheels_and_extensions_name_it() -> None:
    assert WITHOUT_GIL.tag == "cp314-cp314t"
    assert WITHOUT_GIL.extension_file("aarch64") == "_core.cpython-314t-aarch64-linux-gnu.so"
    assert Python("3.11", (), None).tag == "cp311-cp311"
    assert platform_tag("x86_64") == "manylinux_2_28_x86_64"
    assert WITHOUT_GIL.extension_file("macos_arm64") == "_core.cpython-314t-darwin.so"
    assert platform_tag("macos_arm64") == "macosx_11_0_arm64"
    assert zig_target("x86_64") == "x86_64-linux-gnu.2.28"
    assert zig_target("macos_arm64") == "aarch64-macos.11.0"


@pytest.mark.skipif(sys.platform != "linux", reason="the names are those of Linux")
def test_this_python_finds_an_extension_of_that_name() -> None:
    asked = ask(sys.executable)
    version = "{}.{}".format(*sys.version_info)
    this = asked or Python(version, (), None)  # None: it came without headers
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert this.extension_file(platform.machine()) == f"_core{suffix}"


def test_what_is_no_python_is_none(tmp_path: Path) -> None:
    assert ask(tmp_path / "python3.11") is None
    assert ask("false") is None


def test_cibuildwheel_and_classifiers_have_the_versions_of_make_wheels(
    pyproject: dict[str, Any],
) -> None:
    tags = [f"{Python(version, (), None).abi}-*" for version in VERSIONS]
    assert pyproject["tool"]["cibuildwheel"]["build"] == tags
    named = re.findall(r"Python :: (3\.\d+)\b", " ".join(pyproject["project"]["classifiers"]))
    assert named == [version for version in VERSIONS if not version.endswith("t")]
    assert pyproject["project"]["requires-python"] == f">={VERSIONS[0]}"


def test_a_release_has_the_machines_of_make_wheels_and_no_token(
    pyproject: dict[str, Any], release: dict[str, Any]
) -> None:
    jobs = release["jobs"]
    rows = jobs["wheels"]["strategy"]["matrix"]["include"]
    assert [row["machine"] for row in rows] == list(MACHINES)
    cibuildwheel = pyproject["tool"]["cibuildwheel"]
    for row in rows:
        machine = row["machine"]
        assert row["archs"] == machine.removeprefix("macos_")
        assert row["runner"].startswith("macos-" if is_macos(machine) else "ubuntu-")
        if not is_macos(machine):
            image = cibuildwheel[f"manylinux-{machine}-image"]
            assert platform_tag(machine) == f"{image}_{machine}"
    assert cibuildwheel["macos"]["environment"] == {"MACOSX_DEPLOYMENT_TARGET": MACOS}
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert not any("password" in step.get("with", {}) for step in jobs["publish"]["steps"])


def test_a_wheel_is_what_the_backend_made_with_an_extension_and_its_own_tags(
    tmp_path: Path,
) -> None:
    pure = tmp_path / "pybatcher_engine-1.0-py3-none-any.whl"
    info = "pybatcher_engine-1.0.dist-info"
    with zipfile.ZipFile(pure, "w") as file:
        file.writestr("pybatcher/__init__.py", "one = 1\n")
        file.writestr(f"{info}/METADATA", "Name: pybatcher-engine\n")
        file.writestr(f"{info}/WHEEL", "Root-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "of the pure one")
    extension = tmp_path / "_core.so"
    extension.write_bytes(b"code")

    wheel = with_extension(pure, WITHOUT_GIL, "x86_64", extension, tmp_path)

    assert wheel.name == "pybatcher_engine-1.0-cp314-cp314t-linux_x86_64.whl"
    with zipfile.ZipFile(wheel) as file:
        assert file.read("pybatcher/_core.cpython-314t-x86_64-linux-gnu.so") == b"code"
        assert file.read("pybatcher/__init__.py") == b"one = 1\n"
        about = file.read(f"{info}/WHEEL").decode()
        assert "Root-Is-Purelib: false\n" in about
        assert about.count("Tag:") == 1
        assert "Tag: cp314-cp314t-linux_x86_64\n" in about
        rows = list(csv.reader(file.read(f"{info}/RECORD").decode().splitlines()))
        assert [row[0] for row in rows] == file.namelist()
        assert rows.pop() == [f"{info}/RECORD", "", ""]
        for path, digest, size in rows:
            content = file.read(path)
            bits = hashlib.sha256(content).digest()
            assert digest == "sha256=" + base64.urlsafe_b64encode(bits).decode().rstrip("=")
            assert int(size) == len(content)


def test_the_same_sources_make_the_same_bytes(tmp_path: Path) -> None:
    pure = tmp_path / "pybatcher_engine-1.0-py3-none-any.whl"
    extension = tmp_path / "_core.so"
    extension.write_bytes(b"code")
    made = []
    for year in (2001, 2002):
        with zipfile.ZipFile(pure, "w") as file:
            file.writestr(zipfile.ZipInfo("pybatcher/py.typed", (year, 1, 1, 0, 0, 0)), "")
        made.append(with_extension(pure, WITHOUT_GIL, "x86_64", extension, tmp_path).read_bytes())
    assert made[0] == made[1]


def test_a_wheel_for_another_machine_is_named_for_the_oldest_linux(tmp_path: Path) -> None:
    pure, extension = tmp_path / "pybatcher_engine-1.0-py3-none-any.whl", tmp_path / "_core.so"
    zipfile.ZipFile(pure, "w").close()
    extension.write_bytes(b"code")
    tag = platform_tag("aarch64")
    wheel = with_extension(pure, WITHOUT_GIL, "aarch64", extension, tmp_path, tag)
    assert wheel.name == "pybatcher_engine-1.0-cp314-cp314t-manylinux_2_28_aarch64.whl"
    with zipfile.ZipFile(wheel) as file:
        about = file.read("pybatcher_engine-1.0.dist-info/WHEEL").decode()
    assert "Tag: cp314-cp314t-manylinux_2_28_aarch64\n" in about


def test_what_auditwheel_says_of_it_is_believed() -> None:
    said = 'consistent with the following platform tag: "manylinux_2_{}_aarch64". The wheel {}'
    alone = "requires no external shared libraries! :)"
    check_audited(said.format(17, alone), "aarch64")
    check_audited(said.format(28, alone), "aarch64")
    with pytest.raises(ValueError, match=r"fit for glibc 2\.28"):
        check_audited(said.format(31, alone), "aarch64")
    with pytest.raises(ValueError, match=r"fit for glibc 2\.28"):
        check_audited(said.format(17, alone), "x86_64")
    with pytest.raises(ValueError, match="needs libraries"):
        check_audited(said.format(17, "references libstdc++.so.6"), "aarch64")


@pytest.fixture
def mac_extension(tmp_path: Path) -> Path:
    file = tmp_path / "_core.so"
    file.write_bytes(MAC_EXTENSION)
    return file


def test_an_extension_for_macs_is_what_they_load(mac_extension: Path) -> None:
    macos.check(mac_extension)
    signed = MAC_EXTENSION.index(b"\xfa\xde\x0c\xc0")
    macos.check_signature(MAC_EXTENSION, MAC_EXTENSION[signed:])


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"/usr/lib/libSystem.B.dylib\0", b"/usr/lib/libfoobar.B.dylib\0", "needs .*libfoobar"),
        (b"_PyInit__core\0", b"_PyInit__more\0", "exports no PyInit__core"),
        (struct.pack("<II", 0x0100000C, 0), struct.pack("<II", 0x01000007, 3), "X86_64"),
        (struct.pack("<II", 1, 11 << 16), struct.pack("<II", 1, 12 << 16), r"needs macOS .*12"),
        (b"_PyModule_Create2", b"_QyModule_Create2", r"asks Python's program for .*_QyModule"),
        (b"@rpath/_core.so", b"@rpath/_care.so", "page 0 is not the one that was signed"),
        (b"\xfa\xde\x0c\x02", b"\xfa\xde\x0c\x03", "no directory of code"),
    ],
)
def test_what_a_mac_would_not_load_is_refused(
    mac_extension: Path, old: bytes, new: bytes, problem: str
) -> None:
    assert old in MAC_EXTENSION
    mac_extension.write_bytes(MAC_EXTENSION.replace(old, new))
    with pytest.raises(ValueError, match=problem):
        macos.check(mac_extension)


def test_what_is_no_file_of_macos_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "_core.so"
    file.write_bytes(b"\x7fELF")
    with pytest.raises(ValueError, match=r"_core\.so is no file of macOS"):
        macos.check(file)


def test_headers_for_macs_know_no_machine_of_debians(tmp_path: Path) -> None:
    include = tmp_path / "usr" / "include"
    of_machine = include / "x86_64-linux-gnu" / "python3.14"
    for folder, text in ((include / "python3.14", "#error"), (of_machine, "#define SIZE 8")):
        folder.mkdir(parents=True)
        (folder / "pyconfig.h").write_text(text)
    linux = Python("3.14", (include / "python3.14", include), tmp_path / "python3.14")
    mac = macos.with_headers(linux, tmp_path)
    (headers,) = mac.headers
    assert (headers / "pyconfig.h").read_text() == "#define SIZE 8"
    assert mac.program is None


def test_a_wheel_of_more_than_8_mb_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "big.whl"
    wheel.write_bytes(bytes(MOST_BYTES))
    check_size(wheel)
    wheel.write_bytes(bytes(MOST_BYTES + 1))
    with pytest.raises(ValueError, match=r"big\.whl has 8000001 bytes"):
        check_size(wheel)


def test_the_program_that_is_tried_is_that_of_readme() -> None:
    program = ten_lines((ROOT / "README.md").read_text())
    assert "pybatcher.Batcher()" in program
    assert "asyncio.run(main())" in program


def test_packages_are_found_in_an_index_by_name() -> None:
    text = (
        "Package: one\nVersion: 1\nFilename: pool/one.deb\nSHA256: 01\nDescription: of one\n"
        " SHA256: no field\n\nPackage: two\nFilename: pool/two.deb\nSHA256: 02\n\n"
    )
    assert index_of(text) == {"one": ("pool/one.deb", "01"), "two": ("pool/two.deb", "02")}


def test_a_python_that_no_suite_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotInDebianError, match=r"no suite of Debian has Python 3\.12"):
        unpack_python("3.12", "x86_64", tmp_path, "patchelf")


def test_sources_are_found_in_an_index_by_the_name_of_their_package() -> None:
    sha = "0123456789abcdef" * 4
    text = (
        f"Package: python3.13\nFiles:\n {'1' * 32} 5 a_3.13.1.orig.tar.xz\n"
        f"Checksums-Sha256:\n {'2' * 64} 5 a_3.13.1.orig.tar.xz\nDirectory: pool/a\n\n"
        f"Package: python3.14\nFiles:\n {'3' * 32} 5 b_3.14.1.orig.tar.xz\nChecksums-Sha256:\n"
        f" {'4' * 64} 3 b_3.14.1-1.dsc\n {sha} 5 b_3.14.1.orig.tar.xz\nDirectory: pool/b\n\n"
        "Package: python3.14-more\nDirectory: pool/c\n"
    )
    assert list(from_source.sources_of("python3.14", text)) == [
        ("pool/b/b_3.14.1.orig.tar.xz", sha)
    ]
    assert list(from_source.sources_of("python3", text)) == []


def test_a_python_that_was_compiled_is_taken_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "3.14t-compiled"
    root.mkdir()
    (root / ".compiled").touch()
    program = from_source.compiled_python("3.14t", tmp_path)
    assert program == root / "bin" / "python3.14t"


def test_sources_that_cannot_be_had_or_are_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(url: str) -> bytes:
        if url.endswith(".orig.tar.xz"):
            return b"others"
        raise OSError("no route")

    monkeypatch.setattr("tools.wheels.debian._read", read)
    with pytest.raises(NotInDebianError, match=r"3\.14\.7\.orig\.tar\.xz has not the SHA-256 3b48"):
        from_source.compiled_python("3.14t", tmp_path)
    with pytest.raises(NotInDebianError, match=r"deb\.debian\.org/debian cannot be read: no route"):
        from_source.compiled_python("3.99t", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInDebianError, match="compiled with cc and make, which are not here"):
        from_source.compiled_python("3.14t", tmp_path)


def test_headers_with_the_gil_do_for_a_python_without_it_that_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(version: str, machine: str, folder: Path, patchelf: str) -> Python:
        if version.endswith("t"):
            raise NotInDebianError(f"no suite of Debian has Python {version}")
        return Python(version, (folder / machine,), folder / "python")

    monkeypatch.setattr("tools.wheels.pythons.unpack_python", unpack)
    python, problem = find("3.99t", "aarch64", (), tmp_path, "patchelf")
    assert python == Python("3.99t", (tmp_path / "aarch64",), None)
    assert problem == "no suite of Debian has Python 3.99t"


def test_a_python_that_is_nowhere_is_said_and_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    python, problem = find("3.99", "x86_64", [tmp_path / "python"], tmp_path, "patchelf")
    assert python is None
    assert problem.startswith("no python3.99 with headers is on this machine, and no suite")
