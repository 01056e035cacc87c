from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf_files import pair, raw_gguf, tensor, text

from pybatcher.errors import ModelFormatError
from pybatcher.loading.gguf.file import is_gguf, map_gguf

FOUR = struct.pack("<4f", 1, 2, 3, 4)


def written(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    blocks = bytes(range(68))
    tensors = [tensor("a", [2, 2]), tensor("b", [32, 2], 8, 32), tensor("c", [1], 26, 128)]
    raw = raw_gguf([pair("k", 8, text("v"))], tensors, FOUR + bytes(16) + blocks + bytes(28) + FOUR)
    path = written(tmp_path / "model.gguf", raw)
    file = map_gguf(path)
    a, b, c = (file.tensors[name] for name in "abc")
    assert (a.dtype, a.shape, a.array.tolist()) == ("f32", (2, 2), [[1, 2], [3, 4]])
    assert (b.dtype, b.shape, b.array.tobytes()) == ("int8", (2, 32), blocks)
    assert (c.dtype, c.shape) == ("I32", (1,))
    assert a.source == f"{path}: tensor 'a'"
    for loaded in (a, b, c):
        assert loaded.mapped
        assert not loaded.array.flags.writeable
        assert not loaded.array.flags.owndata
    assert file.metadata.get("k") == "v"
    assert file.metadata.source == str(path)


def test_an_odd_address_is_the_only_reason_to_copy(tmp_path: Path) -> None:
    keys = [pair("general.alignment", 4, struct.pack("<I", 1)), pair("pad", 8, text("x"))]
    tensors = [tensor("bytes", [34 // 34 * 32], 8), tensor("a", [4], 0, 34)]
    raw = raw_gguf(keys, tensors, bytes(34) + FOUR, alignment=1)
    shift = (raw.index(FOUR)) % 4
    if shift == 0:
        keys[1] = pair("pad", 8, text("xy"))
        raw = raw_gguf(keys, tensors, bytes(34) + FOUR, alignment=1)
    file = map_gguf(written(tmp_path / "model.gguf", raw))
    assert file.tensors["bytes"].mapped
    assert not file.tensors["a"].mapped
    assert file.tensors["a"].array.flags.aligned
    np.testing.assert_array_equal(file.tensors["a"].array, [1, 2, 3, 4])


def test_files_recognised_as_gguf(tmp_path: Path) -> None:
    assert is_gguf(written(tmp_path / "model.gguf", b""))
    assert is_gguf(written(tmp_path / "model", b"GGUF and more"))
    assert not is_gguf(written(tmp_path / "model.bin", b"PK"))
    assert not is_gguf(tmp_path)
    assert not is_gguf(tmp_path / "lost.gguf")
    for name in ("\0", "x" * 5000):
        assert not is_gguf(Path(name))


@pytest.mark.parametrize("raw", [b"", b"GGUF", b"PK\3\4" * 10])
def test_files_that_are_not_gguf(raw: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"model\.gguf: "):
        map_gguf(written(tmp_path / "model.gguf", raw))
