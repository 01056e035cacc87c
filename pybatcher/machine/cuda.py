"""CUDA support of this build and this machine: the types that `Engine.cuda_info()` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CudaDevice", "CudaInfo", "DriverState"]

DriverState = Literal["ready", "absent", "too_old", "failed", "no_device", "unknown_device"]
"""State of the NVIDIA driver.

"ready": GPU 0, which an engine takes, is one that this build has code for; in a build without CUDA,
any GPU.
"absent": no driver is installed.
"too_old": the driver is older than this build's toolkit requires. It is not started, so that
    its GPUs are not known.
"failed": a driver function returned an error.
"no_device": the driver shows this process no GPU.
"unknown_device": this build has no code for GPU 0.
"""


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A GPU.

    compute_capability: (major, minor); (9, 0) runs code compiled for `sm_90`.
    memory_bytes: total memory.
    """

    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class CudaInfo:
    """CUDA toolkit of this build, and the driver and GPUs of this machine.

    toolkit: the version of nvcc, "13.0.88"; "" in a build without CUDA.
    architectures: the GPU architectures that nvcc compiled for, 90 for `sm_90`.
    has_kernels: the build has CUDA kernels, as PYBATCHER_CUDA=ON makes it.
    build_problem: why the build has no CUDA; "" where it has.
    driver_state: the state of the driver.
    driver_version: the newest CUDA version that the driver supports, "13.0"; "" if not known.
    driver_error: the driver's error code where the state is "failed"; else 0.
    driver_problem: the problem and how to solve it; "" when "ready".
    devices: the GPUs that the driver shows this process.
    """

    toolkit: str
    architectures: tuple[int, ...]
    has_kernels: bool
    build_problem: str
    driver_state: DriverState
    driver_version: str
    driver_error: int
    driver_problem: str
    devices: tuple[CudaDevice, ...]
