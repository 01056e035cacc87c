"""Train the model that ships inside pybatcher, from nothing, on the grammar's text.

    OMP_WAIT_POLICY=PASSIVE python -m tools.tiny.train        about 75 minutes on 2 cores

The shipped weights are those of the whole recipe: stages 1 to 3 of one run (11.6 million tokens, 42
minutes with 2 threads beside compilers), stages 4 and 5, for JSON and tools, of another one on
another machine (``--from-stage 4``: 9.2 million tokens, 53 minutes with 1 thread).
Without the variable the two torch threads spin while they wait for each other, and crawl where
other programs want the cores too.
Needs the extra ``torch`` (torch, transformers, tokenizers). Fixed seed; only the last bits of the
weights depend on the machine and the number of threads. The directory ``--out`` holds a valid model
from the first checkpoint on and is replaced file by file, so it can be loaded at any time.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tools.tiny import MODEL_PATH
from tools.tiny.batches import IGNORED, Batch, copy_batches, document_batches
from tools.tiny.card import figures_of, model_card
from tools.tiny.conversations import drill
from tools.tiny.evaluate import Judge, evaluate, evaluate_uses
from tools.tiny.grammar import TRAIN_SEED, document, fragment, held_out_prompts
from tools.tiny.held_out_uses import held_out_uses
from tools.tiny.json_drills import json_drill
from tools.tiny.muon import Muon
from tools.tiny.records import record_chat
from tools.tiny.tokenizer import (
    BEGIN,
    END,
    END_OF_TEXT,
    MAX_LENGTH,
    save_tokenizer,
    train_tokenizer,
)
from tools.tiny.tool_chats import tool_chat, tool_drill

VALIDATION_SEED = 99
N_JUDGED = 100


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps that take their batches from these sources in turn.

    The learning rate warms up and then stays or, when the stage ``anneals``, falls as a cosine.
    """

    sources: tuple[str, ...]  # keys of ``batch_sources``
    n_steps: int
    anneals: bool
    rate: float = 1.0  # the share of the recipe's learning rates


_NEW_MOSTLY = ("calls", "records", "lists", "calls", "drills", "tools", "records", "documents")
_HALF_NEW = ("documents", "records", "drills", "tools", "documents", "calls")


@dataclass(frozen=True, slots=True)
class Recipe:
    """All settings that determine the weights. A stage begins with the stored weights of the last.

    The first stage trains looking back (fragments, repeated random tokens), the second stories and
    conversations, the third answering from the context, with many questions. The fourth and the
    fifth, at half the rates, add JSON and tools to the text of the third: first mostly copying
    words and names into JSON and calls, then half of the new and half of the old.
    """

    stages: tuple[Stage, ...] = (
        Stage(("copies", "fragments"), 800, anneals=False),
        Stage(("documents",), 1500, anneals=True),
        Stage(("drills", "documents"), 2600, anneals=True),
        Stage(_NEW_MOSTLY, 2200, anneals=False, rate=0.5),
        Stage(_HALF_NEW, 1400, anneals=True, rate=0.5),
    )
    n_document_rows: int = 12
    n_fragment_rows: int = 32
    n_copy_rows: int = 48
    n_list_rows: int = 32
    n_record_rows: int = 16
    n_tool_rows: int = 10
    n_call_rows: int = 16
    matrix_rate: float = 4e-3  # for Muon: the matrices of the layers
    other_rate: float = 3e-3  # for AdamW: the embedding and the norms
    final_rate: float = 0.03  # the share of both rates at the end of a cosine
    n_warmup: int = 30
    weight_decay: float = 0.05
    n_validation: int = 8  # batches


def architecture(tokenizer: Tokenizer) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=512,
        max_position_embeddings=MAX_LENGTH,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BEGIN),
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
    )


