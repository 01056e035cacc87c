"""Computes the expected results with transformers and sentence-transformers, in its own process.

The first line of standard input is a JSON list of tasks. For each of them it prints a line with a
JSON object. The dequantised weights and both libraries stay out of the process of the tests.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch


def language_model(
    path: str, prompts: list[list[int]], n_tokens: int, text: list[int]
) -> dict[str, Any]:
    """Return greedy tokens of each prompt and the log-probabilities of a text's tokens.

    transformers dequantises the GGUF file to float32, and computes in float32.
    """
    import gguf
    from transformers import AutoModelForCausalLM

    # transformers opens the file three times, and reads its vocabulary each time, for seconds.
    gguf.GGUFReader = functools.cache(gguf.GGUFReader)
    file = Path(path)
    module = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    return {
        "greedy": [greedy(module, prompt, n_tokens) for prompt in prompts],
        "logprobs": logprobs(module, text),
    }


def greedy(module: Any, prompt: list[int], n_tokens: int) -> list[int]:
    """Return the likeliest next tokens, end tokens included."""
    module.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    made = module.generate(ids, max_new_tokens=n_tokens, do_sample=False)
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens


def logprobs(module: Any, text: list[int]) -> list[float]:
    """Return the log-probability of each token but the first, given those before it."""
    ids = torch.tensor([text])
    log_p = module(ids).logits[0, :-1].log_softmax(-1)
    values: list[float] = log_p.gather(1, ids[0, 1:, None])[:, 0].tolist()
    return values


def embedder(path: str, texts: list[str]) -> dict[str, Any]:
    """Return the vectors that sentence-transformers computes."""
    from sentence_transformers import SentenceTransformer

    return {"vectors": SentenceTransformer(path, device="cpu").encode(texts).tolist()}


def main() -> None:
    """Answer the tasks in their order."""
    kinds = {"language_model": language_model, "embedder": embedder}
    torch.set_num_threads(1)  # the tests have the other core
    with torch.no_grad():
        for task in json.loads(sys.stdin.readline()):
            print(json.dumps(kinds[task.pop("kind")](**task)), flush=True)


if __name__ == "__main__":
    main()
