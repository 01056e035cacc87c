from __future__ import annotations

from pybatcher.ray.prefix_hashes import BLOCK, prefix_hashes

TOKENS = list(range(1000, 1000 + 4 * BLOCK + 5))


def test_there_is_one_hash_a_whole_block() -> None:
    assert len(prefix_hashes(TOKENS, None, 100)) == 4
    assert len(prefix_hashes(TOKENS[: BLOCK - 1], None, 100)) == 0
    assert prefix_hashes(TOKENS, None, 2) == prefix_hashes(TOKENS, None, 100)[:2]


def test_a_hash_is_of_all_tokens_before_its_end() -> None:
    other = list(TOKENS)
    other[BLOCK + 3] += 1
    mine, theirs = prefix_hashes(TOKENS, None, 100), prefix_hashes(other, None, 100)
    same = [a == b for a, b in zip(mine, theirs, strict=True)]
    assert same == [True, False, False, False]


def test_no_namespace_finds_out_what_another_one_asks() -> None:
    hashes = [prefix_hashes(TOKENS, name, 1)[0] for name in (None, "a", "b", "\ud800")]
    assert len(set(hashes)) == 4
    assert prefix_hashes(TOKENS, "", 1)[0] == hashes[0]  # both are the common one
