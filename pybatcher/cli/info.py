"""`pybatcher info`: a model's properties, and whether it fits into this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..machine.memory import MemoryNeed, size_text
from ..models.hub import origin_of
from ..params.config import EngineConfig, SchedulerConfig, split_options
from ..text import ChatTemplate
from .console import visible
from .loading_bar import loading_bar
from .options import ModelArgument, ModelOption, chosen_model, takes_options

if TYPE_CHECKING:
    from ..loading import LoadedModel, ModelConfig
    from ..machine.cores import Cores
    from ..machine.cuda import CudaInfo

__all__ = ["info"]


@takes_options(EngineConfig)
def info(name: ModelArgument = None, model: ModelOption = None, *, options: dict[str, Any]) -> None:
    """Show what a model is, and whether it fits into the memory of this machine.

    Only the headers of its files are read: no weights, and nothing is written.
    """
    from ..engine import Engine
    from ..loading import open_model

    engine_config, *_ = split_options(options)
    with loading_bar("downloading the model") as progress:
        loaded = open_model(
            chosen_model(name, model),
            progress,
            reads=False,
            vision=engine_config.vision,
            mmproj=engine_config.mmproj,
        )
    plan = Engine.planned(loaded, engine_config, SchedulerConfig().max_prefixes)
    facts = _model_facts(loaded) | _chat_facts(loaded, engine_config.template_source)
    facts |= _engine_facts(loaded, plan, engine_config, Engine.cores())
    if loaded.vision is not None:
        text = Engine.planned(
            loaded.without_vision(), engine_config, SchedulerConfig().max_prefixes
        )
        layers, n_bytes = loaded.vision.layers, plan["weight_bytes"] - text["weight_bytes"]
        told = f"{layers.n_layers} layers of {layers.hidden_size}, {size_text(n_bytes)} of weights"
        facts["vision tower"] = told
    facts |= _memory_facts(MemoryNeed.of(plan), plan["device"])
    facts |= _cuda_facts(Engine.cuda_info())
    table = Table.grid(padding=(0, 2))
    console = Console(highlight=False)
    for name, value in facts.items():
        shown = visible(value) if console.is_terminal else value
        table.add_row(Text(name, style="dim"), Text(shown))
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


def _chat_facts(model: LoadedModel, own_template: str | None) -> dict[str, str]:
    """Return facts about conversations, for which the chat template is rendered a few times.

    own_template: the option `chat_template`.
    """
    parts = model.tokenizer.with_template(own_template)
    if not model.generates:
        return {"use": "embeds texts; it cannot generate"}
    template = ChatTemplate(
        parts.chat_template,
        special_tokens=parts.special_tokens,
        tool_source=parts.tool_template,
    )
    if template.source is None:
        return {"chat template": "none: it continues texts, and takes no messages"}
    switches = template.thinking_variables()
    thinks = "</think>" in template.text or "<|channel|>analysis" in template.text
    no_tools = "no: the chat template ignores them, and the system message describes them"
    return {
        "chat template": f"yes, {len(template.source):,} characters",
        "tools": "yes" if template.takes_tools() else no_tools,
        "thinking": f"yes, {', '.join(switches)}" if switches else "yes" if thinks else "no",
        "images": _images(model, template),
    }


def _images(model: LoadedModel, template: ChatTemplate) -> str:
    if model.image_processor is None:
        return "no"
    if template.takes_images(model.image_processor.placeholder):
        return "yes"
    return "no: the chat template shows none"


def _engine_facts(
    model: LoadedModel, plan: Mapping[str, Any], config: EngineConfig, cores: Cores
) -> dict[str, str]:
    chosen = " (auto)" if config.n_ctx == "auto" else ""
    windows = "".join(
        f"; {n_layers} layers keep windows of {window:,}"
        for window, n_layers, _ in plan["kv_windows"]
    )
    windows += "".join(
        f"; {n_layers} recurrent layers keep {n_states} states"
        for n_layers, n_states in plan["kv_states"]
    )
    longest = min(model.config.max_position_embeddings, plan["n_ctx"])
    if not model.config.causal:
        longest = min(longest, config.n_ubatch)
    n_threads = config.n_threads or cores.n_threads
    return {
        "dtype": f"{plan['dtypes']}, KV in {plan['kv_dtype']}",
        "device": f"{plan['device']}, {plan['cpu_target']}, {n_threads} threads",
        "threads": _threads(config.n_threads, cores),
        "weights": size_text(plan["weight_bytes"]),
        "KV": f"{size_text(plan['kv_bytes'])}, n_ctx {plan['n_ctx']:,}{chosen}, "
        f"n_parallel {plan['n_parallel']}{' (auto)' * (config.n_parallel == 'auto')}{windows}",
        "longest sequence": f"{longest:,} tokens",
    }


def _memory_facts(need: MemoryNeed, device: str) -> dict[str, str]:
    where = "" if device == "cpu" else f" of the {device} device"
    verdict = "it fits" if need.fits else f"it does not fit: {need.remedy()}"
    return {
        "memory needed": f"{size_text(need.total)}, with {size_text(need.buffers)} of buffers",
        "memory free": f"{size_text(need.available)}{where}",
        "verdict": verdict,
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
