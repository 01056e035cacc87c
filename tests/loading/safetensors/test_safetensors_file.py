"""The oracle for good files is the safetensors library; bad ones raise only ModelFormatError."""

from __future__ import annotations

import json
import random
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from pybatcher.errors import ModelFormatError
from pybatcher.loading.safetensors.safetensors_file import _BITS, map_tensors


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def test_values_and_types_are_those_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "f32": torch.randn(3, 5, generator=generator),
        "f16": torch.randn(7, generator=generator).half(),
        "bf16": torch.randn(2, 3, 4, generator=generator).bfloat16(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "bytes": torch.arange(3, dtype=torch.uint8),
        "numbers": torch.arange(5),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    mapped = map_tensors(path)
    assert mapped.keys() == tensors.keys()
    for name, tensor in load_file(path).items():
        if not tensor.is_floating_point():
            assert mapped[name].dtype in ("U8", "I64")
            continue
        bits = tensor.view(torch.uint16) if name == "bf16" else tensor
        np.testing.assert_array_equal(mapped[name].array, bits.numpy())
        assert mapped[name].dtype == ("f32" if name in ("scalar", "empty") else name)
        assert mapped[name].source == f"{path}: tensor '{name}'"


def test_nothing_is_copied_from_an_odd_address(tmp_path: Path) -> None:
    header = {"byte": entry([1], 0, 1, "U8"), "odd": entry([2], 1, 9)}
    data = b"\7" + struct.pack("<2f", 1.5, -2.0)
    odd = map_tensors(write(tmp_path / "odd.safetensors", header, data))["odd"].array
    np.testing.assert_array_equal(odd, [1.5, -2.0])
    assert not odd.flags.owndata


def is_valid_for_the_library(path: Path) -> bool:
    try:
        with safe_open(path, framework="numpy"):
            return True
    except (SafetensorError, OSError, ValueError):
        return False


def refusal(path: Path) -> str | None:
    """Return why the file is refused; None if all its tensors can be read."""
    try:
        for tensor in map_tensors(path).values():
            tensor.array.sum()
    except ModelFormatError as error:
        return str(error)
    return None


@pytest.mark.parametrize("dtype", _BITS)
def test_tensors_of_other_types_are_told_apart(dtype: str, tmp_path: Path) -> None:
    n_bytes = 2 * _BITS[dtype]
    header = {
        "weight": entry([1], n_bytes, n_bytes + 4),
        "other": entry([16], 0, n_bytes, dtype),
    }
    data = bytes(n_bytes) + struct.pack("<f", 3.25)
    path = write(tmp_path / "model.safetensors", header, data)
    mapped = map_tensors(path)
    assert is_valid_for_the_library(path)
    assert mapped["weight"].array.tolist() == [3.25]
    own_name = {"F32": "f32", "F16": "f16", "BF16": "bf16"}.get(dtype, dtype)
    assert (mapped["other"].dtype, mapped["other"].array.nbytes) == (own_name, n_bytes)


EIGHT = bytes(8)
ONE = entry([2], 0, 8)
HOSTILE: dict[str, tuple[Any, bytes, int | None]] = {
    "header of 2**63 bytes": ({}, b"", 2**63),
    "header of 2**64 - 1 bytes": ({}, b"", 2**64 - 1),
    "header longer than the file": ({"a": ONE}, EIGHT, 1000),
    "header cut": ({"a": ONE}, EIGHT, 10),
    "overlap": ({"a": ONE, "b": entry([2], 4, 12)}, bytes(12), None),
    "gap": ({"a": ONE, "b": entry([2], 12, 20)}, bytes(20), None),
    "same place": ({"a": ONE, "b": ONE}, EIGHT, None),
    "negative offset": ({"a": entry([2], -8, 0)}, EIGHT, None),
    "offsets reversed": ({"a": entry([2], 8, 0)}, EIGHT, None),
    "negative shape": ({"a": entry([-2], 0, 8)}, EIGHT, None),
    "fractional shape": ({"a": entry([2.0], 0, 8)}, EIGHT, None),
    "shape that overflows": ({"a": entry([2**62, 2**62], 0, 8)}, EIGHT, None),
    "shape past 64 bits": ({"a": entry([2**64], 0, 8)}, EIGHT, None),
    "nothing beside a huge side": ({"a": entry([0, 2**62, 2**62], 0, 0)}, b"", None),
    "too many dimensions": ({"a": entry([1] * 65, 0, 4)}, bytes(4), None),
    "too few bytes": ({"a": ONE}, bytes(7), None),
    "too many bytes": ({"a": ONE}, bytes(9), None),
    "too small a range": ({"a": entry([3], 0, 8)}, EIGHT, None),
    "not UTF-8": (b'{"\xff\xfe":1}', b"", None),
    "not an object": (b"[1]", b"", None),
    "not JSON": (b"{{}}", b"", None),
    "nested objects": (b'{"a":' * 100_000, b"", None),
    "nested lists": (b"[" * 1_000_000, b"", None),
    "a name twice": (b'{"a":%b,"a":%b}' % ((json.dumps(ONE).encode(),) * 2), EIGHT, None),
    "unknown type": ({"a": entry([2], 0, 8, "Q9")}, EIGHT, None),
    "no type": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, EIGHT, None),
    "a list for an object": ({"a": ["F32", [2], [0, 8]]}, EIGHT, None),
    "an object for a text": ({"a": {**ONE, "dtype": {"F32": None}}}, EIGHT, None),
    "null": ({"a": None}, b"", None),
    "NaN": (b'{"a": NaN}', b"", None),
    "true for a side": ({"a": entry([True, 2], 0, 8)}, EIGHT, None),
    "false for an offset": ({"a": {**ONE, "data_offsets": [False, 8]}}, EIGHT, None),
    "a fraction for an offset": ({"a": {**ONE, "data_offsets": [0.0, 8]}}, EIGHT, None),
    "three offsets": ({"a": {**ONE, "data_offsets": [0, 8, 8]}}, EIGHT, None),
    "an offset past 64 bits": ({"a": entry([2], 2**64, 2**64 + 8)}, EIGHT, None),
    "a byte and a half": ({"a": entry([3], 0, 1, "F4")}, b"\0", None),
    "data without a tensor": ({}, EIGHT, None),
    "data before the first tensor": ({"a": entry([2], 8, 16)}, bytes(16), None),
    "metadata that is a list": ({"__metadata__": [], "a": ONE}, EIGHT, None),
    "metadata that is no text": ({"__metadata__": {"format": 1}, "a": ONE}, EIGHT, None),
}

