"""`Engine`: the compiled engine, loaded from a checkpoint. Only this module imports `_core`.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from . import _core
from .errors import InvalidRequestError, ModelFormatError, PybatcherError
from .loading import (
    ENGINE_DTYPE,
    MIXTURES,
    LoadedModel,
    convert_tensors,
    convert_to_mixture,
    engine_dtype,
    kept_matrices,
    open_model,
)
from .loading.weights_cache import cache_for
from .machine.cores import Cores
from .machine.cuda import CudaDevice, CudaInfo
from .params import SamplingParams
from .params.config import BLOCK_SIZE, BlockSize, CachePlace, ContextSize, EngineConfig
from .scheduling.plan import SampledToken, StepEntry, StepPlan, StepResult
from .text.grammars import FormJob, OutputMatcher, StepMasks, after_step, before_step

__all__ = ["Engine", "Progress"]

Progress = Callable[[int, int], object]
"""Called while a model is loaded, with the number of bytes loaded and the total."""


_CHECKED = {(9, 0)}  # bench/results/gpu-*.json
_NOT_CHECKED = (
    "device 'cuda' has been checked on an H100, of compute capability 9.0, and {} has {}.{}: "
    "compare its tokens with those of device='cpu' before you rely on them"
)
_BLOCK_SIZE_OF_STATES = 128


class Engine(_core.Engine):
    """Weights, KV cache and sampler of one model on one device.

    Runs one call at a time: calls from other threads wait, with the GIL released. Every
    call checks all of its arguments before it changes anything; a call that raises leaves
    every sequence unchanged. After `close()`, and in a forked child, every call raises
    EngineError.

    `progress` is a counter that grows while a call computes, with every layer and every
    sampled token. Any thread may read it at any time, also after `close`, without waiting.
    A call in which it stands still hangs; one in which it grows takes long.
    """

    _step_masks: StepMasks | None = None
    _masks: _core.TokenMasks | None = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        dtype: str = "auto",
        kv_dtype: str = "auto",
        device: str = "auto",
        n_ctx: ContextSize = 8192,
        n_parallel: int = 8,
        n_ubatch: int = 512,
        n_threads: int = 0,
        block_size: BlockSize = "auto",
        weights_cache: CachePlace = "auto",
        progress: Progress | None = None,
    ) -> Self:
        """Load a model directory or a GGUF file; None: the model that ships with pybatcher.

        path: or a name on the Hugging Face hub, as "Qwen/Qwen3-0.6B". The options are those of
        `EngineConfig`. progress: called from time to time with the bytes of the checkpoint that
        are downloaded, then with those that are loaded, and their total; an exception that it
        raises ends the load and is raised here. Raises ConfigError for an option,
        ModelFormatError for the checkpoint, and EngineError where memory is short.
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
        return cls.from_loaded(open_model(path, progress), config, progress)

    @classmethod
    def from_loaded(
        cls, model: LoadedModel, config: EngineConfig, progress: Progress | None = None
    ) -> Self:
        """Pack the weights of an opened model, or map them from the weights cache.

        The engine does not refer to `model` afterwards. Options that are "auto" become:
        `dtype` that of each matrix for a checkpoint with weights in blocks, f32 for f32
        checkpoints, else bf16; `kv_dtype` f32 with f32 weights, else bf16; `device` the CPU;
        `n_ctx` what memory is free for. Raises ModelFormatError, and EngineError where memory is
        short. Warns where the weights cache cannot be used.
        """
        device = "cpu" if config.device == "auto" else config.device
        dtype, tensors, kept = _prepared(model, config)
        kv_dtype = config.kv_dtype
        if kv_dtype == "auto":
            kv_dtype = "f32" if dtype == "f32" else "bf16"
        origin = str(model.path or model.name)
        try:
            engine = cls(
                asdict(model.config),
                tensors,
                dtype=dtype,
                kv_dtype=kv_dtype,
                device=device,
                n_ctx=config.n_ctx,
                n_parallel=config.n_parallel,
                n_ubatch=config.n_ubatch,
                n_threads=config.n_threads,
                block_size=_block_size(model, config),
                mapped={name for name, tensor in model.tensors.items() if tensor.mapped},
                kept=kept,
                weights_cache=cache_for(model, config.weights_cache),
                progress=progress,
            )
        except ModelFormatError as error:
            raise ModelFormatError(f"{origin}: {error}") from error
        if engine.description()["device"] == "cuda":
            gpu = cls.cuda_info().devices[0]
            if gpu.compute_capability not in _CHECKED:
                said = _NOT_CHECKED.format(gpu.name, *gpu.compute_capability)
                warnings.warn(said, stacklevel=2)
        if engine.weights_cache_problem:
            warnings.warn(
                f"packed weights are not taken from the cache: {engine.weights_cache_problem}",
                stacklevel=2,
            )
        return engine

    @staticmethod
    def cores() -> Cores:
        """Report the CPUs that this process may use, and how many threads `n_threads=0` is."""
        return Cores(**_core.cores())

    @staticmethod
    def cuda_info() -> CudaInfo:
        """Report the build's CUDA toolkit, the NVIDIA driver and its GPUs.

        Starts the driver in this process, without a context on a GPU: a child that is
        forked afterwards cannot use CUDA. Only this call and device="cuda" load it.
        Raises no error: problems are fields of the result.
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
        """Set how the sequence samples its tokens from now on; None: greedy.

        seed: 64 bits. Seed and absolute position of a token are the key of its random
            draw. `params.seed` is ignored: it may be None.
        n_prompt: number of prompt tokens at the start of the sequence. min_tokens and
            the presence and frequency penalties count only the tokens after them.
        stop_token_ids: token ids that are not sampled before `params.min_tokens` tokens;
            `params.stop_token_ids` is ignored.

        Raises InvalidRequestError for an unknown seq_id, and for a token id outside the
        vocabulary.
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
        """Run one forward pass over the plan's entries and sample.

        Appends the tokens of every entry to its sequence, also of one in
        `StepResult.failed`; of draft tokens, the accepted ones. The result holds the
        sampled tokens, the log-probabilities of targets and of the likeliest tokens beside
        them, and pooled vectors (hidden_size), float32, by sequence id. Raises
        RequestTooLongError past `max_sequence_length`, KvCacheFullError where blocks are
        short, and InvalidRequestError; then no entry is computed.
        """
        if any(entry.matcher is not None for entry in plan.entries):
            return self._step_with_forms(plan)
        return self._step(plan.entries)

    def _step(
        self,
        entries: Sequence[StepEntry],
        masks: _core.TokenMasks | None = None,
        mask_rows: Sequence[int] = (),
    ) -> StepResult:
        has_questions = any(entry.targets or entry.pooling for entry in entries)
        has_top = has_questions and any(entry.n_top for entry in entries)
        drawn, failed, logprobs, pooled, top_logprobs = self.run_step(
            [entry.seq_id for entry in entries],
            [len(entry.tokens) for entry in entries],
            list(chain.from_iterable(entry.tokens for entry in entries)),
            [entry.sample for entry in entries],
            [entry.n_draft for entry in entries],
            [entry.targets for entry in entries] if has_questions else (),
            [entry.pooling for entry in entries] if has_questions else (),
            masks,
            mask_rows,
            [entry.n_top for entry in entries] if has_top else (),
        )
        sampled: dict[int, tuple[SampledToken, ...]] = {}
        for seq_id, token, logprob, top in drawn:
            sampled[seq_id] = (*sampled.get(seq_id, ()), SampledToken(token, logprob, top))
        embeddings = {seq_id: array("f", vector.tobytes()) for seq_id, vector in pooled.items()}
        failures = _own_failures(failed)
        return StepResult(sampled, failures, logprobs, embeddings, top_logprobs=top_logprobs)

    @override
    def close(self) -> None:
        super().close()
        if self._step_masks is not None:
            self._step_masks.close()

    def _step_with_forms(self, plan: StepPlan) -> StepResult:
        """Compute a step some of whose outputs have a form: their masks beside the pass.

        What a form refuses is cut off the drafts first; tokens after its end are cut off the
        result. A form that cannot be followed fails its own sequence.
        """
        jobs: dict[int, FormJob] = {}
        entries, first_rows, n_rows = [], [], 0
        for entry in plan.entries:
            first_rows.append(-1)
            if entry.matcher is not None:
                matcher = cast("OutputMatcher", entry.matcher)
                n_own = len(entry.tokens) - entry.n_draft
                job = before_step(entry.seq_id, matcher, entry.output, entry.tokens[n_own:])
                tokens = entry.tokens[:n_own] + job.draft
                entry = entry._replace(tokens=tokens, n_draft=len(job.draft))
                jobs[entry.seq_id] = job
                first_rows[-1] = n_rows
                n_rows += len(job.draft) + 1
            entries.append(entry)
        if self._step_masks is None:
            self._step_masks = StepMasks()
        if self._masks is None or self._masks.n_rows < n_rows:
            self._masks = _core.TokenMasks(2 * n_rows, self.vocab_size)
        rows = (row for row in first_rows if row >= 0)
        filled = self._step_masks.begin(self._masks, list(zip(jobs.values(), rows, strict=True)))
        try:
            result = self._step(entries, self._masks, first_rows)
        finally:
            filled.result()
        return _with_forms(result, jobs)


