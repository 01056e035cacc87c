from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pybatcher.text.output.read.trimmed_text import TrimmedText


def test_blanks_wait_for_the_text_after_them() -> None:
    passed: list[str] = []
    text = TrimmedText(passed.append)
    for piece in (" a ", "\n", "\t b", "", "c\r\n"):
        text.add(piece)
    assert passed == [" a", " \n\t b", "c"]
    assert text.take_blanks() == "\r\n"
    assert text.take_blanks() == ""
    text.add("d")
    assert passed[-1] == "d"


@given(st.lists(st.text("a \n\u00a0", max_size=4)))
def test_nothing_is_lost(pieces: list[str]) -> None:
    passed: list[str] = []
    text = TrimmedText(passed.append)
    for piece in pieces:
        text.add(piece)
        assert not "".join(passed).endswith((" ", "\n"))
    assert "".join(passed) + text.take_blanks() == "".join(pieces)
