"""Run llama.cpp on GGUF files: `python worker.py JOBS`, in an environment that has llama_cpp.

JOBS is a JSON list. {"source", "target", "type", "pure"} quantises a file; {"path", "tokens",
"target"} writes the logits of every position, and with "pooling" the one vector of an encoder.
{"path", "mmproj", "image", "prompt", "n_tokens", "target"} continues a prompt with an image.
Keys and values are f32, and attention is the plain one: what is rounded are matrix products.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp

N_CTX = 512
F32 = 0  # of ggml_type
NO_FLASH_ATTENTION = 0


@llama_cpp.llama_log_callback
def _silence(level: int, text: bytes, user_data: object) -> None:
    """Drop log messages."""


def quantise(source: str, target: str, type: str, pure: bool) -> None:
    """Quantise with llama.cpp's own quantiser. type: of a file, as in LLAMA_FTYPE_MOSTLY_Q8_0."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = 1
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{type}")
    params.pure = pure
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), params) != 0:
        raise RuntimeError(f"llama.cpp cannot quantise {source} to {type}")


def compute(path: str, tokens: list[int], target: str, pooling: str | None = None) -> None:
    """Write logits, (tokens, vocabulary) f32, or a vector, (hidden) f32, as an array of numpy."""
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise RuntimeError(f"llama.cpp cannot load {path}")
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = N_CTX
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = F32
    params.flash_attn_type = NO_FLASH_ATTENTION
    if pooling is not None:
        params.embeddings = True
        params.pooling_type = getattr(llama_cpp, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError(f"llama.cpp makes no context of {path}")
    batch = llama_cpp.llama_batch_init(N_CTX, 0, 1)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, True
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    batch.n_tokens = len(tokens)
    run = llama_cpp.llama_decode if pooling is None else llama_cpp.llama_encode
    if run(context, batch) != 0:
        raise RuntimeError(f"llama.cpp failed on {path}")
    if pooling is None:
        width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        pointer, shape = llama_cpp.llama_get_logits(context), (len(tokens), width)
    else:
        pointer = llama_cpp.llama_get_embeddings_seq(context, 0)
        shape = (llama_cpp.llama_model_n_embd(model),)
    np.save(target, np.ctypeslib.as_array(pointer, shape=shape))
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)


def see(path: str, mmproj: str, image: str, prompt: str, n_tokens: int, target: str) -> None:
    """Write the likeliest tokens after a prompt, and their log-probabilities, (2, n_tokens) f64.

    image: an array of numpy, (height, width, 3) uint8, for the word <image> of the prompt.
    """
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = N_CTX
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = F32
    params.flash_attn_type = NO_FLASH_ATTENTION
    context = llama_cpp.llama_init_from_model(model, params)
    of_images = mtmd_cpp.mtmd_context_params_default()
    of_images.use_gpu = of_images.warmup = False
    of_images.n_threads, of_images.flash_attn_type = 1, NO_FLASH_ATTENTION
    tower = mtmd_cpp.mtmd_init_from_file(mmproj.encode(), model, of_images)
    if not context or not tower:
        raise RuntimeError(f"llama.cpp cannot load {path} with {mmproj}")
    pixels = np.load(image)
    data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    bitmap = mtmd_cpp.mtmd_bitmap_init(pixels.shape[1], pixels.shape[0], data)
    marker = mtmd_cpp.mtmd_get_marker(tower)
    raw = prompt.encode().replace(b"<image>", marker)
    text = mtmd_cpp.mtmd_input_text(raw, len(raw), False, True)
    chunks = mtmd_cpp.mtmd_input_chunks_init()
    bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
    if mtmd_cpp.mtmd_tokenize(tower, chunks, ctypes.byref(text), bitmaps, 1) != 0:
        raise RuntimeError("llama.cpp cannot split the prompt")
    position = llama_cpp.llama_pos(0)
    if mtmd_cpp.mtmd_helper_eval_chunks(
        tower, context, chunks, 0, 0, N_CTX, True, ctypes.byref(position)
    ):
        raise RuntimeError(f"llama.cpp failed on {mmproj}")
    width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(1, 0, 1)
    batch.n_tokens = batch.n_seq_id[0] = batch.logits[0] = 1
    batch.seq_id[0][0] = 0
    found = np.empty((2, n_tokens))
    for i in range(n_tokens):
        pointer = llama_cpp.llama_get_logits_ith(context, -1)
        logits = np.ctypeslib.as_array(pointer, shape=(width,)).astype(np.float64)
        token = int(logits.argmax())
        logits -= logits.max()
        found[:, i] = token, logits[token] - np.log(np.exp(logits).sum())
        batch.token[0], batch.pos[0] = token, position.value + i
        if llama_cpp.llama_decode(context, batch) != 0:
            raise RuntimeError(f"llama.cpp failed on {path}")
    np.save(target, found)
    mtmd_cpp.mtmd_free(tower)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)


def main() -> None:
    llama_cpp.llama_log_set(_silence, None)
    mtmd_cpp.mtmd_helper_log_set(_silence, None)
    llama_cpp.llama_backend_init()
    jobs: list[dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text())
    for job in jobs:
        run = quantise if "source" in job else see if "image" in job else compute
        run(**job)


if __name__ == "__main__":
    main()