def _block_size(model: LoadedModel, config: EngineConfig) -> int:
    if config.block_size != "auto":
        return config.block_size
    return BLOCK_SIZE if model.config.delta is None else _BLOCK_SIZE_OF_STATES  # which are large


def _prepared(model: LoadedModel, config: EngineConfig) -> tuple[str, dict[str, Any], set[str]]:
    """Return the engine's dtype, its tensors, and the names of those that keep their own dtype."""
    origin = str(model.path or model.name)
    if config.dtype in MIXTURES:
        quantise = partial(_quantised, n_threads=config.n_threads)
        mixed = convert_to_mixture(model.tensors, config.dtype, model.config, origin, quantise)
        return ENGINE_DTYPE, *mixed
    dtype, kept = config.dtype, set[str]()
    if dtype == "auto":
        dtype = engine_dtype(model.dtype)
        kept = kept_matrices(model.tensors)
    return dtype, convert_tensors(model.tensors, dtype, origin, kept), kept


def _quantised(
    name: str, tensor: tuple[NDArray[Any], str], dtype: str, *, n_threads: int
) -> NDArray[np.uint8]:
    return _core.quantise(name, tensor, dtype, n_threads)


def _own_failures(failed: Mapping[int, str]) -> dict[int, str | PybatcherError]:
    """Return the failures of draws, those that the request's own parameters made as its errors."""
    return {
        seq_id: InvalidRequestError(f"{why}; allow one more") if why == _core.ALL_FORBIDDEN else why
        for seq_id, why in failed.items()
    }


def _with_forms(result: StepResult, jobs: dict[int, FormJob]) -> StepResult:
    """Have the matchers follow what was drawn, and add to the result what they say."""
    sampled, failed = dict(result.sampled), dict(result.failed)
    complete, forced = set(), {}
    for seq_id, job in jobs.items():
        tokens = sampled.get(seq_id, ())
        outcome = after_step(job, [token.token_id for token in tokens])
        if outcome.error is not None:
            failed[seq_id] = outcome.error
        sampled[seq_id] = tokens[: outcome.n_tokens]
        if outcome.is_complete:
            complete.add(seq_id)
            failed.pop(seq_id, None)
        elif outcome.forced:
            forced[seq_id] = outcome.forced
    return replace(
        result, sampled=sampled, failed=failed, complete=frozenset(complete), forced=forced
    )
