"""The engine against transformers: every architecture, random shapes, every position.

f32: logits within 1e-4 of transformers' f32, relative to the row's norm, however the prompt is cut;
64 greedy tokens equal. bf16: within the error that rounding the inputs of all matrix products to
bf16 makes in transformers itself, on the same weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import ATTENDING_IN_BF16, TARGETS
from more_shapes import MORE
from numpy.typing import NDArray
from random_shapes import FAMILIES, SEEDS, random_shape

from pybatcher.engine import Engine
from pybatcher.loading import from_torch, open_model
from pybatcher.models import tiny_path
from pybatcher.params.config import EngineConfig
from pybatcher.testing.checkpoints import make_checkpoint, make_module
from tools.tiny.evaluate import prompt_text
from tools.tiny.grammar import held_out_prompts

Floats = NDArray[np.float32]

CLOSE = 1e-4
N_PROMPT = 280  # past one segment of attention (256), so that partial softmax states are merged
N_GREEDY = 64


@pytest.fixture(autouse=True, scope="module")
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Subject:
    """A checkpoint, the transformers module read from it, and a prompt."""

    path: Path
    module: Any
    prompt: list[int]

    def logits(self, tokens: list[int]) -> Floats:
        """Of every position, (len(tokens), vocab) f32."""
        with torch.no_grad():
            logits: Floats = self.module(torch.tensor([tokens])).logits[0].float().numpy()
        return logits


def make_subject(directory: Path, family: str, seed: int, dtype: str) -> Subject:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    architecture, shape = random_shape(family, seed)
    if family == "gpt_oss" and dtype != "float32":
        # All experts: a choice that rounding flips is an error of any size.
        shape["num_experts_per_tok"] = shape["num_local_experts"]
    if family == "gemma4_moe" and dtype != "float32":
        shape["top_k_experts"] = shape["num_experts"]
    make_checkpoint(directory, architecture, seed=seed, dtype=dtype, tokenizer=False, **shape)
    module = transformers.AutoModelForCausalLM.from_pretrained(
        directory,
        attn_implementation="eager",
        dtype=torch.float32,
        **({"experts_implementation": "eager"} if "experts" in str(shape) else {}),
    )
    if family.startswith("gemma"):
        # Rounded to the dtype of the checkpoint, as in a module of that dtype.
        for name, scale in module.named_buffers():
            if name.endswith("embed_scale"):
                scale.copy_(scale.to(getattr(torch, dtype)))
    vocab_size = module.config.vocab_size
    prompt = np.random.default_rng(seed).integers(0, vocab_size, N_PROMPT).tolist()
    return Subject(directory, module, prompt)


def distance(logits: Floats, expected: Floats) -> Floats:
    """Of each row, relative to the norm of the expected one."""
    error: Floats = np.linalg.norm(logits - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    return error


# -- f32 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_f32(tmp_path: Path, family: str, seed: int) -> None:
    check_f32(tmp_path, family, seed)


@pytest.mark.parametrize("target", TARGETS)
def test_f32_on_every_target(tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", target)
    check_f32(tmp_path, "qwen3", 2)


def check_f32(directory: Path, family: str, seed: int) -> None:
    subject = make_subject(directory, family, seed, "float32")
    expected = subject.logits(subject.prompt)
    engine = Engine.load(subject.path, n_ctx=2048, n_ubatch=128)
    assert engine.description()["dtype"] == "f32"
    sequences = {}
    for chunk in (1, 7, 64, N_PROMPT):
        sequences[chunk] = engine.seq_new(str(chunk))  # a namespace of its own: nothing is shared
        rows, positions = [], []
        for begin in range(0, N_PROMPT, chunk):
            tokens = subject.prompt[begin : begin + chunk]
            rows.append(engine.prefill_chunk(sequences[chunk], tokens, logits=True))
            positions.append(begin + len(tokens) - 1)
        assert distance(np.stack(rows), expected[positions]).max() < CLOSE, f"chunks of {chunk}"

    token = int(expected[-1].argmax())
    greedy: list[int] = []
    logits: list[Floats] = []
    while len(greedy) < N_GREEDY:
        greedy.append(token)
        seq_ids = list(sequences.values())
        drawn, all_rows = engine.decode_batch(seq_ids, [token] * len(seq_ids), logits=True)
        assert (all_rows == all_rows[0]).all()
        token = int(drawn[0])
        logits.append(all_rows[0])
    after = subject.logits(subject.prompt + greedy)[N_PROMPT:]
    assert distance(np.stack(logits), after).max() < CLOSE
    assert greedy[1:] == after.argmax(axis=1)[:-1].tolist()
    engine.check_integrity()
    engine.close()


@pytest.mark.parametrize(
    "family",
    [
        *("llama2", "qwen2", "gpt2", "qwen3_moe", "mixtral", "gpt_oss", "granite", "olmo3"),
        *("gemma2", "gemma3", "gemma4_e2b", "gemma4_31b", "gemma4_moe"),
    ],
)
def test_a_live_module_is_the_same_model(tmp_path: Path, family: str) -> None:
    subject = make_subject(tmp_path, family, 4, "float32")
    saved = Engine.load(subject.path, n_ctx=512)
    live = Engine.from_loaded(from_torch(subject.module), EngineConfig(n_ctx=512))
    expected = saved.prefill_chunk(saved.seq_new(), subject.prompt, logits=True)
    logits = live.prefill_chunk(live.seq_new(), subject.prompt, logits=True)
    np.testing.assert_array_equal(logits, expected)
    saved.close()
    live.close()


@pytest.mark.parametrize("architecture", ["qwen3_moe", "gemma4"])
def test_of_experts_that_tie_the_first_is_taken(architecture: str) -> None:
    """Two routers' rows are equal: the later expert is as if it were not there."""
    if architecture == "gemma4":
        fields = {"enable_moe_block": True, "top_k_experts": 1, "moe_intermediate_size": 40}
        module = make_module(architecture, seed=6, num_experts=4, **fields)
        blocks = [(layer.router.proj, layer.experts) for layer in module.model.layers]
        scales = [layer.router.per_expert_scale for layer in module.model.layers]
    else:
        fields = {"num_experts_per_tok": 1, "mlp_only_layers": []}
        module = make_module(architecture, seed=6, num_experts=4, **fields)
        blocks = [(layer.mlp.gate, layer.mlp.experts) for layer in module.model.layers]
        scales = []
    with torch.no_grad():
        for router, _ in blocks:
            router.weight[3] = router.weight[1]
        engine = Engine.from_loaded(from_torch(module), EngineConfig(n_ctx=512))
        # Whichever transformers takes, it is the first one.
        for stacked in scales + [s for _, e in blocks for s in (e.gate_up_proj, e.down_proj)]:
            stacked[3] = stacked[1]
        tokens = list(range(60, 160))
        expected = module(torch.tensor([tokens])).logits[0].numpy()
    seq_id = engine.seq_new()
    rows = [engine.prefill_chunk(seq_id, [token], logits=True) for token in tokens]
    assert distance(np.stack(rows), expected).max() < CLOSE
    engine.close()


