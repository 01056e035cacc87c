"""`from_fused`: q, k and v of GGUF files that have them in one tensor, `attn_qkv`.

llama.cpp's converter writes such files with `--fuse-qkv`, of any architecture; some architectures
have no others, and rules of their own for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..checkpoints.tensors import Tensor, TensorRule

__all__ = ["from_fused"]


def from_fused(rules: Sequence[TensorRule], tensors: Mapping[str, Tensor]) -> Iterator[TensorRule]:
    """Yield the rules; those of a q, k or v that is not in `tensors` take rows of `attn_qkv`.

    rules: with GGUF's names as sources. tensors: of the file.
    """
    n_rows = {rule.source: rule.shape[0] for rule in rules}
    for rule in rules:
        found = re.fullmatch(r"(blk\.\d+\.)attn_([qkv])\.(weight|bias)", rule.source)
        if found is None or rule.source in tensors:
            yield rule
            continue
        layer, part, kind = found.groups()
        fused = f"{layer}attn_qkv.{kind}"
        sizes = {name: n_rows.get(f"{layer}attn_{name}.{kind}", 0) for name in "qkv"}
        if fused not in tensors or not all(sizes.values()):
            yield rule
            continue
        begin = {"q": 0, "k": sizes["q"], "v": sizes["q"] + sizes["k"]}[part]
        yield replace(
            rule,
            source=fused,
            shape=(sum(sizes.values()), *rule.shape[1:]),
            rows=(begin, begin + sizes[part]),
            otherwise=None,
        )
