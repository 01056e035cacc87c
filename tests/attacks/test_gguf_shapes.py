"""GGUF files whose matrices have odd shapes, types and places, opened as users open them.

A file of Q5_0 or IQ4_NL matrices in which the entry of one was changed ends in a typed error that
names the file: the model's configuration says which shapes are right, and the data follow without
a gap.
"""

from __future__ import annotations

import math
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf_files import tensor, text, write_gguf

from pybatcher import BlockingBatcher
from pybatcher.errors import ModelFormatError
from pybatcher.testing.checkpoints import make_checkpoint

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 384,
}
DOWN, QUERY, TABLE = "blk.0.ffn_down.weight", "blk.0.attn_q.weight", "token_embd.weight"
SHAPES = {DOWN: [96, 64], QUERY: [64, 64], TABLE: [64, 384]}  # innermost first
ALIGNMENT = 32
HUGE = (2**31, 2**32, 2**62, 2**63, 2**64 - 1)
KINDS = (Kind.Q5_0, Kind.IQ4_NL)
AS_LARGE = {Kind.Q5_0: (Kind.Q5_0,), Kind.IQ4_NL: (Kind.IQ4_NL, Kind.Q4_0)}
"""Types in which the same bytes are a matrix of the same shape: other numbers, but no damage."""


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def kind_of_file(request: pytest.FixtureRequest) -> Kind:
    """The type of all matrices of the file."""
    return Kind(request.param)


