"""Measure the machine's limits, read bandwidth and multiplication rate: bench/native/limits.cc.

.venv/bin/python -m bench.limits
"""

from __future__ import annotations

import json
from typing import Any

from bench.engine import native_programs

__all__ = ["PEAK_OF_TARGET", "peak_for", "read_limits"]

# The multiplying instruction of a CPU target for weights of a dtype. A target or dtype that is not
# listed multiplies f32.
PEAK_OF_TARGET = {
    ("avx512_amx", "bf16"): "tdpbf16ps",
    ("avx512_amx", "int8"): "tdpbf16ps",  # is expanded to bf16 in the cache
    ("avx512_amx", "int4"): "tdpbf16ps",
    ("avx_vnni", "int8"): "vpdpbusd256",
    ("avx_vnni", "int4"): "vpdpbusd256",
    ("avx512_vnni", "int8"): "vpdpbusd",
    ("avx512_vnni", "int4"): "vpdpbusd",
    ("avx512_bf16", "bf16"): "vdpbf16ps",
    ("avx512_bf16", "int8"): "vpdpbusd",
    ("avx512_bf16", "int4"): "vpdpbusd",
}


def read_limits(n_threads: int, n_bytes: int) -> dict[str, Any]:
    """Measure the read bandwidth over `n_bytes` and the peak of each multiplying instruction.

    The memory that is read is as large as the compared data (up to 4 GiB), because less memory
    could fit into a cache.
    """
    mebibytes = min(max(n_bytes >> 20, 64), 4096)
    (limits,) = native_programs.run("bench_limits", str(n_threads), str(mebibytes))
    return limits


def peak_for(target: str, dtype: str, peaks: dict[str, float]) -> tuple[str, float]:
    """Return name and rate (1e9 operations a second) of the instruction that bounds a product."""
    name = PEAK_OF_TARGET.get((target, dtype))
    if name is None or name not in peaks:
        name = "fma512" if target.startswith("avx512") and "fma512" in peaks else "fma256"
    return name, peaks[name]


def main() -> None:
    print(json.dumps([read_limits(n, 1 << 30) for n in (1, 0)], indent=1))


if __name__ == "__main__":
    main()
