from __future__ import annotations

import re

from pybatcher.text.output.read.call_ids import call_id


def test_ids_are_the_prefix_and_the_index() -> None:
    assert call_id("prefixed", "call_", 3) == "call_3"


def test_ids_of_mistral_are_nine_letters_and_digits() -> None:
    ids = [call_id("mistral", prefix, i) for prefix in ("a", "b", "\ud800") for i in range(50)]
    assert all(re.fullmatch("[0-9A-Za-z]{9}", one) for one in ids)
    assert len(set(ids)) == len(ids)
    assert call_id("mistral", "call_", 0) == call_id("mistral", "call_", 0) == "mupIKT56D"