@pytest.fixture(scope="module")
def whole(kind_of_file: Kind, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = tmp_path_factory.mktemp("whole")
    directory = make_checkpoint(root / "hf", "llama", **SHAPE)
    path = write_gguf(directory, root / "model.gguf", lambda _: kind_of_file, pre="llama-bpe")
    if kind_of_file == Kind.IQ4_NL:  # the package does not quantise to it
        path.write_bytes(with_scales(path.read_bytes(), kind_of_file, np.float16(2e-4)))
    return path.read_bytes()


def with_scales(raw: bytes, kind: Kind, scale: np.float16) -> bytes:
    """Give all blocks of random bytes a scale with which a model's numbers stay small."""
    out = bytearray(raw)
    n_elements, n_bytes = GGML_QUANT_SIZES[kind]
    for name in names(raw):
        found_kind, offset = struct.unpack_from("<IQ", raw, entry(raw, name)[1] - 12)
        if found_kind != kind:
            continue
        header_end = end_of_header(raw)
        first = header_end + -header_end % ALIGNMENT + offset
        n_blocks = math.prod(shape_of(raw, name)) // n_elements
        for begin in range(first, first + n_blocks * n_bytes, n_bytes):
            out[begin : begin + 2] = scale.tobytes()
    return bytes(out)


def shape_of(raw: bytes, name: str) -> tuple[int, ...]:
    begin, end = entry(raw, name)
    at = begin + len(text(name)) + 4
    return struct.unpack_from(f"<{(end - 12 - at) // 8}Q", raw, at)


def entry(raw: bytes, name: str) -> tuple[int, int]:
    """Return where the entry of a tensor begins and ends."""
    begin = raw.index(text(name))
    at = begin + len(text(name))
    n_dimensions = struct.unpack_from("<I", raw, at)[0]
    return begin, at + 4 + 8 * n_dimensions + 12


def end_of_header(raw: bytes) -> int:
    return max(entry(raw, name)[1] for name in names(raw))


def names(raw: bytes) -> list[str]:
    parts = [f"blk.0.ffn_{part}" for part in ("down", "up", "gate", "norm")]
    parts += [f"blk.0.attn_{part}" for part in ("q", "k", "v", "output", "norm")]
    stems = [*parts, "token_embd", "output", "output_norm"]
    return [f"{stem}.weight" for stem in stems if text(f"{stem}.weight") in raw]


def changed(
    raw: bytes, name: str, shape: list[int], kind: int | None = None, offset: int | None = None
) -> bytes:
    """Return the file with another entry for one tensor. The data stay as they are."""
    begin, end = entry(raw, name)
    own_kind, own_offset = struct.unpack_from("<IQ", raw, end - 12)
    kind = own_kind if kind is None else kind
    made = tensor(name, shape, kind, own_offset if offset is None else offset)
    header_end = end_of_header(raw)
    data = raw[header_end + -header_end % ALIGNMENT :]
    header = raw[:begin] + made + raw[end:header_end]
    return header + bytes(-len(header) % ALIGNMENT) + data


def answer(path: Path) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that types without kernels are rounded
        with BlockingBatcher(path, n_ctx=64, n_parallel=1, n_threads=1) as batcher:
            return list(batcher.generate([1, 2, 3], max_tokens=4, temperature=0).token_ids)


def refused(raw: bytes, path: Path) -> str:
    path.write_bytes(raw)
    with pytest.raises(ModelFormatError) as caught:
        answer(path)
    assert path.name in str(caught.value)
    assert len(str(caught.value)) < 2000
    return str(caught.value)


def test_the_file_itself_answers(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    expected = answer(path)
    assert len(expected) == 4
    for name, shape in SHAPES.items():
        path.write_bytes(changed(whole, name, shape))
        assert answer(path) == expected
    path.write_bytes(changed(whole, DOWN, [*SHAPES[DOWN], 1]))
    assert "found shape [1, 64, 96]" in refused(path.read_bytes(), path)


@pytest.mark.parametrize("name", SHAPES)
def test_odd_shapes(name: str, whole: bytes, tmp_path: Path) -> None:
    columns, rows = SHAPES[name]
    size = columns * rows
    shapes = [
        *([columns + step, rows] for step in (-1, 1, 16, -16, 32, -32)),
        *([columns, rows + step] for step in (-1, 1, 32)),
        *([columns // 2, rows * 2], [columns * 2, rows // 2]),  # as many numbers
        *([rows * 32, columns // 32], [size, 1], [1, size], [32, size // 32], [size]),
        *([31, rows], [33, rows], [1, 1], [1, rows], [columns, 1], [32, 1], [1]),
        *([0, rows], [columns, 0], [0, 0], [0], []),
        *([columns, rows, 2], [1, columns, rows], [columns, 1, rows], [columns, rows, 1, 1, 1]),
        *([huge, rows] for huge in HUGE),
        *([columns, huge] for huge in HUGE),
        *([huge, huge] for huge in HUGE),
        *([32, 2**59], [2**32, 2**32], [2**32 + columns, rows]),
    ]
    if rows != columns:
        shapes.append([rows, columns])
    for shape in shapes:
        refused(changed(whole, name, shape), tmp_path / "model.gguf")


@pytest.mark.parametrize("name", SHAPES)
def test_odd_places(name: str, whole: bytes, tmp_path: Path) -> None:
    end = entry(whole, name)[1]
    own = struct.unpack_from("<Q", whole, end - 8)[0]
    places = [*(own + step for step in (1, 2, 18, 22, 31, 32, 2**20)), *HUGE, 2**64 - 32]
    places += [own - step for step in (1, 32) if own >= step]
    places += [0] * (own != 0)
    for place in places:
        refused(changed(whole, name, SHAPES[name], offset=place), tmp_path / "model.gguf")


@pytest.mark.parametrize("kind", [*range(45), 255, 2**31, 2**32 - 1])
def test_odd_types(kind: int, kind_of_file: Kind, whole: bytes, tmp_path: Path) -> None:
    """The same bytes as another type are of another size, or of none."""
    if kind in AS_LARGE[kind_of_file]:
        path = tmp_path / "model.gguf"
        path.write_bytes(changed(whole, DOWN, SHAPES[DOWN], kind=kind))
        assert len(answer(path)) == 4
        return
    refused(changed(whole, DOWN, SHAPES[DOWN], kind=kind), tmp_path / "model.gguf")


def test_a_tensor_that_is_there_twice_or_cut(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    begin, end = entry(whole, DOWN)
    twice = whole[:begin] + text(QUERY) + whole[begin + len(text(DOWN)) : end] + whole[end:]
    refused(twice, path)
    for size in (
        len(whole) - 1,
        len(whole) - 18,
        len(whole) - 22,
        end_of_header(whole) + 40,
        end - 3,
    ):
        refused(whole[:size], path)


def test_scales_that_are_no_numbers(kind_of_file: Kind, whole: bytes, tmp_path: Path) -> None:
    """Each block begins with an f16: infinity and NaN are refused by the tensor's name."""
    header_end = end_of_header(whole)
    first = header_end + -header_end % ALIGNMENT
    own = struct.unpack_from("<Q", whole, entry(whole, DOWN)[1] - 8)[0]
    block = GGML_QUANT_SIZES[kind_of_file][1] * 5
    for bits in (0x7C00, 0xFC00, 0x7E00, 0x7C01):
        raw = bytearray(whole)
        struct.pack_into("<H", raw, first + own + block, bits)
        assert "down" in refused(bytes(raw), tmp_path / "model.gguf")
