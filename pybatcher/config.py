"""Options of the engine, the scheduler and supervision, validated on construction."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any

from .errors import ConfigError

__all__ = [
    "CachePlace",
    "EngineConfig",
    "SchedulerConfig",
    "SupervisionConfig",
    "bad_value",
    "check_choice",
    "check_int",
    "check_number",
    "split_options",
]

CachePlace = str | PurePath | bool | None

_DTYPES = ("auto", "f32", "bf16", "int8", "int4")
_KV_DTYPES = ("auto", "f32", "bf16", "f16", "int8")
_DEVICES = ("auto", "cpu", "cuda")
_BLOCK_SIZES = (16, 32, 64, 128, 256)
_VICTIM_POLICIES = ("youngest", "priority", "cheapest")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Formats and sizes of weights and KV cache, and compute resources of the engine.

    dtype: of the weights. "auto": f32 for f32 checkpoints, int8 or int4 for GGUF
        files of mostly such weights, else bf16. "int8" and "int4" (groups of 32
        with a scale each) are quantised while loading.
    kv_dtype: of keys and values. "auto": f32 with f32 weights, else bf16. "f16" is
        finer than bf16 up to 65504 and held there; "int8" has a scale for each
        token and kv head, and takes half the memory of either.
    device: "cpu", which "auto" is too. "cuda" has no backend yet: it is refused,
        with what the machine lacks for it.
    n_ctx: KV capacity in tokens, shared by all sequences. Rounded up to blocks.
    n_parallel: most sequences that may hold KV at once.
    n_ubatch: rows of one physical pass.
    n_threads: compute threads; 0 = the cores this process may use.
    block_size: positions of a KV block.
    weights_cache: where weights stay, packed, for the next start: a directory;
        "off" or False: nowhere. "auto" or None: in the user's cache directory,
        for models of more than 100 MB.
    """

    dtype: str = "auto"
    kv_dtype: str = "auto"
    device: str = "auto"
    n_ctx: int = 8192
    n_parallel: int = 8
    n_ubatch: int = 512
    n_threads: int = 0
    block_size: int = 32
    weights_cache: CachePlace = "auto"

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, _DTYPES)
        check_choice("kv_dtype", self.kv_dtype, _KV_DTYPES)
        check_choice("device", self.device, _DEVICES)
        check_choice("block_size", self.block_size, _BLOCK_SIZES)
        check_int("n_ctx", self.n_ctx, 16, 2**26)
        check_int("n_parallel", self.n_parallel, 1, 65536)
        check_int("n_ubatch", self.n_ubatch, 1, 65536)
        check_int("n_threads", self.n_threads, 0, 1024)
        place = self.weights_cache
        if place is not None and place is not False and not _is_path(place):
            raise bad_value("weights_cache", place, "'auto', 'off' or a directory")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step and of the queue, and the scheduling policy.

    No option changes the tokens of a request, only when they come.

    n_batch: token budget of one step, decode and prefill together.
    batch_size, batch_timeout: an idle coordinator starts its first step when
        `batch_size` requests wait, or `batch_timeout` seconds after the first.
    max_prefill_tokens: most prefill tokens in a step that also decodes, 0 = no cap.
    long_prefill_token_threshold: most tokens that one request prefills in a step,
        0 = no cap, or 4 % of the longest sequence if `max_num_partial_prefills` > 1.
    max_num_partial_prefills: most prompts that are computed in part between two
        steps. With more than one, each has its share of a step's rows, and short
        prompts pass a long one.
    itl_target: seconds that a step which decodes should take at most; prefill gets
        what the decode rows leave of it, by a model of step times that is fitted
        while serving. None: no target.
    dynamic_chunking: a chunk of prefill shrinks as the tokens before it grow, so
        that steps take equal time.
    watermark: share of the KV blocks that admission leaves free while others run.
    output_reserve: so many tokens of its coming output, at most, admission wants
        room for. Fewer: more run at once, and more are preempted.
    victim_policy: who gives up its KV when there is too little: "youngest";
        "priority", the highest value and then the youngest; "cheapest", the youngest
        of those who free enough for a while, so that no other has to follow soon.
    priority_aging: seconds of waiting that make up for one level of priority.
    max_prefixes: most shared prefixes (`add_prefix`) at a time.
    max_draft_tokens: most guesses at its next tokens that a sequence has verified
        in a step, 0 = none. They change when tokens come, never which.
    max_queue_requests, max_queue_tokens: past either, `QueueFullError`.
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
    victim_policy: str = "cheapest"
    priority_aging: float = 10.0
    max_prefixes: int = 16
    max_draft_tokens: int = 8
    max_queue_requests: int = 4096
    max_queue_tokens: int = 4_194_304

    def __post_init__(self) -> None:
        check_int("n_batch", self.n_batch, 1, 2**20)
        check_int("batch_size", self.batch_size, 1, 65536)
        check_int("max_prefill_tokens", self.max_prefill_tokens, 0, 2**20)
        threshold = self.long_prefill_token_threshold
        check_int("long_prefill_token_threshold", threshold, 0, 2**20)
        check_int("max_num_partial_prefills", self.max_num_partial_prefills, 1, 65536)
        check_int("output_reserve", self.output_reserve, 0, 2**26)
        check_int("max_prefixes", self.max_prefixes, 0, 4096)
        check_int("max_draft_tokens", self.max_draft_tokens, 0, 64)
        check_int("max_queue_requests", self.max_queue_requests, 1, 2**31 - 1)
        check_int("max_queue_tokens", self.max_queue_tokens, 1, 2**31 - 1)
        check_number("batch_timeout", self.batch_timeout, 0.0, 60.0, " of seconds")
        check_number("watermark", self.watermark, 0.0, 0.9)
        check_number("priority_aging", self.priority_aging, 0.001, 1e6, " of seconds")
        if self.itl_target is not None:
            check_number("itl_target", self.itl_target, 0.0001, 3600.0, " of seconds, or None")
        check_choice("victim_policy", self.victim_policy, _VICTIM_POLICIES)
        if not isinstance(self.dynamic_chunking, bool):
            raise bad_value("dynamic_chunking", self.dynamic_chunking, "True or False")


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionConfig:
    """How often a failed engine is restarted, and when a step counts as hung.

    max_restarts, restart_window: an engine that fails is restarted in place, so
        often in so many seconds at most; past that every request fails. A loop of
        failures must fit into the window: on a slow CPU the replay of long
        prompts takes many seconds.
    step_timeout: seconds after which a step counts as hung and its callers get
        an error; None = never. The default is far above a step of 512 prompt
        tokens of a large model on a slow CPU.
    """

    max_restarts: int = 3
    restart_window: float = 60.0
    step_timeout: float | None = 300.0

    def __post_init__(self) -> None:
        check_int("max_restarts", self.max_restarts, 0, 2**31 - 1)
        check_number("restart_window", self.restart_window, 0.001, 1e6, " of seconds")
        if self.step_timeout is not None:
            check_number("step_timeout", self.step_timeout, 0.001, 1e6, " of seconds")


