"""Evaluate the shipped model on held-out prompts, through transformers.

    python -m tools.tiny.evaluate --n 200       shares of good answers, and the bad ones

Greedy, the stored bf16 weights computed in f32.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tools.tiny import MODEL_PATH
from tools.tiny.grammar import (
    Prompt,
    held_out_prompts,
    is_coherent,
    is_grammatical,
    is_right,
)
from tools.tiny.held_out_uses import UsePrompt, held_out_uses, is_right_use
from tools.tiny.tokenizer import BEGIN, ROLES, as_text

MAX_NEW_TOKENS = 400
MAX_NEW_TOKENS_OF_USES = 120


def prompt_text(prompt: Prompt) -> str:
    """Return the prompt with its special tokens, as the chat template writes it."""
    if prompt.text is not None:
        return BEGIN + prompt.text
    return as_text(list(prompt.messages)) + ROLES["assistant"]


def use_text(prompt: UsePrompt) -> str:
    """Return the prompt with its special tokens, and with the given beginning of the answer."""
    return as_text(list(prompt.messages)) + ROLES["assistant"] + prompt.begun


class Judge:
    """A loaded model that answers greedily."""

    def __init__(self, path: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self.model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def answer(self, text: str, max_new_tokens: int = MAX_NEW_TOKENS) -> tuple[str, bool]:
        """Return the continuation of ``text`` (special tokens included), and whether it ended."""
        (answer,) = self.answers([text], max_new_tokens)
        return answer

    def answers(
        self, texts: Sequence[str], max_new_tokens: int = MAX_NEW_TOKENS
    ) -> list[tuple[str, bool]]:
        """Return the results of ``answer`` for all texts, which is faster in one batch."""
        prompts = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        longest = max(map(len, prompts))
        ends = self.model.generation_config.eos_token_id
        with torch.no_grad():
            output = self.model.generate(
                torch.tensor([[ends[0]] * (longest - len(ids)) + ids for ids in prompts]),
                attention_mask=torch.tensor(
                    [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]
                ),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=ends[0],
            )
        return [self._answer(new, ends) for new in output[:, longest:].tolist()]

    def _answer(self, ids: list[int], ends: Sequence[int]) -> tuple[str, bool]:
        """ids: new tokens. Tokens after an end token are padding."""
        end = next((at for at, token in enumerate(ids) if token in ends), None)
        return self.tokenizer.decode(ids[:end], skip_special_tokens=True), end is not None


def evaluate(judge: Judge, prompts: Sequence[Prompt], *, verbose: bool = False) -> dict[str, float]:
    """Return shares between 0 and 1.

    ``ends``: answers that stop by themselves. Of the stories: ``grammatical`` (every sentence),
    ``coherent`` (one plot, and the same facts throughout). ``right story``, ``right question``,
    ``right fact``: as ``is_right`` judges, by kind of prompt.
    """
    asked: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    answers = judge.answers([prompt_text(prompt) for prompt in prompts])
    for prompt, (answer, ended) in zip(prompts, answers, strict=True):
        checks = {"ends": ended, f"right {prompt.kind}": ended and is_right(prompt, answer)}
        if prompt.kind == "story":
            story = (prompt.text or "") + answer
            checks |= {"grammatical": is_grammatical(story), "coherent": is_coherent(story)}
        asked.update(checks.keys())
        passed.update(check for check, ok in checks.items() if ok)
        if verbose and not all(checks.values()):
            failed = ", ".join(check for check, ok in checks.items() if not ok)
            print(f"--- not {failed}\n{prompt_text(prompt)}\n==> {answer}")
            print(f"expected: {prompt.expected or dict(prompt.named)}", flush=True)
    return {check: passed[check] / n for check, n in asked.items()}


def evaluate_uses(
    judge: Judge, prompts: Sequence[UsePrompt], *, verbose: bool = False
) -> dict[str, float]:
    """Return shares between 0 and 1 of right answers, by kind of prompt, as ``is_right_use``
    judges: ``record``, ``value``, ``call``, ``no call``, ``result``.
    """
    asked: Counter[str] = Counter(prompt.kind for prompt in prompts)
    passed: Counter[str] = Counter()
    answers = judge.answers([use_text(prompt) for prompt in prompts], MAX_NEW_TOKENS_OF_USES)
    for prompt, (answer, _) in zip(prompts, answers, strict=True):
        if is_right_use(prompt, answer):
            passed[prompt.kind] += 1
        elif verbose:
            print(f"--- not right {prompt.kind}\n{use_text(prompt)}\n==> {answer}")
            print(f"expected: {prompt.expected}", flush=True)
    return {kind: passed[kind] / n for kind, n in asked.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--path", type=Path, default=MODEL_PATH, help="the model's directory")
    parser.add_argument("--n", type=int, default=100, help="how many held-out prompts")
    options = parser.parse_args()
    judge = Judge(options.path)
    shares = evaluate(judge, held_out_prompts(options.n), verbose=True)
    shares |= evaluate_uses(judge, held_out_uses(options.n), verbose=True)
    for check, share in shares.items():
        print(f"{check}: {share:.1%}")


if __name__ == "__main__":
    main()