def lean_towards_copying(model: LlamaForCausalLM) -> None:
    """Start each head as "look at tokens like what I expect next, and repeat them".

    Query = key and output = value transposed, both on the scale of the usual start. Since input and
    output embedding are one matrix, "alike" and "repeat" mean the same in every layer.
    """
    config = model.config
    width, shared = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            for head in range(config.num_attention_heads):
                own = slice(head * width, (head + 1) * width)
                source = slice(head // shared * width, (head // shared + 1) * width)
                attention.o_proj.weight[:, own] = 2.0 * attention.v_proj.weight[source].T
                attention.q_proj.weight[own] = 6.0 * attention.k_proj.weight[source]


def loss_of(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy in nats per token. Logits are computed for targets alone."""
    hidden = model.model(batch.inputs, use_cache=False).last_hidden_state
    kept = batch.targets != IGNORED
    return nn.functional.cross_entropy(model.lm_head(hidden[kept]).float(), batch.targets[kept])


def rate_at(recipe: Recipe, stage: Stage, step: int) -> float:
    """Return the share of the full learning rate at a step (from 0) of a stage."""
    warm = stage.rate * min(1.0, (step + 1) / recipe.n_warmup)
    if not stage.anneals:
        return warm
    cosine = 0.5 * (1 + math.cos(math.pi * step / stage.n_steps))
    return warm * (recipe.final_rate + (1 - recipe.final_rate) * cosine)


class Optimizer:
    """Muon for the layers' matrices, AdamW for the rest, on one schedule."""

    def __init__(self, model: LlamaForCausalLM, recipe: Recipe) -> None:
        matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
        chosen = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in chosen]
        self._parameters = [*matrices, *others]
        self._parts = (
            Muon(matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay),
            torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0),
        )
        self._full_rates = (recipe.matrix_rate, recipe.other_rate)

    def step(self, rate: float) -> None:
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for part, full in zip(self._parts, self._full_rates, strict=True):
            part.param_groups[0]["lr"] = full * rate
            part.step()
            part.zero_grad()


