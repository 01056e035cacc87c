from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pybatcher import Engine
from pybatcher.machine.cores import Cores

CASES = [
    (Cores(2, 2, 0, 4, 4, None), "2 of 4 logical CPUs: 2 physical cores"),
    (Cores(1, 1, 0, 1, 1, None), "1 of 1 logical CPUs: 1 physical core"),
    (
        Cores(12, 12, 8, 16, 16, None),
        "12 of 16 logical CPUs: 12 physical cores, 8 of them slow",
    ),
    (
        Cores(1, 1, 0, 2, 8, 1.5),
        "1 of 2 logical CPUs: 1 physical core; affinity mask 2 of 8; cgroup limit 1.5",
    ),
    (
        Cores(3, 64, 0, 128, 128, 2.123456),
        "3 of 128 logical CPUs: 64 physical cores; cgroup limit 2.12",
    ),
]


@pytest.mark.parametrize(("cores", "text"), CASES, ids=lambda value: str(value)[:24])
def test_the_reason_names_what_decided(cores: Cores, text: str) -> None:
    assert cores.reason() == text


def test_cores_of_this_machine_are_threads_of_an_engine() -> None:
    cores = Engine.cores()
    assert 1 <= cores.n_threads <= cores.n_cores <= cores.n_cpus <= cores.n_online
    assert 0 <= cores.n_slow < cores.n_cores
    assert cores.quota is None or cores.n_threads < cores.quota + 1
    engine = Engine.load(n_ctx=64)
    assert engine.description()["n_threads"] == cores.n_threads
    engine.close()


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="Linux tells what CPUs may be used"
)
def test_a_process_with_one_cpu_has_one_thread() -> None:
    code = """
import os, pybatcher
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
cores = pybatcher.Engine.cores()
print(cores.n_threads, cores.n_cpus, cores.n_online)
"""
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert told == ["1", "1", str(Engine.cores().n_online)]
