"""A short run of an engine on the GPU, under a sanitizer.

    python -m bench.gpu.walk

The run has prompts in chunks, a shared prefix, a copied KV block, steps of several sequences,
drafts, and sampling with every option, for each dtype. It prints one JSON object with the number of
sampled tokens.
"""

from __future__ import annotations

import json

from pybatcher.engine import Engine
from pybatcher.params import SamplingParams
from pybatcher.scheduling.plan import StepEntry, StepPlan

FORMATS = (("bf16", "bf16"), ("int8", "int8"), ("int4", "f16"), ("f32", "f32"))
OPTIONS = SamplingParams(
    temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.2,
    logit_bias={7: 1.5}, logprobs=2, seed=5,
)  # fmt: skip


def walk(dtype: str, kv_dtype: str) -> int:
    """Return the number of sampled tokens."""
    engine = Engine.load(
        device="cuda", dtype=dtype, kv_dtype=kv_dtype, n_ctx=1024, n_parallel=4, n_threads=1,
        n_ubatch=64, block_size=16, weights_cache="off",
    )  # fmt: skip
    prompt = [i * i % 251 for i in range(290)]  # longer than one segment of attention
    first = engine.seq_new("first")
    for at in range(0, len(prompt), 100):
        engine.prefill_chunk(first, prompt[at : at + 100], logits=True)
    second = engine.seq_new("first")
    matched = engine.seq_match(second, prompt)
    engine.prefill_chunk(second, prompt[matched:])
    third = engine.seq_new("first")
    engine.seq_copy(first, third, 21)  # the middle of a block
    engine.seq_sampling(third, OPTIONS, n_prompt=21)
    drawn = 0
    tokens = [1, 2, 3]
    for _ in range(3):
        tokens = [int(token) for token in engine.decode_batch([first, second, third], tokens)]
        drawn += len(tokens)
    entry = StepEntry(seq_id=first, tokens=(tokens[0], 1, 2, 3), sample=True, n_draft=3)
    result = engine.step(StepPlan((entry,), decode_rows=4, prefill_rows=0))
    drawn += len(result.sampled[0])
    engine.check_integrity()
    engine.close()
    return drawn


def main() -> None:
    print(json.dumps({"tokens": sum(walk(*formats) for formats in FORMATS)}))


if __name__ == "__main__":
    main()
