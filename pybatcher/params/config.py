"""Options of the engine, the scheduler and supervision, validated on construction."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from typing import Any, TypeVar, get_args

from ..errors import ConfigError
from ..errors.checks import OPTION, plain_text, short
from .batcher_options import (
    BlockSize,
    CachePlace,
    ContextSize,
    Device,
    Dtype,
    KvDtype,
    MmprojSource,
    ParallelSize,
    TemplateSource,
    VictimPolicy,
)
from .chat_template import read_chat_template
from .unknown_names import unknown_option

__all__ = [
    "BLOCK_SIZE",
    "MOST_AUTO_PARALLEL",
    "BlockSize",
    "CachePlace",
    "ContextSize",
    "EngineConfig",
    "MmprojSource",
    "ParallelSize",
    "SchedulerConfig",
    "SupervisionConfig",
    "TemplateSource",
    "bad_value",
    "check_choice",
    "check_context",
    "check_int",
    "check_number",
    "check_path",
    "lists_options",
    "split_options",
]

_NO_DIRECTORY = ("false", "no", "none", "null", "true", "yes")
BLOCK_SIZE = 32
"""Positions of a KV block of most models, unless an option sets it."""
MOST_AUTO_PARALLEL = 32
"""The largest `n_parallel` that "auto" chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Formats and sizes of weights and KV cache, compute resources, chat template and images.

    dtype: type of the weights: f32, bf16, int8, int4, q4_k_m, q5_k_m or q6_k. "auto": f32 for f32
        checkpoints, the type of each matrix for GGUF files with weights in blocks and checkpoints
        of quantised weights, else bf16. "int8" and "int4" (groups of 32 with a scale each) and
        llama.cpp's quantisation mixes q4_k_m, q5_k_m and q6_k (4.9, 5.8 and 6.6 bits per weight)
        are quantised while loading.
    kv_dtype: type of keys and values: f32, bf16, f16 or int8. "auto": f32 with f32 weights, else
        bf16. "f16" is finer than bf16 and clamped to +-65504; "int8" has a scale for each token and
        kv head, and takes half the memory of either.
    device: "cpu"; "auto" is the same. "cuda": an NVIDIA GPU, in builds with PYBATCHER_CUDA=ON;
        checked on an H100, and warns on GPUs of another compute capability.
    n_ctx: KV capacity in tokens, shared by all sequences, in whole blocks; "auto": by the memory
        that is free. Layers with a sliding window take memory for `n_parallel` windows, if that is
        less.
    n_parallel: most sequences that may hold KV at once, which is the most requests that run.
        "auto": 32, or 16 or 8 if `n_ctx` has fewer than 256 tokens for each, or if sliding windows
        or recurrent states of so many would make the engine more than an eighth larger than with 8,
        or would not fit into the memory that is free.
    n_ubatch: most rows of one physical pass inside a step.
    n_threads: compute threads; 0 = one for each physical core that this process may use, but no
        more than a cgroup's CPU limit, rounded up.
    block_size: positions of a KV block. "auto": 32, or 128 for a model with recurrent layers, which
        store a state in each block.
    weights_cache: directory where packed weights are kept for the next start; "off" (from Python
        also False): none. "auto" (also None): in the user's cache directory, for models of more
        than 100 MB.
    overcommit: open a model on the CPU even if it takes more memory than is free; the system may
        then end the process.
    chat_template: replaces the chat template of the checkpoint: Jinja source, or the path of a file
        with it. It runs in the same sandbox.
    vision: load the vision tower of a model that has one. False: the model takes no images.
    mmproj: the GGUF file with the vision tower of a model in a GGUF file, or its name on the hub.
        None: the file beside the model, if there is one whose name begins with "mmproj".
    max_images: most images of a chat.
    max_image_pixels: most pixels (width times height) of an image, checked before they are decoded.
        While an image is read, it takes up to 20 bytes for each.
    max_image_bytes: most bytes of an encoded image.
    """

    dtype: Dtype = "auto"
    kv_dtype: KvDtype = "auto"
    device: Device = "auto"
    n_ctx: ContextSize = 8192
    n_parallel: ParallelSize = "auto"
    n_ubatch: int = 512
    n_threads: int = 0
    block_size: BlockSize = "auto"
    weights_cache: CachePlace = "auto"
    overcommit: bool = False
    chat_template: TemplateSource = None
    vision: bool = True
    mmproj: MmprojSource = None
    max_images: int = 16
    max_image_pixels: int = 2**25
    max_image_bytes: int = 20 * 2**20

    def __post_init__(self) -> None:
        _choice(self, "dtype", get_args(Dtype))
        _choice(self, "kv_dtype", get_args(KvDtype))
        _choice(self, "device", get_args(Device))
        _choice(self, "block_size", get_args(BlockSize))
        _set(self, "n_ctx", check_context("n_ctx", self.n_ctx))
        if plain_text(self.n_parallel) == "auto":
            _set(self, "n_parallel", "auto")
        else:
            wanted = "a whole number from 1 to 65536, or 'auto'"
            _set(self, "n_parallel", OPTION.whole("n_parallel", self.n_parallel, 1, 65536, wanted))
        _whole(self, "n_ubatch", 1, 65536)
        wanted = "a whole number from 0 to 1024; 0 is one for each core"
        _set(self, "n_threads", OPTION.whole("n_threads", self.n_threads, 0, 1024, wanted))
        _set(self, "overcommit", OPTION.flag("overcommit", self.overcommit))
        place = self.weights_cache
        if place is not None and place is not False:
            wanted = "'auto', 'off' or a directory"
            path = check_path("weights_cache", place, wanted)
            # Only a text is checked, since every value of a command line is one; a Path is
            # intended.
            if isinstance(place, str) and path.lower() in _NO_DIRECTORY:
                raise bad_value("weights_cache", path, f"{wanted} ('./{path}' is one)")
            _set(self, "weights_cache", path)
        _set(self, "vision", OPTION.flag("vision", self.vision))
        if self.mmproj is not None:
            wanted = "the path of a GGUF file, its name on the hub, or None"
            _set(self, "mmproj", check_path("mmproj", self.mmproj, wanted))
        _whole(self, "max_images", 0, 4096)
        _whole(self, "max_image_pixels", 1, 2**28)
        _whole(self, "max_image_bytes", 1, 2**30)
        if self.chat_template is not None:
            _set(self, "chat_template", read_chat_template(self.chat_template))

    @property
    def most_parallel(self) -> int:
        """`n_parallel`, or the largest that "auto" chooses."""
        return MOST_AUTO_PARALLEL if self.n_parallel == "auto" else self.n_parallel

    @property
    def image_limits(self) -> dict[str, int]:
        """The limits of images, by the names of their options."""
        names = ("max_images", "max_image_pixels", "max_image_bytes")
        return {name: getattr(self, name) for name in names}

    @property
    def template_source(self) -> str | None:
        """The Jinja source of `chat_template`, whose file was read on construction."""
        return None if self.chat_template is None else str(self.chat_template)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step and of the queue, and the scheduling policy.

    No option changes the tokens of a request, only the times at which they come.

    n_batch: token budget of one step, decode and prefill together.
    batch_size, batch_timeout: an idle batcher starts its first step when `batch_size` requests
        wait, or `batch_timeout` seconds after the first of them came.
    max_prefill_tokens: most prefill tokens in a step that also decodes, 0 = no limit.
    long_prefill_token_threshold: most tokens that one request prefills in a step, 0 = no limit, or
        4 % of the longest sequence if `max_num_partial_prefills` > 1.
    max_num_partial_prefills: most prompts that are partly computed at the same time. With more than
        one, each has its share of a step's rows, and short prompts overtake a long one.
    itl_target: seconds that a step which decodes should take at most; prefill gets the rest after
        the decode rows, by a model of step times that is fitted while serving. None: no target.
    dynamic_chunking: a prefill chunk shrinks as the tokens before it grow, so that steps take equal
        time.
    watermark: share of the KV blocks that admission leaves free while other requests run.
    output_reserve: tokens of a request's future output, at most, that admission reserves room for.
        With fewer, more requests run and more are preempted.
    victim_policy: the request that gives up its KV when blocks run out: "youngest"; "priority", the
        highest value and then the youngest; "cheapest", the youngest of those that free enough
        blocks for a while, so that no other has to follow soon.
    priority_aging: seconds of waiting that make up for one level of priority.
    max_prefixes: most shared prefixes (`add_prefix`) at a time.
    max_draft_tokens: most draft tokens of a sequence that one step verifies, 0 = none. Drafts
        change when tokens come, never their values. A model with recurrent layers uses no drafts.
    max_queue_requests: most requests that wait; one more raises QueueFullError.
    max_queue_tokens: most tokens of requests that wait; more raise QueueFullError.
    """

    n_batch: int = 512
    batch_size: int = 8
    batch_timeout: float = 0.002
    max_prefill_tokens: int = 0
    long_prefill_token_threshold: int = 0
    max_num_partial_prefills: int = 1
    itl_target: float | None = None
    dynamic_chunking: bool = False
    watermark: float = 0.01
    output_reserve: int = 32
    victim_policy: VictimPolicy = "cheapest"
    priority_aging: float = 10.0
    max_prefixes: int = 16
    max_draft_tokens: int = 8
    max_queue_requests: int = 4096
    max_queue_tokens: int = 4_194_304

    def __post_init__(self) -> None:
        _whole(self, "n_batch", 1, 2**20)
        _whole(self, "batch_size", 1, 65536)
        _whole(self, "max_prefill_tokens", 0, 2**20)
        _whole(self, "long_prefill_token_threshold", 0, 2**20)
        _whole(self, "max_num_partial_prefills", 1, 65536)
        _whole(self, "output_reserve", 0, 2**26)
        _whole(self, "max_prefixes", 0, 4096)
        _whole(self, "max_draft_tokens", 0, 64)
        _whole(self, "max_queue_requests", 1, 2**31 - 1)
        _whole(self, "max_queue_tokens", 1, 2**31 - 1)
        _number(self, "batch_timeout", 0.0, 60.0, " of seconds")
        _number(self, "watermark", 0.0, 0.9)
        _number(self, "priority_aging", 0.001, 1e6, " of seconds")
        if self.itl_target is not None:
            _number(self, "itl_target", 0.0001, 3600.0, " of seconds, or None")
        _choice(self, "victim_policy", get_args(VictimPolicy))
        _set(self, "dynamic_chunking", OPTION.flag("dynamic_chunking", self.dynamic_chunking))


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionConfig:
    """How often a failed engine is restarted, and when a step counts as hung.

    max_restarts: most restarts of an engine that fails within `restart_window`; after
        one more failure every request fails.
    restart_window: seconds in which restarts are counted. A loop of failures must fit
        into it: on a slow CPU the replay of long prompts takes many seconds.
    step_timeout: seconds after which a step counts as hung and its callers get
        an error; None (only from Python) = never. The default is far above a step of
        512 prompt tokens of a large model on a slow CPU.
    """

    max_restarts: int = 3
    restart_window: float = 60.0
    step_timeout: float | None = 300.0

    def __post_init__(self) -> None:
        _whole(self, "max_restarts", 0, 2**31 - 1)
        _number(self, "restart_window", 0.001, 1e6, " of seconds")
        if self.step_timeout is not None:
            _number(self, "step_timeout", 0.001, 1e6, " of seconds")


