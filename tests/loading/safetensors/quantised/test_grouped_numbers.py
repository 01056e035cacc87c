"""Whole numbers in groups: what they become, and when nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from block_values import block_values
from numpy.typing import NDArray

from pybatcher.loading.safetensors.quantised.grouped_numbers import GroupedNumbers, grouped_numbers

ROWS = 5


def matrix(
    bits: int = 4,
    n_in: int = 128,
    group: int = 64,
    *,
    zero: int | None = None,
    scale: float = 2.0**-6,
    ordered: bool = False,
    sizes: tuple[int, ...] = (),
) -> GroupedNumbers:
    """zero: of all groups; None: any. sizes: of the groups, where not all are alike."""
    rng = np.random.default_rng(3)
    q = rng.integers(0, 2**bits, (ROWS, n_in)).astype(np.uint8)
    group_of = np.repeat(np.arange(len(sizes)), sizes) if sizes else np.arange(n_in) // group
    group_of = rng.permutation(group_of) if ordered else group_of
    n_groups = int(group_of.max()) + 1
    zeros = rng.integers(0, 2**bits + 1, (ROWS, n_groups)).astype(np.int16)
    zeros = zeros if zero is None else np.full_like(zeros, zero)
    parts = rng.uniform(0.5, 1, (ROWS, n_groups)).astype(np.float16 if scale < 0.1 else np.float32)
    scales = parts.astype(np.float32) * np.float32(scale)
    return grouped_numbers(
        "a format",
        bits,
        1000,
        (ROWS, n_in),
        group_of,
        lambda rows: q[rows],
        lambda rows: scales[rows],
        lambda rows: zeros[rows],
        False,
    )


def values(stored: GroupedNumbers) -> NDArray[np.float32]:
    """Return the values one by one."""
    rows = np.arange(ROWS)
    q, s, z = stored.numbers(rows), stored.scales(rows), stored.zeros(rows)
    return np.array(
        [
            [
                s[r, g] * np.float32(int(q[r, k]) - int(z[r, g]))
                for k, g in enumerate(stored.group_of)
            ]
            for r in range(ROWS)
        ],
        np.float32,
    )


@pytest.mark.parametrize(
    ("stored", "own", "held"),
    [
        (matrix(zero=8), "int4", {"int4", "int4_zp", "int8", "f32"}),
        (matrix(), "int4_zp", {"int4_zp", "int8", "f32"}),
        (matrix(8, zero=128), "int8", {"int8", "f32"}),
        (matrix(8), "int8", {"f32"}),
        (matrix(ordered=True, zero=8), "int4", {"int4", "int4_zp", "int8", "f32"}),
        (matrix(ordered=True), "int4_zp", {"int4_zp", "int8", "f32"}),
        (matrix(8, ordered=True, zero=128), "int8", {"int8", "f32"}),
        (matrix(8, ordered=True), "int8", {"f32"}),
        (matrix(ordered=True, sizes=(32, 96), zero=8), "int4", {"int4", "int4_zp", "int8", "f32"}),
        (matrix(ordered=True, sizes=(40, 88), zero=8), "int8", {"f32"}),
        (matrix(ordered=True, zero=8).unordered(), "int8", {"f32"}),
        (matrix(group=16, zero=8), "int8", {"f32"}),
        (matrix(n_in=120, group=40, zero=8), "bf16", {"f32"}),
        (matrix(scale=0.3, zero=8), "int4", {"f32"}),  # scales that are no f16
        (matrix(scale=1e6, zero=8), "int4", {"f32"}),
    ],
)
def test_the_dtype_that_suits_a_matrix(stored: GroupedNumbers, own: str, held: set[str]) -> None:
    assert (stored.own_dtype, stored.shape) == (own, (ROWS, len(stored.group_of)))
    dtypes = ("f32", "bf16", "int8", "int4", "int4_zp")
    assert {dtype for dtype in dtypes if stored.holds(dtype)} == held


@pytest.mark.parametrize("dtype", ["int4", "int4_zp", "int8"])
def test_blocks_hold_the_numbers(dtype: str) -> None:
    stored = matrix(zero=8 if dtype == "int4" else None)
    assert stored.takes(dtype) == dtype
    np.testing.assert_array_equal(block_values(stored.make(dtype), dtype), values(stored))


def test_eight_bits_are_taken_as_they_are() -> None:
    stored = matrix(8, zero=128)
    np.testing.assert_array_equal(block_values(stored.make("int8"), "int8"), values(stored))


@pytest.mark.parametrize("stored", [matrix(ordered=True), matrix(8), matrix(n_in=120, group=40)])
def test_numbers_are_given_plain(stored: GroupedNumbers) -> None:
    exact = values(stored)
    np.testing.assert_array_equal(stored.make("f32"), exact)
    rounded = torch.from_numpy(exact).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(stored.make("bf16"), rounded)


@pytest.mark.parametrize("dtype", ["int4", "int4_zp", "int8"])
@pytest.mark.parametrize("sizes", [(), (32, 32, 64)])
def test_columns_of_act_order_are_sorted_by_group(dtype: str, sizes: tuple[int, ...]) -> None:
    stored = matrix(ordered=True, sizes=sizes, zero=8 if dtype == "int4" else None)
    order = stored.order(dtype)
    assert order is not None
    np.testing.assert_array_equal(np.sort(order), np.arange(128))
    assert (np.diff(stored.group_of[order]) >= 0).all()
    made = block_values(stored.make(dtype), dtype)
    np.testing.assert_array_equal(made, values(stored)[:, order])
    some = stored.of_rows(np.array([4, 1]))
    np.testing.assert_array_equal(some.make(dtype), stored.make(dtype)[[4, 1]])
    np.testing.assert_array_equal(some.order(dtype), order)


def test_eight_bits_of_act_order_are_sorted_too() -> None:
    stored = matrix(8, zero=128, ordered=True)
    made = block_values(stored.make("int8"), "int8")
    np.testing.assert_array_equal(made, values(stored)[:, stored.order("int8")])


@pytest.mark.parametrize(
    ("stored", "dtype"),
    [
        (matrix(ordered=True), "f32"),
        (matrix(ordered=True), "bf16"),
        (matrix(ordered=True, scale=0.3), "int8"),  # rounded
        (matrix(ordered=True, sizes=(40, 88)), "int8"),
        (matrix(ordered=True).unordered(), "int8"),
        (matrix(), "int4_zp"),
        (matrix(sizes=(32, 96)), "int4_zp"),
    ],
)
def test_other_columns_lie_as_inputs_do(stored: GroupedNumbers, dtype: str) -> None:
    assert stored.order(dtype) is None


def test_groups_of_neighbours_need_no_order_whatever_their_numbers() -> None:
    stored = matrix()
    backwards = grouped_numbers(
        "a format",
        4,
        1000,
        (ROWS, 128),
        stored.group_of[::-1],
        stored.numbers,
        stored.scales,
        stored.zeros,
        True,
    )
    assert backwards.order("int4_zp") is None
    made = block_values(backwards.make("int4_zp"), "int4_zp")
    np.testing.assert_array_equal(made, values(backwards))


@pytest.mark.parametrize("stored", [matrix(ordered=True).unordered(), matrix(8), matrix(group=16)])
def test_what_int8_cannot_hold_is_rounded_to_it(stored: GroupedNumbers) -> None:
    made, exact = block_values(stored.make("int8"), "int8"), values(stored)
    steps = np.abs(exact).reshape(ROWS, -1, 32).max(axis=2).repeat(32, axis=1) / 127
    assert (np.abs(made - exact) <= steps * 0.51).all()
    assert (made != exact).any()


def test_rows_that_are_no_whole_blocks_are_left_to_the_engine() -> None:
    stored = matrix(n_in=120, group=40)
    assert [stored.takes(dtype) for dtype in ("bf16", "int8", "int4")] == ["bf16", "f32", "f32"]
    assert matrix().takes("int4") == "f32"  # zero points


def test_outputs_are_taken_in_any_order() -> None:
    stored = matrix()
    rows = np.array([3, 0])
    part = stored.of_rows(rows)
    assert (part.shape, part.n_bytes, part.own_dtype) == ((2, 128), 400, "int4_zp")
    np.testing.assert_array_equal(part.make("f32"), values(stored)[rows])
    np.testing.assert_array_equal(part.of_rows(np.array([1])).make("f32"), values(stored)[:1])


def test_scales_that_are_no_numbers_stay_in_the_blocks() -> None:
    """The engine refuses them by name."""
    stored = matrix(scale=float("inf"), zero=9)
    with np.errstate(all="ignore"):
        assert not np.isfinite(block_values(stored.make("int4_zp"), "int4_zp")).any()
    assert not np.isfinite(stored.make("f32")).any()