@pytest.mark.parametrize(
    ("kind", "text", "vision"),
    [
        ("Mistral3", "ministral3", {"model_type": "pixtral", "head_dim": 8}),
        ("Lfm2Vl", "lfm2", {"model_type": "siglip2_vision_model", "num_patches": 4}),
    ],
)
def test_the_text_part_of_a_model_with_images(
    kind: str, text: str, vision: dict[str, Any], tmp_path: Path
) -> None:
    import transformers

    vision |= {"hidden_size": 16, "intermediate_size": 16, "image_size": 32, "patch_size": 16}
    vision |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, f"{kind}Config")(
        vision_config=vision,
        text_config=make_module(text).config.to_dict(),
        tie_word_embeddings=False,
    )
    module = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    module.save_pretrained(tmp_path)
    tokens = list(range(3, 103))
    with torch.no_grad():
        expected = module(torch.tensor([tokens])).logits[0, -1].numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the tower is loaded, or left out on demand
        models = [open_model(tmp_path), open_model(tmp_path, vision=False), from_torch(module)]
    assert [model.vision is None for model in models] == [False, True, False]
    for model in models:
        engine = Engine.from_loaded(model, EngineConfig(n_ctx=512))
        logits = engine.prefill_chunk(engine.seq_new(), tokens, logits=True)
        assert distance(logits[None], expected[None]).max() < CLOSE
        engine.close()