def split_options(
    options: Mapping[str, Any],
) -> tuple[EngineConfig, SchedulerConfig, SupervisionConfig]:
    """Make the three configurations from one dict of options by name.

    `n_ubatch` is at most `n_batch`: without its own value it takes `n_batch`'s if that is smaller,
        and a larger value is reduced with a warning. Raises ConfigError for a bad value, and for an
        unknown name, with the nearest name and the list of all.
    """
    names = {kind: {f.name for f in fields(kind)} for kind in _CONFIGS}
    known = set().union(*names.values())
    for name in options:
        if name not in known:
            raise unknown_option(name, known)
    given = {kind: {k: v for k, v in options.items() if k in names[kind]} for kind in _CONFIGS}
    scheduler = SchedulerConfig(**given[SchedulerConfig])
    engine_options = given[EngineConfig]
    engine = EngineConfig(**engine_options)
    if engine.n_ubatch > scheduler.n_batch:
        if "n_ubatch" in engine_options:
            warnings.warn(
                f"n_ubatch={engine.n_ubatch} is more than n_batch={scheduler.n_batch}; "
                f"using n_ubatch={scheduler.n_batch}",
                stacklevel=3,
            )
        engine = EngineConfig(**{**engine_options, "n_ubatch": scheduler.n_batch})
    return engine, scheduler, SupervisionConfig(**given[SupervisionConfig])


