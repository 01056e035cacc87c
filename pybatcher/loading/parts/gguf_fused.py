"""`from_fused`: read q, k and v of a GGUF file from one fused tensor, `attn_qkv`.

llama.cpp's converter fuses them with `--fuse-qkv`, for any architecture. Some architectures always
have a fused tensor; their families have rules of their own for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..checkpoints.tensors import Tensor, TensorRule

__all__ = ["from_fused"]


def from_fused(rules: Sequence[TensorRule], tensors: Mapping[str, Tensor]) -> Iterator[TensorRule]:
    """Yield the rules; a rule of q, k or v that is not in `tensors` reads rows of `attn_qkv`.

    rules: rules with GGUF's names as sources. tensors: the tensors of the file.
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
