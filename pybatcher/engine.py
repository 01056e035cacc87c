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

import math
import os
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from . import _core
from .errors import InvalidRequestError, ModelFormatError, PybatcherError
from .images import Tile
from .loading import (
    ENGINE_DTYPE,
    MIXTURES,
    PLAIN,
    LoadedModel,
    convert_tensors,
    convert_to_mixture,
    engine_dtype,
    native_matrices,
    open_model,
)
from .loading.weights_cache import cache_for
from .machine.cores import Cores
from .machine.cuda import CudaDevice, CudaInfo
from .machine.memory import MemoryNeed
from .params import SamplingParams
from .params.batcher_options import Device, Dtype, KvDtype, MmprojSource
from .params.config import (
    BLOCK_SIZE,
    MOST_AUTO_PARALLEL,
    BlockSize,
    CachePlace,
    ContextSize,
    EngineConfig,
    ParallelSize,
)
from .scheduling.plan import EncodeWork, SampledToken, StepEntry, StepPlan, StepResult, TopLogprobs
from .text.grammars import GrammarJob, OutputMatcher, StepMasks, after_step, before_step

__all__ = ["Engine", "Progress", "open_guarded"]

Progress = Callable[[int, int], object]
"""A function that is called while a model is loaded: (bytes loaded, total bytes)."""


_CHECKED = {(9, 0)}  # bench/results/gpu-*.json
_NOT_CHECKED = (
    "device 'cuda' has been checked on an H100, of compute capability 9.0, and {} has {}.{}: "
    "compare its tokens with those of device='cpu' before you rely on them"
)
_BLOCK_SIZE_OF_STATES = 128  # The states of linear attention, one a block, are large.
_sampled_token = SampledToken._make