def rounded(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a copy with the weights as they are stored: rounded to bf16."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    return copy.to(torch.bfloat16)


def validation_loss(model: LlamaForCausalLM, batches: list[Batch]) -> float:
    """Return the loss on new documents, of the weights as stored, computed in f32."""
    stored = rounded(model).float()
    total, n_targets = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            total += loss_of(stored, batch).item() * batch.n_targets
            n_targets += batch.n_targets
    return total / n_targets


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, card: str, out: Path) -> None:
    """Write the whole Hugging Face directory, each file in one move."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        new = Path(name)
        end_ids = [tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)]
        stored = rounded(model)
        stored.generation_config = GenerationConfig(
            bos_token_id=tokenizer.token_to_id(BEGIN),
            eos_token_id=end_ids,
            pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
            do_sample=False,
        )
        stored.save_pretrained(new)
        save_tokenizer(tokenizer, new)
        (new / "README.md").write_text(card)
        for file in new.iterdir():
            file.chmod(0o644)
            os.replace(file, out / file.name)


def reuse_freed_memory() -> None:
    """Keep glibc from returning every big tensor to the kernel: about 3 times the speed."""
    mmap_threshold, trim_threshold = -3, -1
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library; only speed is lost
    mallopt(mmap_threshold, 1 << 30)
    mallopt(trim_threshold, (1 << 31) - 1)


def has_fast_bf16() -> bool:
    """Return whether the CPU multiplies bf16; others imitate it, at a tenth of the speed of f32."""
    features = torch.cpu.get_capabilities()
    return any(features.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def batch_sources(tokenizer: Tokenizer, recipe: Recipe, seed: int) -> dict[str, Iterator[Batch]]:
    """Return endless batches of every kind."""
    n_documents, n_fragments = recipe.n_document_rows, recipe.n_fragment_rows
    return {
        "copies": copy_batches(tokenizer, recipe.n_copy_rows, seed),
        "fragments": document_batches(tokenizer, fragment, n_fragments, seed),
        "drills": document_batches(tokenizer, drill, n_fragments, seed),
        "documents": document_batches(tokenizer, document, n_documents, seed),
        "lists": document_batches(
            tokenizer, json_drill, recipe.n_list_rows, seed, answers_only=True
        ),
        "records": document_batches(
            tokenizer, record_chat, recipe.n_record_rows, seed, answers_only=True
        ),
        "tools": document_batches(
            tokenizer, tool_chat, recipe.n_tool_rows, seed, answers_only=True
        ),
        "calls": document_batches(
            tokenizer, tool_drill, recipe.n_call_rows, seed, answers_only=True
        ),
    }


@dataclass(slots=True)
class Progress:
    """The figures of a training so far, over all its stages."""

    n_steps: int = 0
    n_tokens: int = 0
    seconds: float = 0.0


def train_stage(
    model: LlamaForCausalLM,
    stage: Stage,
    recipe: Recipe,
    sources: dict[str, Iterator[Batch]],
    progress: Progress,
) -> Iterator[float]:
    """Train one stage in place; yield the loss after each step. Prints progress."""
    optimizer = Optimizer(model, recipe)
    recent: deque[float] = deque(maxlen=50)
    before, started = progress.seconds, time.monotonic()
    for step in range(stage.n_steps):
        batch = next(sources[stage.sources[step % len(stage.sources)]])
        with torch.autocast("cpu", torch.bfloat16, enabled=has_fast_bf16()):
            loss = loss_of(model, batch)
        loss.backward()
        optimizer.step(rate_at(recipe, stage, step))
        seconds = time.monotonic() - started
        progress.n_steps += 1
        progress.n_tokens += batch.inputs.numel()
        progress.seconds = before + seconds
        recent.append(loss.item())
        if progress.n_steps % 50 == 0:
            print(
                f"step {progress.n_steps}  loss {sum(recent) / len(recent):.4f}  "
                f"{progress.n_tokens / progress.seconds:.0f} tokens/s  "
                f"{progress.seconds / 60:.1f} min gone, this stage has "
                f"{seconds / 60 / (step + 1) * (stage.n_steps - step - 1):.1f} left",
                flush=True,
            )
        yield recent[-1]


def progress_before(recipe: Recipe, first_stage: int, out: Path) -> Progress:
    """Return the figures of the stages before ``first_stage``, which made the weights in ``out``.

    first_stage: from 0. Raises ValueError where the card of ``out`` tells of other steps.
    """
    if first_stage == 0:
        return Progress()
    n_steps = sum(stage.n_steps for stage in recipe.stages[:first_stage])
    told = figures_of((out / "README.md").read_text())
    if told["n_steps"] != n_steps:
        raise ValueError(
            f"{out} was trained for {told['n_steps']:.0f} steps; stage {first_stage + 1} begins "
            f"after {n_steps}"
        )
    return Progress(n_steps, int(told["n_tokens"]), 60 * told["minutes"])


def train(
    recipe: Recipe, tokenizer: Tokenizer, out: Path, *, first_stage: int = 0
) -> dict[str, float]:
    """Train from nothing, stage by stage; write ``out`` ten times in each.

    first_stage: from 0; above 0, ``out`` holds the weights that the stage before it has stored.

    Returns the figures for the model card.
    """
    torch.manual_seed(TRAIN_SEED)
    model = LlamaForCausalLM(architecture(tokenizer))
    lean_towards_copying(model)
    fresh = batch_sources(tokenizer, recipe, VALIDATION_SEED)["documents"]
    validation = list(itertools.islice(fresh, recipe.n_validation))
    progress = progress_before(recipe, first_stage, out)
    figures: dict[str, float] = {}
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    for number, stage in enumerate(recipe.stages):
        if number < first_stage:
            continue
        if number > 0:
            model = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32)
        sources = batch_sources(tokenizer, recipe, TRAIN_SEED + number)
        for step, _ in enumerate(train_stage(model, stage, recipe, sources, progress), start=1):
            if step % max(1, stage.n_steps // 10) == 0 or step == stage.n_steps:
                figures = {
                    "n_parameters": sum(p.numel() for p in model.parameters()),
                    "n_tokens": progress.n_tokens,
                    "n_steps": progress.n_steps,
                    "loss": validation_loss(model, validation),
                    "minutes": progress.seconds / 60,
                    "n_threads": torch.get_num_threads(),
                }
                save(model, tokenizer, model_card(figures), out)
                print(f"saved {out}: {json.dumps(figures)}", flush=True)
    return figures


def main() -> None:
    recipe = Recipe()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=MODEL_PATH, help="the model's directory")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument(
        "--from-stage",
        type=int,
        choices=range(1, len(recipe.stages) + 1),
        default=1,
        help="begin with the weights that the stage before it left in --out",
    )
    options = parser.parse_args()
    reuse_freed_memory()
    torch.set_num_threads(options.threads)
    first_stage = options.from_stage - 1
    figures = train(recipe, train_tokenizer(), options.out, first_stage=first_stage)
    judge = Judge(options.out)
    shares = evaluate(judge, held_out_prompts(N_JUDGED))
    shares |= evaluate_uses(judge, held_out_uses(N_JUDGED))
    (options.out / "README.md").write_text(model_card(figures, shares))
    print(json.dumps(shares))


if __name__ == "__main__":
    main()
