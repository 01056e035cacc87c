from __future__ import annotations

import pytest

from bench.convert.weights import n_weights
from bench.engine.kernels import n_lines, table
from bench.engine.limits import peak_for
from bench.engine.profile import split

PEAKS = {
    "fma256": 1.0,
    "fma512": 2.0,
    "vdpbf16ps": 3.0,
    "vpdpbusd": 4.0,
    "tdpbf16ps": 5.0,
    "vpdpbusd256": 6.0,
}


@pytest.mark.parametrize(
    ("target", "dtype", "name"),
    [
        ("avx2", "bf16", "fma256"),
        ("avx_vnni", "int4", "vpdpbusd256"),
        ("avx_vnni", "bf16", "fma256"),
        ("avx512", "bf16", "fma512"),
        ("avx512_vnni", "int8", "vpdpbusd"),
        ("avx512_vnni", "bf16", "fma512"),
        ("avx512_bf16", "bf16", "vdpbf16ps"),
        ("avx512_amx", "int4", "tdpbf16ps"),
        ("avx512_amx", "f32", "fma512"),
    ],
)
def test_what_bounds_a_product(target: str, dtype: str, name: str) -> None:
    assert peak_for(target, dtype, PEAKS) == (name, PEAKS[name])


def test_a_peak_that_was_not_measured_bounds_nothing() -> None:
    assert peak_for("avx512_amx", "bf16", {"fma256": 1.0}) == ("fma256", 1.0)


def test_weights_of_a_token() -> None:
    assert n_weights("llama-3.2-1b") == 973_078_528


def test_shares_of_a_step() -> None:
    shares = split({"total": 10.0, "products": 5.0, "head": 1.0, "attention": 3.0, "norm": 0.5})
    assert shares == pytest.approx({"products": 0.6, "attention": 0.3, "other": 0.1})


def test_the_table_of_products_weighs_them_by_their_time() -> None:
    assert n_lines("1,32,512", "bf16,int8") == 2 * (3 * 3 + 2)
    one = {"dtype": "int8", "rows": 1, "peak": "vpdpbusd"}
    products = [
        one | {"ms": 1.0, "gb_s": 10.0, "of_read": 0.4, "gop_s": 100.0, "of_peak": 0.1},
        one | {"ms": 3.0, "gb_s": 20.0, "of_read": 0.8, "gop_s": 200.0, "of_peak": 0.2},
    ]
    lines = table({"target": "t", "threads": 2, "peak_gop_s": PEAKS, "products": products})
    assert "17.5 GB/s" in lines[1]
    assert "70.0% of reading" in lines[1]
    assert "175 GOP/s" in lines[1]
