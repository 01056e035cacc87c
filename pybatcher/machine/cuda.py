"""CUDA support of this build and this machine: the types that `Engine.cuda_info()` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CudaDevice", "CudaInfo", "DriverState"]

DriverState = Literal["ready", "absent", "too_old", "failed", "no_device", "unknown_device"]
"""State of the NVIDIA driver.

"ready": this build has code for GPU 0, which an engine uses. A build without CUDA reports "ready"
    for any GPU.
"absent": no driver is installed.
"too_old": the driver is older than this build's toolkit requires. The driver is not started, so
    that its GPUs are not known.
"failed": a driver function returned an error.
"no_device": the driver lists no GPU for this process.
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
    has_kernels: True if the build has CUDA kernels (PYBATCHER_CUDA=ON).
    build_problem: the reason why the build has no CUDA; "" for a build with CUDA.
    driver_state: the state of the driver.
    driver_version: the newest CUDA version that the driver supports, "13.0"; "" if not known.
    driver_error: the driver's error code if the state is "failed"; else 0.
    driver_problem: the problem and how to solve it; "" when "ready".
    devices: the GPUs that the driver lists for this process.
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
