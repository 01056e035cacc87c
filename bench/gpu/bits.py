"""Compare the bits of kernels on a GPU with the bits on the emulator.

Both come from bench/native/kernel_bits, which prints one JSON object per line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.gpu.outcome import Outcome

__all__ = ["Bits", "compare", "mma_model", "read_bits"]

MODELS = {8: "ampere", 9: "hopper"}
"""The emulator's name for the addition order of tensor cores, by major compute capability."""


@dataclass(frozen=True, slots=True)
class Bits:
    """The output of kernel_bits on one device.

    hashes: the hash of each case that was run. groups: cases in one group promise the same bits.
        with_mma: cases whose bits depend on the addition order of tensor cores. left_out: the
        reason why a case was not run. is_complete: the program reached its end.
    """

    device: Mapping[str, Any]
    hashes: Mapping[str, str]
    groups: Mapping[str, str]
    with_mma: frozenset[str]
    left_out: Mapping[str, str]
    errors: tuple[str, ...]
    not_launched: tuple[str, ...]
    is_complete: bool


def mma_model(capability: Iterable[int]) -> str | None:
    """Return the emulator's model of a compute capability's mma. None: there is no model."""
    return MODELS.get(next(iter(capability), 0))


def read_bits(lines: Iterable[Mapping[str, Any]]) -> Bits:
    """Read the output lines. A second line for the same case is an error."""
    device: Mapping[str, Any] = {}
    hashes: dict[str, str] = {}
    groups: dict[str, str] = {}
    left_out: dict[str, str] = {}
    with_mma, errors, not_launched = set(), [], []
    n_promised = -1
    for line in lines:
        name = line.get("case")
        if "device" in line:
            device = line
        elif name is None:
            errors += [line["error"]] if "error" in line else []
            n_promised = line.get("cases", n_promised)
            not_launched += line.get("not_launched", [])
        elif name in groups:
            errors.append(f"{name}: there twice")
        else:
            groups[name] = line["group"]
            if line["mma"]:
                with_mma.add(name)
            if "hash" in line:
                hashes[name] = line["hash"]
            elif "not_run" in line:
                left_out[name] = line["not_run"]
            else:
                errors.append(f"{name}: {line.get('error', 'no bits')}")
    return Bits(
        device, hashes, groups, frozenset(with_mma), left_out, tuple(errors), tuple(not_launched),
        n_promised == len(hashes),
    )  # fmt: skip


def compare(gpu: Bits, emulator: Bits, *, has_model: bool) -> Outcome:
    """Return the differences.

    Every case is compared with the emulator's, and with the other cases of its group on the GPU.
    has_model: the emulator adds in the same order as the GPU's tensor cores. If it does not, cases
    with mma are compared within their groups only.
    """
    failures = [f"GPU: {error}" for error in gpu.errors]
    failures += [f"emulator: {error}" for error in emulator.errors]
    failures += [
        f"{who}: the program ended before its last case"
        for who, bits in (("GPU", gpu), ("emulator", emulator))
        if not bits.is_complete
    ]
    failures += [f"no case launches the kernel {name}" for name in emulator.not_launched]
    left_out = dict(emulator.left_out) | dict(gpu.left_out)
    same = 0
    for name, expected in emulator.hashes.items():
        found = gpu.hashes.get(name)
        if name in left_out or (name in emulator.with_mma and not has_model and found is not None):
            continue
        if found is None:
            failures.append(f"{name}: not run on the GPU")
        elif found != expected:
            failures.append(f"{name}: {found} on the GPU, {expected} on the emulator")
        else:
            same += 1
    failures += [
        f"{name}: not run on the emulator"
        for name in gpu.hashes
        if name not in emulator.hashes and name not in left_out
    ]
    groups: dict[str, dict[str, str]] = {}
    for name, found in gpu.hashes.items():
        groups.setdefault(gpu.groups[name], {})[name] = found
    compared = {name: cases for name, cases in groups.items() if len(cases) > 1}
    for cases in compared.values():
        first = next(iter(cases))
        failures += [
            f"{name}: {found}, but {cases[first]} of {first}"
            for name, found in cases.items()
            if found != cases[first]
        ]
    figures = {
        "cases": len(gpu.hashes),
        "same_as_emulator": same,
        "groups": len(compared),
        "mma_model": emulator.device.get("mma", "") if has_model else "none for this architecture",
    }
    return Outcome(same + len(compared), tuple(failures), left_out, figures)