def split_options(
    options: dict[str, Any],
) -> tuple[EngineConfig, SchedulerConfig, SupervisionConfig]:
    """Make the three configurations from one dict of options by name.

    `n_ubatch` is at most `n_batch`: without its own value it takes `n_batch`'s where that
    is smaller, and a larger value is reduced with a warning. Raises ConfigError for a bad
    value, and for an unknown name, with the list of known ones.
    """
    names = {kind: {f.name for f in fields(kind)} for kind in _CONFIGS}
    known = set().union(*names.values())
    for name in options:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise ConfigError(f"unknown option {name!r}; the options are: {listed}")
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


def bad_value(name: str, value: object, wanted: str) -> ConfigError:
    """What to raise for an option that is not as it must be."""
    return ConfigError(f"{name} is {value!r}; it must be {wanted}")


def _is_path(value: object) -> bool:
    return isinstance(value, (str, PurePath)) and str(value) != "" and "\0" not in str(value)


def check_choice(name: str, value: object, choices: tuple[Any, ...]) -> None:
    """Raise ConfigError for what is none of `choices`."""
    if isinstance(value, bool) or value not in choices:
        raise bad_value(name, value, "one of " + ", ".join(map(repr, choices)))


def check_int(name: str, value: object, low: int, high: int) -> None:
    """Raise ConfigError for what is no whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad_value(name, value, f"a whole number from {low} to {high}")


def check_number(name: str, value: object, low: float, high: float, unit: str = "") -> None:
    """Raise ConfigError for what is no number from `low` to `high`. `unit`: said in the error."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= float(value) <= high:  # type: ignore[arg-type]  # also NaN
        raise bad_value(name, value, f"a number{unit} from {low:g} to {high:g}")
