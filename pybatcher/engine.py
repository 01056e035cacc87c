"""`Engine`: the compiled engine, loaded from a checkpoint. The only importer of `_core`.

Usable alone, without asyncio and without a scheduler:

    engine = Engine.load("path/to/model")
    seq_id = engine.seq_new()
    logits = engine.prefill_chunk(seq_id, prompt_ids, logits=True)
    token = int(logits.argmax())
    for _ in range(32):
        token = int(engine.decode_batch([seq_id], [token])[0])
    engine.seq_remove(seq_id)
"""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Self

from . import _core
from .config import CachePlace, EngineConfig
from .errors import InvalidRequestError, ModelFormatError
from .loading import LoadedModel, converted, open_model
from .loading.cuda import CudaDevice, CudaInfo
from .loading.weights_cache import cache_for
from .params import SamplingParams
from .scheduling.plan import SampledToken, StepPlan, StepResult

__all__ = ["Engine", "Progress"]

Progress = Callable[[int, int], object]
"""Told of a load's progress: bytes done, bytes in all."""


class Engine(_core.Engine):
    """Weights, KV cache and sampler of one model on one device.

    One call at a time: calls from other threads wait, without the GIL. Every
    call checks all of its arguments before it changes anything, and one that
    raises has left every sequence as it was. After `close()`, and in a forked
    child, every call raises EngineError.

    `progress` is a count that grows while a call computes, with every layer and every
    draw. Any thread may read it at any time, also after `close`: it waits for nothing.
    One that stands still in a call tells a hang from a long step.
    """

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        dtype: str = "auto",
        kv_dtype: str = "auto",
        device: str = "auto",
        n_ctx: int = 8192,
        n_parallel: int = 8,
        n_ubatch: int = 512,
        n_threads: int = 0,
        block_size: int = 32,
        weights_cache: CachePlace = "auto",
        progress: Progress | None = None,
    ) -> Self:
        """Load a model directory or a GGUF file; None: the model that ships with pybatcher.

        The options are those of `EngineConfig`. progress: called with the bytes of
        the checkpoint that are loaded, and all of them; what it raises ends the
        load. Raises ConfigError and ModelFormatError, and EngineError where memory
        is short.
        """
        config = EngineConfig(
            dtype=dtype,
            kv_dtype=kv_dtype,
            device=device,
            n_ctx=n_ctx,
            n_parallel=n_parallel,
            n_ubatch=n_ubatch,
            n_threads=n_threads,
            block_size=block_size,
            weights_cache=weights_cache,
        )
        return cls.from_loaded(open_model(path), config, progress)

    @classmethod
    def from_loaded(
        cls, model: LoadedModel, config: EngineConfig, progress: Progress | None = None
    ) -> Self:
        """Pack the weights of an opened model; afterwards it may be dropped.

        Where they were packed at an earlier start and kept, they are mapped from
        there: see `EngineConfig.weights_cache`.

        "auto" is resolved here: `dtype` is f32 for f32 checkpoints, int8 or int4 for
        a GGUF file of mostly such weights, bf16 for all others; `kv_dtype` f32 with
        f32 weights and else bf16; `device` the CPU.
        """
        dtype = config.dtype
        if dtype == "auto":
            dtype = model.dtype if model.dtype in ("f32", "int8", "int4") else "bf16"
        kv_dtype = config.kv_dtype
        if kv_dtype == "auto":
            kv_dtype = "f32" if dtype == "f32" else "bf16"
        origin = str(model.path or model.name)
        tensors = converted(model.tensors, dtype, origin)
        try:
            engine = cls(
                asdict(model.config),
                tensors,
                dtype=dtype,
                kv_dtype=kv_dtype,
                device="cpu" if config.device == "auto" else config.device,
                n_ctx=config.n_ctx,
                n_parallel=config.n_parallel,
                n_ubatch=config.n_ubatch,
                n_threads=config.n_threads,
                block_size=config.block_size,
                mapped={name for name, tensor in model.tensors.items() if tensor.mapped},
                weights_cache=cache_for(model, config.weights_cache),
                progress=progress,
            )
        except ModelFormatError as error:
            raise ModelFormatError(f"{origin}: {error}") from error
        if engine.weights_cache_problem:
            warnings.warn(
                f"packed weights are not taken from the cache: {engine.weights_cache_problem}",
                stacklevel=2,
            )
        return engine

    @staticmethod
    def cuda_info() -> CudaInfo:
        """Look for the NVIDIA driver and its GPUs, and tell what of CUDA the build has.

        The driver is started in this process, without a context on a GPU: a child
        that is forked afterwards cannot use CUDA. Only this and device="cuda" ever
        load it. Raises nothing: what is lacking is in the value.
        """
        found = _core.cuda_info()
        devices = tuple(CudaDevice(*device) for device in found.pop("devices"))
        return CudaInfo(**found, devices=devices)

    def seq_sampling(
        self,
        seq_id: int,
        params: SamplingParams | None,
        *,
        seed: int = 0,
        n_prompt: int = 0,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """Say how the sequence draws its tokens from now on; None: greedy.

        seed: 64 bits; with a token's absolute position, the key of its draw.
            (`params.seed` is the request's, which may be None; this one counts.)
        n_prompt: positions below this hold the prompt: min_tokens and the
            presence and frequency penalties count the tokens after it.
        stop_token_ids: ids that are not drawn before `params.min_tokens` tokens
            are; `params.stop_token_ids` are only what ends the text.
        """
        if params is None:
            self.set_sampling(seq_id)
            return
        vocabulary = range(self.vocab_size)
        for token in params.logit_bias or ():
            if token not in vocabulary:
                raise InvalidRequestError(
                    f"logit_bias names token {token}; token ids go from 0 to {self.vocab_size - 1}"
                )
        self.set_sampling(
            seq_id,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=dict(params.logit_bias or {}),
            min_tokens=params.min_tokens,
            stop_token_ids=tuple(stop_token_ids),
            logprobs=params.logprobs,
            seed=seed,
            n_prompt=n_prompt,
        )

    def step(self, plan: StepPlan) -> StepResult:
        """One forward pass over the plan's entries, sampling included.

        Log-probabilities and pooled vectors included, where entries ask for them.
        The tokens of every entry are appended, those of a sequence in `failed`
        too; of guesses those that were right. Raises RequestTooLongError past
        `max_sequence_length`, KvCacheFullError, and InvalidRequestError, all for
        the step as a whole.
        """
        entries = plan.entries
        asks = any(entry.targets or entry.pooling for entry in entries)
        drawn, failed, logprobs, pooled = self.run_step(
            [entry.seq_id for entry in entries],
            [len(entry.tokens) for entry in entries],
            list(chain.from_iterable(entry.tokens for entry in entries)),
            [entry.sample for entry in entries],
            [entry.n_draft for entry in entries],
            [entry.targets for entry in entries] if asks else (),
            [entry.pooling for entry in entries] if asks else (),
        )
        sampled: dict[int, tuple[SampledToken, ...]] = {}
        for seq_id, token, logprob, top in drawn:
            sampled[seq_id] = (*sampled.get(seq_id, ()), SampledToken(token, logprob, top))
        embeddings = {seq_id: array("f", vector.tobytes()) for seq_id, vector in pooled.items()}
        return StepResult(sampled, failed, logprobs, embeddings)
