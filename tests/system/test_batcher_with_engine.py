"""The batcher over the compiled engine and the model that ships: the same promises, for real."""

from __future__ import annotations

import asyncio

import pytest
from batcher_helpers import until

from pybatcher import Batcher, Completion, EngineError, SamplingParams

PROMPTS = ["Once upon a time", "Mia and the kite", "What is 7 plus 5?", "The dragon named Ruby"]
SYSTEM = "You are a kind storyteller."
SAMPLED = SamplingParams(max_tokens=24, temperature=0.9, top_p=0.95, seed=11, logprobs=2)


async def together(prompts: list[str], **options: object) -> list[Completion]:
    async with Batcher(**options) as batcher:
        return list(await asyncio.gather(*(batcher.generate(p, SAMPLED) for p in prompts)))


def outputs(completions: list[Completion]) -> list[object]:
    return [(c.text, c.token_ids, c.finish_reason, c.logprobs) for c in completions]


async def test_n_batch_and_n_ubatch_apart() -> None:
    prompts = [prompt * 20 for prompt in PROMPTS]
    same = await together(prompts, n_batch=512)
    assert outputs(await together(prompts, n_batch=4096, n_ubatch=512)) == outputs(same)
    assert outputs(await together(prompts, n_batch=64, n_ubatch=16)) == outputs(same)
    with pytest.warns(UserWarning, match="n_ubatch=64 is more than n_batch=32"):
        clamped = await together(prompts, n_batch=32, n_ubatch=64)
    assert outputs(clamped) == outputs(same)


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
async def test_token_identical_under_mixed_load(kind: str) -> None:
    params = SAMPLED if kind == "sampled" else SamplingParams(max_tokens=24, logprobs=2)
    results = []
    for with_long_prompt in (False, True):
        async with Batcher(n_parallel=6, n_batch=64) as batcher:
            tasks = [asyncio.create_task(batcher.generate(p, params)) for p in PROMPTS]
            if with_long_prompt:
                await batcher.generate("Once upon a time " * 120, max_tokens=2)
            results.append(outputs(await asyncio.gather(*tasks)))
    assert results[0] == results[1]


async def test_shared_system_prompt() -> None:
    async with Batcher(system_prompt=SYSTEM) as batcher:
        shared = await asyncio.gather(*(batcher.generate(p, SAMPLED) for p in PROMPTS))
        counts = batcher.runtime.engine.statistics()
        wrong_drafts = counts["proposed_tokens"] - counts["accepted_tokens"]
        computed = counts["computed_tokens"] - wrong_drafts
        chats = [await batcher.chat([{"role": "user", "content": p}], SAMPLED) for p in PROMPTS]
        n_system = len(batcher.runtime.tokenizer.encode(SYSTEM))
    own = [c.usage.prompt_tokens - n_system for c in shared]
    drawn = [c.usage.completion_tokens - 1 for c in shared]
    assert computed == n_system + sum(own) + sum(drawn)
    assert {c.usage.cached_tokens for c in shared} == {n_system}
    assert min(c.usage.cached_tokens for c in chats) > 0
    async with Batcher() as batcher:
        tokenizer = batcher.runtime.tokenizer
        for prompt, completion, chat in zip(PROMPTS, shared, chats, strict=True):
            ids = tokenizer.encode(SYSTEM) + tokenizer.encode(prompt, add_special_tokens=False)
            alone = await batcher.generate(ids, SAMPLED)
            messages = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": prompt},
            ]
            assert outputs([completion, chat]) == outputs(
                [alone, await batcher.chat(messages, SAMPLED)]
            )


async def test_close_frees_the_engine() -> None:
    async with Batcher() as batcher:
        engine = batcher.runtime.engine
        await batcher.generate(PROMPTS[0], max_tokens=2)
    with pytest.raises(EngineError, match="closed"):
        engine.seq_new()


@pytest.mark.parametrize("drain", [True, False])
async def test_statistics_after_the_close_are_the_last_ones(drain: bool) -> None:
    batcher = Batcher(system_prompt=SYSTEM)
    await batcher.start()
    await batcher.generate(PROMPTS[0], max_tokens=2)
    under_way = asyncio.create_task(batcher.generate(PROMPTS[1], max_tokens=300, ignore_eos=True))
    await until(lambda: batcher.statistics().submitted == 2)
    await batcher.close(drain=drain)
    await asyncio.gather(under_way, return_exceptions=True)
    counts = batcher.statistics()
    assert (counts.submitted, counts.queued, counts.running) == (2, 0, 0)
    assert (counts.completed, counts.failed) == ((2, 0) if drain else (1, 1))
    assert counts.kv_free_blocks + counts.kv_cached_blocks == counts.kv_total_blocks > 0
    assert batcher.statistics() == counts


async def test_a_live_torch_module() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=None,
        bos_token_id=None,
    )
    module = transformers.LlamaForCausalLM(config).eval()
    prompts = [[1, 2, 3], [4] * 20, list(range(1, 51))]  # 0 would be padding to transformers
    async with Batcher.from_torch(module, None, dtype="f32") as batcher:
        completions = await asyncio.gather(
            *(batcher.generate(prompt, max_tokens=16) for prompt in prompts)
        )
    for prompt, completion in zip(prompts, completions, strict=True):
        with torch.no_grad():
            ids = module.generate(
                torch.tensor([prompt]), max_new_tokens=16, do_sample=False, pad_token_id=0
            )
        assert list(completion.token_ids) == ids[0, len(prompt) :].tolist()


async def test_progress_of_the_load() -> None:
    told: list[tuple[int, int]] = []
    async with Batcher(n_ctx=256, progress=lambda done, total: told.append((done, total))):
        assert told == sorted(set(told))
        done, total = told[-1]
        assert done == total > 1_000_000