def test_the_shipped_model_writes_what_transformers_writes() -> None:
    """Greedy, in f32, 50 held-out prompts in batches, until they end."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_path())
    module = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_path(), attn_implementation="eager", dtype=torch.float32
    )
    ends = open_model().tokenizer.eos_token_ids
    asked = map(prompt_text, held_out_prompts(50))
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in asked]
    engine = Engine.load(dtype="f32", n_ctx=16384, n_parallel=50)
    texts = list(map(list, prompts))
    running = []
    for seq_id, prompt in enumerate(prompts):
        assert engine.seq_new() == seq_id
        logits = engine.prefill_chunk(seq_id, prompt, logits=True)
        texts[seq_id].append(int(logits.argmax()))
        running.append(seq_id)
    for _ in range(100):
        running = [seq_id for seq_id in running if texts[seq_id][-1] not in ends]
        if not running:
            break
        drawn = engine.decode_batch(running, [texts[seq_id][-1] for seq_id in running])
        for seq_id, token in zip(running, drawn.tolist(), strict=True):
            texts[seq_id].append(token)
    engine.close()
    for prompt, text in zip(prompts, texts, strict=True):
        assert len(text) > len(prompt) + 1
        with torch.no_grad():
            after = module(torch.tensor([text[:-1]])).logits[0]
        assert after.argmax(dim=1)[len(prompt) - 1 :].tolist() == text[len(prompt) :]


# -- bf16 ------------------------------------------------------------------------------------


@contextmanager
def _inputs_rounded(module: Any, target: str) -> Iterator[None]:
    """Every matrix product takes its input, and attention its keys and values, in bf16.

    Routers take theirs in f32.
    """

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().float()

    hooks = []
    for name, part in module.named_modules():
        if type(part).__name__ not in ("Linear", "Conv1D") or name.endswith(".router.proj"):
            continue
        hooks.append(part.register_forward_pre_hook(lambda _, args: (rounded(args[0]),)))
        if name.endswith(("k_proj", "v_proj", "c_attn", "qkv_proj")):
            hooks.append(part.register_forward_hook(lambda _, __, out: rounded(out)))
    names = ("mlp.gate.weight", "mlp.router.weight", ".router.proj.weight")
    routers = {id(p) for name, p in module.named_parameters() if name.endswith(names)}
    linear = torch.nn.functional.linear

    def rounded_linear(x: torch.Tensor, weight: torch.Tensor, *bias: Any) -> torch.Tensor:
        return linear(x if id(weight) in routers else rounded(x), weight, *bias)

    matmul, attention_matmul = torch.Tensor.__matmul__, torch.matmul
    with pytest.MonkeyPatch.context() as patch:  # experts are no modules of their own
        patch.setattr(torch.nn.functional, "linear", rounded_linear)
        patch.setattr(torch.Tensor, "__matmul__", lambda x, w: matmul(rounded(x), w))
        if target in ATTENDING_IN_BF16:
            patch.setattr(torch, "matmul", lambda x, y: attention_matmul(rounded(x), y))
        yield
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("family", FAMILIES)
def test_bf16(tmp_path: Path, family: str, seed: int) -> None:
    check_bf16(tmp_path, family, seed)


@pytest.mark.parametrize("target", TARGETS)
def test_bf16_on_every_target(tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", target)
    check_bf16(tmp_path, "qwen3", 2)


def check_bf16(directory: Path, family: str, seed: int) -> None:
    subject = make_subject(directory, family, seed, "bfloat16")
    exact = subject.logits(subject.prompt)
    engine = Engine.load(subject.path, n_ctx=512)
    description = engine.description()
    assert description["dtype"] == description["kv_dtype"] == "bf16"
    with _inputs_rounded(subject.module, description["cpu_target"]):
        allowed = distance(subject.logits(subject.prompt), exact)
    seq_id = engine.seq_new()
    rows = [engine.prefill_chunk(seq_id, [token], logits=True) for token in subject.prompt]
    found = distance(np.stack(rows), exact)
    # Where two experts have nearly equal scores, another order of sums takes the other one; this
    # depends on the CPU, and such rows are few.
    has_experts = any("experts" in name for name, _ in subject.module.named_parameters())
    middle = np.median if has_experts else np.mean
    assert np.sqrt(middle(found**2)) < 1.25 * np.sqrt(middle(allowed**2))
    assert found.max() < 3 * allowed.max() or has_experts
    engine.close()