# The library takes what numpy cannot hold, and forms of JSON that no program writes.
STRICTER = {
    *("a name twice", "too many dimensions", "nothing beside a huge side"),
    *("a list for an object", "an object for a text"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(name: str, tmp_path: Path) -> None:
    header, data, length = HOSTILE[name]
    path = write(tmp_path / "model.safetensors", header, data, length)
    with pytest.raises(ModelFormatError, match=r"model\.safetensors: "):
        map_tensors(path)
    assert is_valid_for_the_library(path) == (name in STRICTER)


def test_what_is_odd_and_valid_is_mapped(tmp_path: Path) -> None:
    header = {
        "__metadata__": None,
        "second": {**entry([2], 8, 16), "note": "a field that no one knows"},
        "nothing": entry([3, 0], 8, 8),
        "first": entry([2], 0, 8),
        "nothing at the end": entry([0], 16, 16),
        "": entry([], 16, 20),
    }
    data = struct.pack("<5f", 1, 2, 3, 4, 5)
    path = write(tmp_path / "model.safetensors", header, data)
    mapped = map_tensors(path)
    assert is_valid_for_the_library(path)
    assert [mapped[name].array.tolist() for name in ("first", "second", "")] == [[1, 2], [3, 4], 5]
    assert mapped["nothing"].shape == (3, 0)


@pytest.mark.parametrize("data", [b"", b"\1", bytes(7), bytes(8), b"\2" + bytes(7) + b"{}x"])
def test_files_too_short_or_too_long(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFormatError):
        map_tensors(path)


def test_a_giant_header_is_not_even_parsed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 90_000_000))
        file.truncate(90_000_100)
    with pytest.raises(ModelFormatError, match="header's length is 90000000; expected at most 33"):
        map_tensors(path)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="no such file"):
        map_tensors(tmp_path)


def test_truncation_at_any_byte(originals: dict[str, Path], tmp_path: Path) -> None:
    whole = (originals["llama"] / "model.safetensors").read_bytes()
    path = tmp_path / "model.safetensors"
    for size in [*range(0, 64), *random.Random(1).choices(range(64, len(whole)), k=100)]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFormatError):
            map_tensors(path)


def test_random_damage_of_the_header(originals: dict[str, Path], tmp_path: Path) -> None:
    whole = (originals["llama"] / "model.safetensors").read_bytes()
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    path = tmp_path / "model.safetensors"
    rng = random.Random(2)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for place in rng.choices(range(end), k=rng.randint(1, 4)):
            damaged[place] = rng.randrange(256)
        path.write_bytes(damaged)
        why = refusal(path)
        refused += why is not None
        is_twice = why is not None and "appears twice" in why
        assert is_twice or is_valid_for_the_library(path) == (why is None), why
    assert 300 < refused <= 400


def test_numbers_of_the_header_that_are_changed(originals: dict[str, Path], tmp_path: Path) -> None:
    whole = (originals["llama"] / "model.safetensors").read_bytes()
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    numbers = list(re.finditer(rb"\d+", whole[8:end]))
    path = tmp_path / "model.safetensors"
    rng = random.Random(3)
    values = (b"0", b"1", b"64", b"4294967296", b"9223372036854775807", b"-1", b"1.0", b"null")
    for _ in range(150):
        at = rng.choice(numbers)
        header = whole[8 : 8 + at.start()] + rng.choice(values) + whole[8 + at.end() : end]
        write(path, header, whole[end:])
        assert is_valid_for_the_library(path) == (refusal(path) is None), header
