"""`pybatcher info`: a model's properties, and the engine's on this machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..models.hub import origin_of
from ..params.config import EngineConfig, split_options
from .console import visible
from .loading_bar import loading_bar
from .options import ModelOption, takes_options

if TYPE_CHECKING:
    from ..engine import Engine
    from ..loading import LoadedModel, ModelConfig
    from ..machine.cores import Cores
    from ..machine.cuda import CudaInfo

__all__ = ["info"]


@takes_options(EngineConfig)
def info(model: ModelOption = None, *, options: dict[str, Any]) -> None:
    """Show what a model is, how it runs on this machine and how much memory it takes."""
    from ..engine import Engine, open_guarded

    engine_config, *_ = split_options(options)
    with loading_bar() as progress:
        loaded = open_guarded(model, progress)
        engine = Engine.from_loaded(loaded, engine_config, progress)
    table = Table.grid(padding=(0, 2))
    facts = _model_facts(loaded) | _engine_facts(engine, engine_config)
    facts |= _cuda_facts(Engine.cuda_info())
    console = Console(highlight=False)
    for name, value in facts.items():
        shown = visible(value) if console.is_terminal else value
        table.add_row(Text(name, style="dim"), Text(shown))
    engine.close()
    console.print(table)


def _model_facts(model: LoadedModel) -> dict[str, str]:
    config = model.config
    parameters = sum(math.prod(tensor.shape) for tensor in model.tensors.values())
    origin = None if model.path is None else origin_of(model.path)
    sampling = ", ".join(f"{name} {value:g}" for name, value in model.tokenizer.sampling.items())
    return {
        "model": model.name,
        **({} if origin is None else {"from the hub": origin}),
        "architecture": config.architecture,
        "parameters": f"{parameters:,}",
        "checkpoint dtype": model.dtype,
        "layers": f"{config.n_layers} of {config.hidden_size}",
        "heads": _heads(config),
        "vocabulary": f"{config.vocab_size:,} tokens",
        "positions": f"{config.max_position_embeddings:,}",
        **({"recommended": sampling} if sampling else {}),
    }


def _heads(config: ModelConfig) -> str:
    layers = enumerate(config.recurrent_layers)
    shapes = [config.shape(layer) for layer, is_recurrent in layers if not is_recurrent]
    unlike = dict.fromkeys((shape.head_dim, shape.n_kv_heads) for shape in shapes)
    return "; ".join(f"{config.n_heads} of {size}, {n_kv} for KV" for size, n_kv in unlike)


def _engine_facts(engine: Engine, config: EngineConfig) -> dict[str, str]:
    facts = engine.description()
    chosen = " (auto)" if config.n_ctx == "auto" else ""
    windows = "".join(
        f"; {n_layers} layers keep windows of {window:,}"
        for window, n_layers, _ in facts["kv_windows"]
    )
    windows += "".join(
        f"; {n_layers} recurrent layers keep {n_states} states"
        for n_layers, n_states in facts["kv_states"]
    )
    return {
        "dtype": f"{facts['dtypes']}, KV in {facts['kv_dtype']}",
        "device": f"{facts['device']}, {facts['cpu_target']}, {facts['n_threads']} threads",
        "threads": _threads(config.n_threads, engine.cores()),
        "weights": f"{_megabytes(facts['weight_bytes'])}, cache: {facts['weights_cache']}",
        "KV": f"{_megabytes(facts['kv_bytes'])}, n_ctx {engine.n_ctx:,}{chosen}, "
        f"n_parallel {engine.n_parallel}{windows}",
        "longest sequence": f"{engine.max_sequence_length:,} tokens",
    }


def _threads(asked: int, cores: Cores) -> str:
    chosen = cores.reason()
    return f"{asked}, as n_threads says; by itself {chosen}" if asked else chosen


def _cuda_facts(cuda: CudaInfo) -> dict[str, str]:
    architectures = " ".join(f"sm_{number}" for number in cuda.architectures)
    built = f"toolkit {cuda.toolkit} for {architectures}, "
    built += "with kernels" if cuda.has_kernels else "no kernels (build with PYBATCHER_CUDA=ON)"
    gpus = [str(len(cuda.devices))] if cuda.driver_state != "too_old" else ["not asked for"]
    for gpu in cuda.devices:
        major, minor = gpu.compute_capability
        gpus.append(f"{gpu.name} (sm_{major}{minor}, {gpu.memory_bytes / 2**30:,.1f} GiB)")
    facts = {
        "CUDA": built if cuda.toolkit else f"none, {cuda.build_problem}",
        "NVIDIA driver": f"for CUDA up to {cuda.driver_version}" if cuda.driver_version else "none",
        "GPUs": ", ".join(gpus),
    }
    return facts | ({"lacking": cuda.driver_problem} if cuda.driver_problem else {})


def _megabytes(count: int | str) -> str:
    return f"{int(count) / 2**20:,.1f} MiB"
