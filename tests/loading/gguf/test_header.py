"""Headers written by the `gguf` package are read; bad ones raise only ModelFormatError."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import array, pair, raw_gguf, tensor, text

from pybatcher.errors import ModelFormatError
from pybatcher.loading.gguf.header import GgufHeader, read_header

FOUR = struct.pack("<4f", 1, 2, 3, 4)
U32, TEXT, ARRAY = 4, 8, 9


def read(data: bytes) -> GgufHeader:
    return read_header(np.frombuffer(data, np.uint8), Path("model.gguf"))


def test_every_type_of_value(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {
        "u8": 200,
        "i8": -100,
        "u16": 60_000,
        "i16": -30_000,
        "u32": 4_000_000_000,
        "i32": -2_000_000_000,
        "u64": 2**63 + 1,
        "i64": -(2**62),
    }
    names = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
    for (key, value), name in zip(numbers.items(), names, strict=True):
        getattr(writer, f"add_{name}")(key, value)
    writer.add_float32("f32", 0.25)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "naïve 日本\0")
    writer.add_array("texts", ["a", "", "é"])
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("floats", [0.5, 2.0])
    writer.add_array("truths", [True, False])
    writer.add_tensor("a", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("b", np.zeros((5, 32 // 32 * 34), np.uint8), raw_dtype=8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read(path.read_bytes())
    plain: dict[str, Any] = {
        **numbers,
        "general.architecture": "llama",
        "f32": 0.25,
        "f64": 0.1,
        "yes": True,
        "no": False,
        "text": "naïve 日本\0",
        "texts": ["a", "", "é"],
    }
    arrays = {"integers": [1, -2, 3], "floats": [0.5, 2.0], "truths": [True, False]}
    for key, values in arrays.items():
        assert header.metadata.pop(key).tolist() == values
    assert header.metadata == plain
    assert [type(header.metadata[key]) for key in ("u8", "yes", "f32")] == [int, bool, float]
    a, b = header.tensors
    assert (a.name, a.type.name, a.shape, a.end - a.begin) == ("a", "F32", (2, 3), 24)
    assert (b.name, b.type.name, b.shape, b.end - b.begin) == ("b", "Q8_0", (5, 32), 170)
    assert a.begin % 32 == b.begin % 32 == 0


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 8, 64])
def test_alignment(version: int, alignment: int) -> None:
    keys = [pair("general.alignment", U32, struct.pack("<I", alignment))]
    tensors = [tensor("a", [1]), tensor("b", [4], offset=max(4, alignment))]
    data = FOUR[:4] + bytes(max(4, alignment) - 4) + FOUR
    raw = raw_gguf(keys, tensors, data, version=version, alignment=alignment)
    header = read(raw)
    assert [raw[t.begin : t.end] for t in header.tensors] == [FOUR[:4], FOUR]


def keyed(*keys: bytes, **counts: int) -> bytes:
    return raw_gguf(list(keys), [], **counts)


def with_tensors(*tensors: bytes, data: bytes = FOUR, **counts: int) -> bytes:
    return raw_gguf([], list(tensors), data, **counts)


A = tensor("a", [4])
HOSTILE = {
    "an empty file": (b"", "the magic needs 4 bytes; the file ends after 0"),
    "another file": (b"PK\3\4" + bytes(100), "does not begin with 'GGUF'"),
    "version 1": (keyed(version=1), "GGUF version 1; expected little-endian 2 or 3"),
    "version 4": (keyed(version=4), "GGUF version 4"),
    "big-endian": (keyed(version=3 << 24), "which is big-endian"),
    "2**64 - 1 keys": (keyed(n_keys=2**64 - 1), "number of keys is 18446744073709551615; expected"),
    "2**63 tensors": (keyed(n_tensors=2**63), "number of tensors is 9223372036854775808; expected"),
    "more keys than there are": (keyed(n_keys=60_000), "key '' needs 4 bytes; the file ends"),
    "more tensors than there are": (with_tensors(A, n_tensors=3, data=b""), "name of tensor 1"),
    "a long key": (
        keyed(pair("k" * 2000, 0, b"\1")),
        "key 0: its length is 2000; expected at most",
    ),
    "a key twice": (keyed(pair("k", 0, b"\1"), pair("k", 0, b"\1")), "key 'k' appears twice"),
    "a key that is not UTF-8": (keyed(pair(b"\xff\xfe", 0, b"\1")), "key 0 is not UTF-8"),
    "type 13": (keyed(pair("k", 13, bytes(64))), "key 'k' has type 13; expected 0 to 12"),
    "a truth value of 2": (keyed(pair("k", 7, b"\2")), "key 'k' is a truth value of 2"),
    "truth values of 3": (keyed(pair("k", ARRAY, array(7, 2, b"\0\3"))), "a truth value of 3"),
    "a text of 2**40": (
        keyed(pair("k", TEXT, struct.pack("<Q", 2**40))),
        "length is 1099511627776",
    ),
    "a text past the end": (
        keyed(pair("k", TEXT, struct.pack("<Q", 500) + b"abc")),
        "key 'k' needs 500 bytes; the file ends after",
    ),
    "a text that is not UTF-8": (keyed(pair("k", TEXT, text(b"\x80"))), "key 'k' is not UTF-8"),
    "an array of 2**60": (keyed(pair("k", ARRAY, array(U32, 2**60, b""))), "key 'k' needs"),
    "2**63 texts": (keyed(pair("k", ARRAY, array(TEXT, 2**63, b""))), "its length is 922337203"),
    "4 million texts": (keyed(pair("k", ARRAY, array(TEXT, 2**22, b""))), "needs 33554432 bytes"),
    "a text of many": (
        keyed(pair("k", ARRAY, array(TEXT, 2, text("a") + struct.pack("<Q", 999)))),
        "key 'k', element 1 needs 999 bytes",
    ),
    "an array of arrays": (keyed(pair("k", ARRAY, array(ARRAY, 1, b""))), "an array of type 9"),
    "an array of nothing known": (keyed(pair("k", ARRAY, array(99, 1, b""))), "array of type 99"),
    "an alignment of 3": (
        keyed(pair("general.alignment", U32, struct.pack("<I", 3))),
        "general.alignment is 3; expected a power of two",
    ),
    "an alignment of 0": (
        keyed(pair("general.alignment", U32, bytes(4))),
        "general.alignment is 0; expected a power of two",
    ),
    "an alignment of 2**31": (
        keyed(pair("general.alignment", U32, struct.pack("<I", 2**31))),
        "general.alignment is 2147483648",
    ),
    "a text for the alignment": (
        keyed(pair("general.alignment", TEXT, text("x"))),
        "general.alignment is 'x'",
    ),
    "a tensor twice": (with_tensors(A, tensor("a", [4], offset=32)), "tensor 'a' appears twice"),
    "no dimensions": (with_tensors(tensor("a", [])), "'a' has 0 dimensions; expected 1 to 4"),
    "five dimensions": (with_tensors(tensor("a", [1] * 5)), "'a' has 5 dimensions"),
    "a size of 0": (with_tensors(tensor("a", [4, 0])), r"has shape \[0, 4\]; expected 1 to"),
    "a size of 2**63": (
        with_tensors(tensor("a", [2**63, 2])),
        r"has shape \[2, 9223372036854775808",
    ),
    "sizes that overflow": (with_tensors(tensor("a", [2**32, 2**32])), "has shape"),
    "type 4, which was removed": (
        with_tensors(tensor("a", [32], 4)),
        "has type 4; expected one of",
    ),
    "type 2**32 - 1": (with_tensors(tensor("a", [32], 2**32 - 1)), "has type 4294967295"),
    "half a block": (with_tensors(tensor("a", [33], 8)), "Q8_0 with rows of 33; expected a multi"),
    "an odd offset": (with_tensors(tensor("a", [4], offset=7)), "'a' begins at 7; expected 0"),
    "an overlap": (with_tensors(A, tensor("b", [4], offset=8)), "'b' begins at 8; expected 32"),
    "a gap": (with_tensors(A, tensor("b", [4], offset=64)), "'b' begins at 64; expected 32"),
    "an offset of 2**64 - 1": (with_tensors(tensor("a", [4], offset=2**64 - 1)), "expected 0"),
    "data cut": (with_tensors(A, data=FOUR[:15]), "goes on to byte 80 of a file of 79"),
    "no data": (with_tensors(tensor("a", [2**38]), data=b""), "expected a file that is not cut"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(name: str) -> None:
    data, message = HOSTILE[name]
    with pytest.raises(ModelFormatError, match=message) as caught:
        read(data)
    assert str(caught.value).startswith("model.gguf: ")
    assert len(str(caught.value)) < 2000


def test_a_giant_header_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(keyed(pair("k", ARRAY, array(0, 2**28, b""))))
        file.truncate(2**29)
    with pytest.raises(ModelFormatError, match="the header is longer than 268435456 bytes"):
        read_header(np.memmap(path, np.uint8, "r"), path)


def test_truncation_at_any_byte() -> None:
    keys = [
        pair("general.architecture", TEXT, text("llama")),
        pair("k", ARRAY, array(TEXT, 2, text("a") + text("bc"))),
        pair("n", ARRAY, array(U32, 3, bytes(12))),
    ]
    whole = raw_gguf(keys, [A, tensor("b", [32, 2], 8, 32)], FOUR + bytes(16 + 68))
    read(whole)
    for size in range(len(whole)):
        with pytest.raises(ModelFormatError):
            read(whole[:size])


def test_random_damage() -> None:
    keys = [
        pair("general.alignment", U32, struct.pack("<I", 32)),
        pair("k", ARRAY, array(TEXT, 2, text("a") + text("bc"))),
        pair("t", 7, b"\1"),
    ]
    whole = raw_gguf(keys, [A, tensor("b", [32, 2], 8, 32)], FOUR + bytes(16 + 68))
    rng = random.Random(3)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(whole)
        for place in rng.choices(range(len(whole) - 100), k=rng.randint(1, 4)):
            damaged[place] = rng.randrange(256)
        try:
            header = read(bytes(damaged))
        except ModelFormatError:
            refused += 1
        else:
            assert all(0 < t.begin < t.end <= len(whole) for t in header.tensors)
    assert refused > 1500
