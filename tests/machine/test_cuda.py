"""CUDA reports, with a driver simulated by native/cuda/fake_cuda.cc.

Each case is a process of its own, since the driver is found on its library path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pybatcher.engine import Engine
from pybatcher.machine.cuda import CudaDevice, CudaInfo

FAKE = Path(__file__).parents[1] / "native" / "cuda" / "fake_cuda.cc"
TOOLKIT = Engine.cuda_info().toolkit  # of this build, or ""

ASK = """
import dataclasses, json
from pybatcher import ConfigError, Engine
try:
    error = Engine.load(device="cuda").description()
except ConfigError as refused:
    error = str(refused)
print(json.dumps([dataclasses.asdict(Engine.cuda_info()), error]))
"""

START = """
from pathlib import Path
import pybatcher
loaded = lambda: "libcuda.so" in Path("/proc/self/maps").read_text()
with pybatcher.BlockingBatcher() as batcher:
    batcher.generate("Once upon a time", max_tokens=2)
engine = pybatcher.Engine.load(device="auto")
print(engine.description()["device"], loaded())
engine.cuda_info()
print(loaded())
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that behaves as FAKE_CUDA_... say."""
    folder = tmp_path_factory.mktemp("driver")
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++"))))
    command = [*compiler.split(), "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(FAKE)]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="module")
def no_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda.so.1 that cannot be loaded, and hides a real one."""
    folder = tmp_path_factory.mktemp("no_driver")
    (folder / "libcuda.so.1").write_bytes(b"")
    return folder


def run(folder: Path, said: dict[str, str], *arguments: str) -> str:
    """Run Python with these arguments and the driver of that folder; return its output."""
    told = {f"FAKE_CUDA_{name}": value for name, value in said.items()}
    outcome = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **told, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def ask(folder: Path, **said: str) -> tuple[dict[str, Any], str]:
    """Return the CudaInfo as a dictionary, and the error of device="cuda"."""
    info, error = json.loads(run(folder, said, "-c", ASK))
    assert info.keys() == CudaInfo.__dataclass_fields__.keys()
    assert not info["has_kernels"]
    assert error.startswith("device is 'cuda', and this build of pybatcher has no CUDA kernels")
    assert info["driver_problem"] in error
    assert info["build_problem"] in error
    assert "build it with PYBATCHER_CUDA=ON, or use device='cpu'" in error
    assert bool(info["driver_problem"]) == (info["driver_state"] != "ready")
    return info, error


def test_the_build_has_a_toolkit_or_says_why_not() -> None:
    info = Engine.cuda_info()
    assert bool(info.toolkit) == bool(info.architectures) == (not info.build_problem)
    assert not info.toolkit or set(info.architectures) >= {80, 89, 90}
    assert asdict(info)["toolkit"] == info.toolkit


def test_a_good_driver(driver: Path) -> None:
    info, error = ask(driver, COUNT="2")
    assert (info["driver_state"], info["driver_version"], info["driver_error"]) == (
        "ready",
        "13.0",
        0,
    )
    gpu = {"name": "NVIDIA H200", "compute_capability": [9, 0], "memory_bytes": 140 * 2**30}
    assert info["devices"] == [gpu, gpu]
    assert error.endswith("use device='cpu'")


def test_no_driver(no_driver: Path) -> None:
    info, _ = ask(no_driver)
    assert (info["driver_state"], info["driver_version"]) == ("absent", "")
    assert "there is no NVIDIA driver (" in info["driver_problem"]


def test_a_driver_that_fails_to_start(driver: Path) -> None:
    info, _ = ask(driver, FAILS="cuInit")
    assert (info["driver_state"], info["driver_error"]) == ("failed", 999)
    assert "cuInit gave 999 (unknown error)" in info["driver_problem"]
    assert (info["driver_version"], info["devices"]) == ("13.0", [])


def test_no_gpu(driver: Path) -> None:
    info, _ = ask(driver, COUNT="0")
    assert (info["driver_state"], info["devices"]) == ("no_device", [])


def test_an_old_driver_is_too_old_for_a_toolkit_only(driver: Path) -> None:
    info, _ = ask(driver, VERSION="11040")
    assert info["driver_version"] == "11.4"
    assert info["driver_state"] == ("too_old" if TOOLKIT else "ready")


def test_an_old_gpu_is_unknown_to_a_toolkit_only(driver: Path) -> None:
    info, _ = ask(driver, NAME="Tesla V100", CAPABILITY="70")
    assert [gpu["name"] for gpu in info["devices"]] == ["Tesla V100"]
    assert info["driver_state"] == ("unknown_device" if TOOLKIT else "ready")


def test_a_name_that_is_not_utf8_is_no_error(driver: Path) -> None:
    info, _ = ask(driver, NAME="caf\udce9")
    assert info["devices"][0]["name"] == "caf\\xe9"


def test_importing_and_a_start_on_the_cpu_leave_the_driver_alone(driver: Path) -> None:
    assert run(driver, {}, "-c", START) == "cpu False\nTrue\n"


@pytest.mark.slow
def test_the_command_line_tells_of_it(driver: Path, no_driver: Path) -> None:
    good = " ".join(run(driver, {}, "-m", "pybatcher", "info").split())
    assert "NVIDIA driver for CUDA up to 13.0 GPUs 1, NVIDIA H200 (sm_90, 140.0 GiB)" in good
    assert (f"CUDA toolkit {TOOLKIT} for sm_80" if TOOLKIT else "CUDA none, ") in good
    assert "lacking" not in good
    bad = " ".join(run(no_driver, {}, "-m", "pybatcher", "info").split())
    assert "NVIDIA driver none GPUs 0 lacking there is no NVIDIA driver" in bad


@pytest.mark.parametrize(("capability", "warns"), [((9, 0), False), ((8, 0), True)])
def test_a_gpu_of_a_kind_that_was_not_checked_is_warned_of(
    capability: tuple[int, int], warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = CudaDevice("NVIDIA A100", capability, 80 << 30)
    info = replace(Engine.cuda_info(), devices=(gpu,))
    monkeypatch.setattr(Engine, "cuda_info", staticmethod(lambda: info))
    monkeypatch.setattr(Engine, "description", lambda _: {"device": "cuda"})
    expected = (
        pytest.warns(UserWarning, match=r"checked on an H100.*and NVIDIA A100 has 8\.0")
        if warns
        else nullcontext()
    )
    with expected:
        Engine.load(n_threads=1, n_ctx=256).close()
