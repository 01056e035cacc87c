"""What of CUDA this build and this machine have: the values of `Engine.cuda_info()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CudaDevice", "CudaInfo", "DriverState"]

DriverState = Literal["ready", "absent", "too_old", "failed", "no_device", "unknown_device"]
"""Of the NVIDIA driver.

"ready": it has a GPU for this build's code; or any, in a build without CUDA.
"absent": there is none.
"too_old": older than this build's toolkit can do with. It is not started, so that
    its GPUs are not known.
"failed": one of its functions gave an error.
"no_device": it finds no GPU, or is shown none.
"unknown_device": this build has no code for any of its GPUs.
"""


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A GPU. compute_capability: (9, 0) is what `sm_90` is compiled for. memory_bytes: in all."""

    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class CudaInfo:
    """A build's CUDA, and the driver and the GPUs that it finds.

    toolkit: the version of nvcc, "13.0.88"; "" in a build without CUDA.
    architectures: what nvcc compiles for, 90 for `sm_90`.
    build_problem: why the build has no CUDA; "" where it has.
    driver_state: what became of looking for the driver.
    driver_version: the newest CUDA that the driver is for, "13.0"; "" if not known.
    driver_error: the driver's code for what went wrong, where it is "failed"; else 0.
    driver_problem: what is lacking and what to do about it; "" when "ready".
    devices: the GPUs that the driver shows this process.
    """

    toolkit: str
    architectures: tuple[int, ...]
    build_problem: str
    driver_state: DriverState
    driver_version: str
    driver_error: int
    driver_problem: str
    devices: tuple[CudaDevice, ...]