class Engine(_core.Engine):
    """The compiled engine with a loader, `SamplingParams` and `StepPlan`.

    The rules for threads, errors and `close` are those of the base class.
    """

    tower_layers: int = 0
    """Layers of the vision tower; 0: there is none."""
    tower_row_cost: float = 0.0
    """Work of a patch in a layer of the tower, beside that of a token in all layers of the model.

    It counts the multiply-adds of matrices.
    """

    _step_masks: StepMasks | None = None
    _masks: _core.TokenMasks | None = None
    _orders: Sequence[NDArray[np.int32] | None] = ()  # of the rows of the tiles in the tower

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        dtype: Dtype = "auto",
        kv_dtype: KvDtype = "auto",
        device: Device = "auto",
        n_ctx: ContextSize = 8192,
        n_parallel: ParallelSize = "auto",
        n_ubatch: int = 512,
        n_threads: int = 0,
        block_size: BlockSize = "auto",
        weights_cache: CachePlace = "auto",
        overcommit: bool = False,
        vision: bool = True,
        mmproj: MmprojSource = None,
        progress: Progress | None = None,
    ) -> Self:
        """Load a model directory, a GGUF file, or a model of the Hugging Face hub.

        path: a path or a name on the hub, for example "Qwen/Qwen3-0.6B". None means the model
            that ships with pybatcher.
        progress: called from time to time with the number of bytes of the checkpoint that are
            downloaded, then with those that are loaded, and the total. An exception that it
            raises ends the load and is raised here.
        The other options are those of `EngineConfig`.
        Raises ConfigError for an option, ModelFormatError for the checkpoint, and EngineError if
        memory is short.
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
            overcommit=overcommit,
            vision=vision,
            mmproj=mmproj,
        )
        return cls.from_loaded(open_guarded(path, config, progress), config, progress)

    @classmethod
    def from_loaded(
        cls,
        model: LoadedModel,
        config: EngineConfig,
        progress: Progress | None = None,
        n_prefixes: int = 0,
    ) -> Self:
        """Pack the weights of an opened model, or map them from the weights cache.

        The engine keeps no reference to `model`.
        n_prefixes: the number of sequences beside `n_parallel`, which hold shared prefixes.
        Options that are "auto" become:
        dtype: for a quantised checkpoint the element type of each matrix, for an f32 checkpoint
            f32, else bf16.
        kv_dtype: f32 with f32 weights, else bf16. device: the CPU.
        n_ctx: the number of tokens for which memory is free.
        n_parallel: 32, 16 or 8 (`EngineConfig`).
        Raises ModelFormatError, and EngineError if memory is short, before weights are read. Warns
        if the weights cache cannot be used.
        """
        model = model if config.vision else model.without_vision()
        arguments = _arguments(model, config, n_prefixes, *_prepared(model, config))
        origin = str(model.path or model.name)
        try:
            if arguments["device"] == "cpu" and not config.overcommit:
                MemoryNeed.of(_plan(arguments)).check(origin)
            engine = cls(
                **arguments,
                n_threads=config.n_threads,
                mapped={name for name, tensor in model.tensors.items() if tensor.mapped},
                weights_cache=cache_for(model, config.weights_cache),
                progress=_checking(model, progress),
            )
        except ModelFormatError as error:
            raise ModelFormatError(f"{origin}: {error}") from error
        if model.vision is not None:
            layers = model.vision.layers
            engine.tower_layers = layers.n_layers
            of_layer = layers.products_per_row / layers.n_layers
            engine.tower_row_cost = of_layer / model.config.products_per_row
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

    @classmethod
    def planned(
        cls, model: LoadedModel, config: EngineConfig, n_prefixes: int = 0
    ) -> dict[str, Any]:
        """Return fields of the `description` of an engine that is not made, and its memory.

        n_prefixes: as of `from_loaded`. `n_parallel` of the result does not count them.
        Reads no weights. The further fields are those of `plan`. Raises ModelFormatError,
        ConfigError, and EngineError for a GPU that cannot be used.
        """
        model = model if config.vision else model.without_vision()
        dtype, tensors, native = _prepared(model, config)
        arguments = _arguments(model, config, n_prefixes, dtype, tensors, native)
        sizes: Counter[str] = Counter()
        for name, tensor in model.tensors.items():
            if len(tensor.shape) == 2:
                kept = tensors[name][1] if name in native else dtype
                sizes["bf16" if kept == "f16" else kept] += math.prod(tensor.shape)
        dtypes = ", ".join(kind for kind, _ in sizes.most_common())
        shown = {name: arguments[name] for name in ("kv_dtype", "device")}
        n_parallel = arguments["n_parallel"] - n_prefixes
        return {**_plan(arguments), **shown, "n_parallel": n_parallel, "dtypes": dtypes}

    @staticmethod
    def cores() -> Cores:
        """Report the CPUs that this process may use, and the threads of `n_threads=0`."""
        return Cores(**_core.cores())

    @staticmethod
    def cuda_info() -> CudaInfo:
        """Report the build's CUDA toolkit, the NVIDIA driver and its GPUs.

        Starts the driver in this process, without a context on a GPU. A child that is forked
        afterwards cannot use CUDA. Only this call and device="cuda" load the driver. Raises no
        error: the result has fields for problems.
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

        `set_sampling` documents `seed`, `n_prompt` and `stop_token_ids`, which replace those of
        `params`.
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
                    f"logit_bias names token {token}; token ids go from 0 to {self.vocab_size - 1}",
                    field="logit_bias",
                )
        is_greedy = params.top_p == 0.0
        self.set_sampling(
            seq_id,
            temperature=params.temperature,
            top_k=1 if is_greedy else params.top_k,
            top_p=1.0 if is_greedy else params.top_p,
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
        """Run one forward pass over the plan's entries and sample, after the tower's part.

        Appends the tokens of every entry to its sequence, also for the sequences in
        `StepResult.failed`; of draft tokens, only the accepted ones.
        Raises RequestTooLongError past `max_sequence_length`, KvCacheFullError if blocks are
        short, and InvalidRequestError. No entry is computed then.
        """
        encoded = None if plan.encode is None else self._encode(plan.encode)
        if not plan.entries and plan.encode is not None:
            return StepResult({}, encoded=encoded)
        if any(entry.matcher is not None for entry in plan.entries):
            result = self._step_with_grammars(plan)
        else:
            result = self._step(plan.entries)
        return result if encoded is None else replace(result, encoded=encoded)

    def _encode(self, work: EncodeWork) -> tuple[NDArray[np.float32] | str, ...] | None:
        """Do the tower's part of a step; return the rows of its tiles once they are complete."""
        if work.begin:
            self.tower_drop()
            self.tower_begin([_tower_input(tile) for tile in work.begin])
            self._orders = [tile.order for tile in work.begin]
        if not self.tower_run(work.row_layers):
            return None
        return tuple(
            rows if order is None or isinstance(rows, str) else rows[order]
            for rows, order in zip(self.tower_take(), self._orders, strict=True)
        )

    def _step(
        self,
        entries: Sequence[StepEntry],
        masks: _core.TokenMasks | None = None,
        mask_rows: Mapping[int, int] | None = None,
    ) -> StepResult:
        sampled: dict[int, tuple[SampledToken, ...]] = {}
        failed: dict[int, str | PybatcherError] = {}
        logprobs: dict[int, tuple[float, ...]] = {}
        top_logprobs: dict[int, tuple[TopLogprobs, ...]] = {}
        embeddings: dict[int, array[float]] = {}
        for seq_id, tokens, failure, scores, tops, embedding in self.run_step(
            entries, masks, dict(mask_rows or {})
        ):
            if tokens:
                sampled[seq_id] = tuple(map(_sampled_token, tokens))
            if failure is not None:
                failed[seq_id] = _own_failure(failure)
            if scores:
                logprobs[seq_id] = scores
            if tops:
                top_logprobs[seq_id] = tops
            if embedding is not None:
                embeddings[seq_id] = array("f", embedding.tobytes())
        return StepResult(sampled, failed, logprobs, embeddings, top_logprobs=top_logprobs)

    @override
    def close(self) -> None:
        super().close()
        if self._step_masks is not None:
            self._step_masks.close()

    def _step_with_grammars(self, plan: StepPlan) -> StepResult:
        """Run a step with structured outputs: threads fill their masks during the pass.

        Draft tokens that a grammar forbids are cut off before the pass, and tokens after the end
        of a structured output are cut off the result. A matcher that fails makes its own
        sequence fail.
        """
        jobs: dict[int, GrammarJob] = {}
        first_rows: dict[int, int] = {}
        entries, n_rows = [], 0
        for entry in plan.entries:
            if entry.matcher is not None:
                matcher = cast("OutputMatcher", entry.matcher)
                n_own = len(entry.tokens) - entry.n_draft
                job = before_step(entry.seq_id, matcher, entry.output, entry.tokens[n_own:])
                tokens = entry.tokens[:n_own] + job.draft
                entry = entry._replace(tokens=tokens, n_draft=len(job.draft))
                jobs[entry.seq_id] = job
                first_rows[entry.seq_id] = n_rows
                n_rows += len(job.draft) + 1
            entries.append(entry)
        if self._step_masks is None:
            self._step_masks = StepMasks()
        if self._masks is None or self._masks.n_rows < n_rows:
            self._masks = _core.TokenMasks(2 * n_rows, self.vocab_size)
        rows = zip(jobs.values(), first_rows.values(), strict=True)
        filled = self._step_masks.begin(self._masks, list(rows))
        try:
            result = self._step(entries, self._masks, first_rows)
        finally:
            filled.result()
        return _with_grammars(result, jobs)


_TowerInput = tuple[
    NDArray[np.float32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.float32],
    NDArray[np.int32],
]


def _tower_input(tile: Tile) -> _TowerInput:
    """Return an argument of `tower_begin`."""
    arrays = (tile.coordinates, tile.table_index, tile.table_weight, tile.windows)
    return (tile.patches, *arrays)


def open_guarded(
    path: str | os.PathLike[str] | None, config: EngineConfig, progress: Progress | None = None
) -> LoadedModel:
    """Open a model as `open_model` does; a file that is truncated while it is read is an error."""
    return open_model(path, progress, _core.MappedFiles, vision=config.vision, mmproj=config.mmproj)


def _checking(model: LoadedModel, progress: Progress | None) -> Progress | None:
    """Return a function that also checks, after the last tensor, that no file was changed.

    The engine writes the weights cache after that call.
    """
    files = model.files
    if files is None:
        return progress

    def checking(done: int, total: int) -> None:
        if done >= total:
            files.check_unchanged()
        if progress is not None:
            progress(done, total)

    return checking


def _block_size(model: LoadedModel, config: EngineConfig) -> int:
    if config.block_size != "auto":
        return config.block_size
    return BLOCK_SIZE if model.config.gated_delta_net is None else _BLOCK_SIZE_OF_STATES


def _prepared(model: LoadedModel, config: EngineConfig) -> tuple[str, dict[str, Any], set[str]]:
    """Return the engine's dtype, its tensors, and the names of tensors that keep their dtype."""
    origin = str(model.path or model.name)
    if config.dtype in MIXTURES:
        quantise = partial(_quantised, n_threads=config.n_threads)
        mixed = convert_to_mixture(model.tensors, config.dtype, model.config, origin, quantise)
        return ENGINE_DTYPE, *mixed
    native = set[str]()
    if config.dtype == "auto":
        dtype = engine_dtype(model.dtype)
        native = native_matrices(model.tensors)
    else:
        dtype = config.dtype
    return dtype, convert_tensors(model.tensors, dtype, origin, native), native


def _arguments(
    model: LoadedModel,
    config: EngineConfig,
    n_prefixes: int,
    dtype: str,
    tensors: dict[str, Any],
    native: set[str],
) -> dict[str, Any]:
    """Return the arguments that the compiled engine and its `plan` share."""
    kv_dtype = config.kv_dtype
    if kv_dtype == "auto":
        kv_dtype = "f32" if dtype == "f32" else "bf16"
    arguments = {
        "config": asdict(model.config),
        "tensors": tensors,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "device": "cpu" if config.device == "auto" else config.device,
        "n_ctx": config.n_ctx,
        "n_parallel": config.most_parallel + n_prefixes,
        "n_ubatch": config.n_ubatch,
        "block_size": _block_size(model, config),
        "native": native,
        "vision": None if model.vision is None else asdict(model.vision),
    }
    if config.n_parallel == "auto":
        arguments["n_parallel"] = _auto_parallel(arguments, n_prefixes) + n_prefixes
    return arguments


_LEAST_AUTO_PARALLEL = 8
_AUTO_TOKENS = 256  # of n_ctx for each sequence
_AUTO_GROWTH = 9 / 8  # of the engine's memory for each token of n_ctx


def _auto_parallel(arguments: dict[str, Any], n_prefixes: int) -> int:
    """Return the `n_parallel` of "auto" (`EngineConfig`), without `n_prefixes`."""

    def need(n_parallel: int) -> MemoryNeed:
        return MemoryNeed.of(_plan({**arguments, "n_parallel": n_parallel + n_prefixes}))

    least = need(_LEAST_AUTO_PARALLEL)
    n_parallel = MOST_AUTO_PARALLEL
    while n_parallel > _LEAST_AUTO_PARALLEL:
        found = need(n_parallel)
        growth = found.total * least.n_ctx / (least.total * found.n_ctx)
        if found.fits and found.n_ctx >= _AUTO_TOKENS * n_parallel and growth <= _AUTO_GROWTH:
            break
        n_parallel //= 2
    return n_parallel


def _plan(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the `plan` of the compiled engine, without an access to the matrices' memory."""
    tensors = {
        name: (_not_read, entry[1], *entry[0].shape)
        if len(entry) == 2 and entry[0].ndim == 2 and entry[1] in PLAIN and entry[0].shape[1] > 1
        else entry
        for name, entry in arguments["tensors"].items()
    }
    return _core.Engine.plan(**{**arguments, "tensors": tensors})


def _not_read() -> NDArray[Any]:
    raise AssertionError("the values of a planned engine's tensors are not read")


def _quantised(
    name: str, tensor: tuple[NDArray[Any], str], dtype: str, *, n_threads: int
) -> NDArray[np.uint8]:
    return _core.quantise(name, tensor, dtype, n_threads)


def _own_failure(why: str) -> str | PybatcherError:
    """Return the failure of a sequence, as an error of the request if its parameters caused it."""
    return InvalidRequestError(f"{why}; allow one more") if why == _core.ALL_FORBIDDEN else why


def _with_grammars(result: StepResult, jobs: dict[int, GrammarJob]) -> StepResult:
    """Return the result after the matchers have followed the sampled tokens."""
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