_CONFIGS: tuple[type[EngineConfig | SchedulerConfig | SupervisionConfig], ...] = (
    EngineConfig,
    SchedulerConfig,
    SupervisionConfig,
)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def lists_options(function: _Function) -> _Function:
    """Give a function with `**options` a signature that lists the options and their defaults.

    For `help`, and for shells and notebooks that complete arguments.
    """
    shown = signature(function)
    own = [p for p in shown.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    options = [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for kind in _CONFIGS
        for one in fields(kind)
    ]
    object.__setattr__(function, "__signature__", shown.replace(parameters=[*own, *options]))
    return function


def bad_value(name: str, value: object, wanted: str) -> ConfigError:
    """Return the error for an option with a bad value. wanted: the allowed values."""
    return ConfigError(f"{name} is {short(value)}; it must be {wanted}")


def check_path(name: str, value: object, wanted: str) -> str:
    """Return a path as a text that the file system can encode. Raises ConfigError."""
    with OPTION.reading(name, value, wanted):
        path = plain_text(value)
        if path is None and isinstance(value, os.PathLike):
            path = plain_text(os.fspath(value))
        if not path or "\0" in path:
            raise bad_value(name, value, wanted)
        os.fsencode(path)
        return path


def check_context(name: str, value: object) -> ContextSize:
    """Return a KV capacity in tokens, as `int`, or "auto". Raises ConfigError."""
    if plain_text(value) == "auto":
        return "auto"
    low, high = 16, 2**26
    wanted = f"a whole number from {low} to {high}, or 'auto'"
    return OPTION.whole(name, value, low, high, wanted=wanted)


def check_choice(name: str, value: object, choices: tuple[Any, ...]) -> Any:
    """Return one of `choices`. Raises ConfigError."""
    return OPTION.choice(name, value, choices)


def check_int(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`, as `int`. Raises ConfigError."""
    return OPTION.whole(name, value, low, high)


def check_number(name: str, value: object, low: float, high: float, unit: str = "") -> float:
    """Return a number from `low` to `high`, as `float`. Raises ConfigError, which names `unit`."""
    wanted = f"a number{unit} from {low:g} to {high:g}"
    return OPTION.number(name, value, low, high, wanted=wanted)


def _whole(config: object, name: str, low: int, high: int) -> None:
    _set(config, name, check_int(name, getattr(config, name), low, high))


def _number(config: object, name: str, low: float, high: float, unit: str = "") -> None:
    _set(config, name, check_number(name, getattr(config, name), low, high, unit))


def _choice(config: object, name: str, choices: tuple[Any, ...]) -> None:
    _set(config, name, check_choice(name, getattr(config, name), choices))


def _set(config: object, name: str, value: object) -> None:
    """Store the plain value of a frozen dataclass's field."""
    object.__setattr__(config, name, value)
