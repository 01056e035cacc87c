"""Outputs under a JSON schema by llama.cpp's grammar sampler, in the way of its own server.

A token is sampled without the grammar first and checked by it. Only if the grammar rejects the
token, all candidates are checked and another token is sampled. It runs in a process of its own:

    .venv-rivals/bin/python -m bench.engines.llama_cpp_forms CHECKPOINT SETTINGS
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf

from bench.engines.interface import Settings, random_tokens
from bench.engines.llama_cpp import LlamaContext

CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])


class Stream:
    """One output and its samplers."""

    def __init__(self, vocabulary: Any, grammar: str, seed: int) -> None:
        self.grammar = llama_cpp.llama_sampler_init_grammar(vocabulary, grammar.encode(), b"root")
        self.drawing = llama_cpp.llama_sampler_init_dist(seed)
        self.tokens: list[int] = []

    def close(self) -> None:
        llama_cpp.llama_sampler_free(self.grammar)
        llama_cpp.llama_sampler_free(self.drawing)


def candidates(ids: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, Any]:
    """Return candidates and llama.cpp's view of them."""
    data = np.empty(len(ids), CANDIDATE)
    data["id"], data["logit"], data["p"] = ids, logits, 0.0
    pointer = data.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    return data, llama_cpp.llama_token_data_array(pointer, len(ids), -1, False)


class FormStreams(LlamaContext):
    """Samples several outputs under one schema in common passes."""

    def draw(self, stream: Stream, row: int, all_ids: np.ndarray) -> int:
        logits = self.logits_of_row(row)
        _, whole = candidates(all_ids, logits)
        llama_cpp.llama_sampler_apply(stream.drawing, ctypes.byref(whole))
        token = int(whole.data[whole.selected].id)
        alone, view = candidates(np.array([token]), logits[token : token + 1])
        llama_cpp.llama_sampler_apply(stream.grammar, ctypes.byref(view))
        if np.isneginf(alone["logit"][0]):
            _, whole = candidates(all_ids, logits)
            llama_cpp.llama_sampler_apply(stream.grammar, ctypes.byref(whole))
            llama_cpp.llama_sampler_apply(stream.drawing, ctypes.byref(whole))
            token = int(whole.data[whole.selected].id)
        llama_cpp.llama_sampler_accept(stream.grammar, token)
        return token

    def outputs(self, schema: dict[str, Any], seeds: list[int], n_new: int) -> dict[str, Any]:
        """Return the time of the outputs in seconds, and the outputs."""
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        grammar = json_schema_to_gbnf(json.dumps(schema))
        all_ids = np.arange(self._vocab_size)
        self.clear()
        begin = time.perf_counter()
        streams = [Stream(vocabulary, grammar, seed) for seed in seeds]
        live = []
        for i, seed in enumerate(seeds):
            prompt = random_tokens(32, seed)
            self.append(i, prompt)
            live.append((i, self.draw(streams[i], -1, all_ids), len(prompt)))
        while live:
            after = []
            for i, token, position in live:
                if llama_cpp.llama_vocab_is_eog(vocabulary, token):
                    continue
                streams[i].tokens.append(token)
                if len(streams[i].tokens) < n_new:
                    after.append((i, token, position))
            live = after
            if not live:
                break
            self.run((token, position, i, True) for i, token, position in live)
            live = [
                (i, self.draw(streams[i], row, all_ids), position + 1)
                for row, (i, _, position) in enumerate(live)
            ]
        seconds = time.perf_counter() - begin
        buffer = ctypes.create_string_buffer(256)
        lengths = []
        for stream in streams:
            sizes = [
                llama_cpp.llama_token_to_piece(vocabulary, token, buffer, 256, 0, True)
                for token in stream.tokens
            ]
            lengths.append(sum(sizes))
            stream.close()
        return {
            "seconds": seconds,
            "tokens": [len(stream.tokens) for stream in streams],
            "bytes": lengths,
        }


def main() -> None:
    checkpoint, settings = sys.argv[1:]
    engine = FormStreams(Path(checkpoint), Settings(**json.loads(settings)))
    print(json.dumps(engine.facts()), flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.outputs(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
