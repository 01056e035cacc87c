"""Errors for options that there are not: the nearest name, or our name for another program's."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches

from ..errors import ConfigError, InvalidRequestError
from ..errors.checks import plain_text, short
from .batcher_options import BatcherOptions
from .sampling_params import SamplingParams

__all__ = ["flag_hint", "unknown_argument", "unknown_option"]

_SAMPLING = frozenset(field.name for field in fields(SamplingParams))
_OF_REQUESTS = ("namespace", "priority", "tenant", "timeout", "trace_headers")
_OF_CHATS = (
    "chat_template_kwargs",
    "enable_thinking",
    "max_reasoning_tokens",
    "parallel_tool_calls",
    "reasoning_effort",
    "tool_choice",
    "tools",
)
_LONGEST = 64  # characters of a name that is compared with the others
_BESIDE = ("model", "on_failure", "progress", "system_prompt")
"""The arguments of `Batcher` that are in none of the classes of options."""

# Below, a value is our name, or a sentence where no single name does the same.
_MODEL = "the model is the first argument: `Batcher(model)`"
_ONE_DEVICE = "the engine computes on one device; `pybatcher.ray.deployment` runs several replicas"
_FILES = "the tokenizer is read from the model's files"
_OF_BATCHERS: Mapping[str, str] = {
    "cache_type_k": "kv_dtype",
    "cache_type_v": "kv_dtype",
    "chat_format": "chat_template",
    "chat_template_file": "chat_template",
    "context_length": "n_ctx",
    "context_size": "n_ctx",
    "ctx_size": "n_ctx",
    "data_parallel_size": _ONE_DEVICE,
    "device_map": "device",
    "enable_chunked_prefill": "prompts are always computed in chunks; leave it out",
    "enable_prefix_caching": "prefixes of prompts are always cached; leave it out",
    "gpu_layers": "device",
    "gpu_memory_utilization": "n_ctx",
    "kv_cache_dtype": "kv_dtype",
    "load_in_4bit": 'dtype="int4" quantises the weights while loading',
    "load_in_8bit": 'dtype="int8" quantises the weights while loading',
    "max_batch_size": "n_parallel",
    "max_model_len": "n_ctx",
    "max_num_batched_tokens": "n_batch",
    "max_num_seqs": "n_parallel",
    "max_seq_len": "n_ctx",
    "max_seq_length": "n_ctx",
    "model_id": _MODEL,
    "model_name": _MODEL,
    "model_name_or_path": _MODEL,
    "model_path": _MODEL,
    "n_gpu_layers": "device",
    "n_seq_max": "n_parallel",
    "n_threads_batch": "n_threads",
    "num_ctx": "n_ctx",
    "num_gpu": "device",
    "num_parallel": "n_parallel",
    "num_thread": "n_threads",
    "num_threads": "n_threads",
    "path": _MODEL,
    "pipeline_parallel_size": _ONE_DEVICE,
    "pretrained_model_name_or_path": _MODEL,
    "quantization": "dtype",
    "repo_id": _MODEL,
    "system": "system_prompt",
    "system_message": "system_prompt",
    "tensor_parallel_size": _ONE_DEVICE,
    "threads": "n_threads",
    "tokenizer": _FILES,
    "tokenizer_path": _FILES,
    "torch_dtype": "dtype",
    "trust_remote_code": "no code of a checkpoint is ever run; leave it out",
    "type_k": "kv_dtype",
    "type_v": "kv_dtype",
    "ubatch_size": "n_ubatch",
}
_SCHEMA = "json_schema takes a JSON schema or a type, and json_object=True asks for any object"
_STREAMS = "`batcher.stream(prompt)` and `batcher.stream_chat(messages)` return the pieces"
_SYSTEM = 'it goes to `Batcher(system_prompt=...)`, or into a message with the role "system"'
_OF_CALLS: Mapping[str, str] = {
    "best_of": "n",
    "candidate_count": "n",
    "do_sample": "temperature=0 takes the likeliest token, and a higher temperature samples",
    "eos_token_id": "stop_token_ids",
    "format": _SCHEMA,
    "function_call": "tool_choice",
    "functions": "tools",
    "guided_choice": "choices",
    "guided_grammar": "grammar",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "max_completion_tokens": "max_tokens",
    "max_gen_len": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "num_return_sequences": "n",
    "random_seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "request_timeout": "timeout",
    "response_format": _SCHEMA,
    "response_model": "json_schema",
    "sampling_params": "the argument `params` takes SamplingParams",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "stop_words": "stop",
    "stream": _STREAMS,
    "streamer": _STREAMS,
    "structured_outputs": _SCHEMA,
    "system": _SYSTEM,
    "system_prompt": _SYSTEM,
    "temp": "temperature",
    "text_format": "json_schema",
    "think": "enable_thinking",
    "thinking_budget": "max_reasoning_tokens",
    "top_logprobs": "logprobs",
}
_ADDRESS = "--http HOST:PORT sets the address of the server"
_FORMAT = "--json-schema takes a JSON schema, and --json-object asks for any object"
_WHOLE = "the model's own files and memory decide it; leave it out"
_OF_COMMANDS: Mapping[str, str] = {
    "--alias": "--served-model-name",
    "--api-key": "--api-key-file",
    "--chat-template-file": "--chat-template",
    "--do-sample": "--temperature 0 takes the likeliest token, and a higher one samples",
    "--flash-attn": _WHOLE,
    "--format": _FORMAT,
    "--gpu": "--device",
    "--grammar-file": "--grammar",
    "--hf-repo": "--model",
    "--host": _ADDRESS,
    "--jinja": "the model's chat template is always used; leave it out",
    "--json-schema-file": "--json-schema",
    "--load-in-4bit": "--dtype int4 quantises the weights while loading",
    "--load-in-8bit": "--dtype int8 quantises the weights while loading",
    "--mlock": _WHOLE,
    "--model-id": "--model",
    "--model-name": "--model",
    "--model-path": "--model",
    "--no-mmap": _WHOLE,
    "--parallel": "--n-parallel",
    "--port": _ADDRESS,
    "--predict": "--max-tokens",
    "--prompt": "the prompt is the last argument",
    "--repo-id": "--model",
    "--response-format": _FORMAT,
    "--stream": "the output is always streamed; leave it out",
    "--system": "--system-prompt",
    "-a": "--served-model-name",
    "-b": "--n-batch",
    "-c": "--n-ctx",
    "-ctk": "--kv-dtype",
    "-ctv": "--kv-dtype",
    "-fa": _WHOLE,
    "-hf": "--model",
    "-hfr": "--model",
    "-j": "--json-schema",
    "-n": "--max-tokens",
    "-ngl": "--device",
    "-np": "--n-parallel",
    "-p": "the prompt is the last argument",
    "-sys": "--system-prompt",
    "-t": "--n-threads",
    "-tb": "--n-threads",
    "-tp": _ONE_DEVICE,
    "-ub": "--n-ubatch",
}


def flag_hint(flag: str, known: Collection[str]) -> str:
    """Return a hint for a flag that a command does not have; "" for a flag of no known program.

    known: the flags of the command.
    """
    name = flag.lstrip("-").replace("-", "_")
    found = _OF_COMMANDS.get(flag) or _OF_BATCHERS.get(name) or _OF_CALLS.get(name, name)
    if " " in found:
        return found
    own = f"--{found.lstrip('-').replace('_', '-')}"
    if own in known:
        return f"did you mean {own}?"
    target = own.lstrip("-").replace("-", "_")
    if target in _SAMPLING or target in _OF_CHATS:
        return f"{target} is a parameter of each request, and this command takes none"
    return ""


def unknown_option(name: object, known: Collection[str]) -> ConfigError:
    """Return the error for an option that a batcher does not have. known: the options it has."""
    own, near = plain_text(name) or "", {*known, *_BESIDE}
    hint = _table_hint(own, near, _OF_BATCHERS)
    if not hint:
        target = _OF_CALLS.get(own, own)
        if target in _SAMPLING or target in _OF_REQUESTS:
            hint = f"{target} goes to each call: `batcher.generate(prompt, {target}=...)`"
        elif target in _OF_CHATS:
            hint = f"{target} goes to each chat: `batcher.chat(messages, {target}=...)`"
        elif " " in target:
            hint = target
    text = _message(name, hint or _nearest(own, near), "the options are", known)
    return ConfigError(text, field=own or None)


def unknown_argument(
    name: object, known: Collection[str], elsewhere: Mapping[str, Collection[str]]
) -> InvalidRequestError:
    """Return the error for a keyword that a call does not have.

    known: the keywords it has. elsewhere: the keywords of other calls, by the call's name.
    """
    own = plain_text(name) or ""
    samples = not _SAMPLING.isdisjoint(known)  # the table is about these calls
    hint = _table_hint(own, known, _OF_CALLS) if samples else ""
    if not hint:
        target = _OF_BATCHERS.get(own, own)
        call = next((call for call, names in elsewhere.items() if own in names), None)
        if call is not None:
            hint = f"it is a keyword of `{call}`"
        elif target in BatcherOptions.__optional_keys__:
            hint = f"{target} is an option of the batcher: `Batcher(model, {target}=...)`"
    text = _message(name, hint or _nearest(own, known), "there are", known)
    return InvalidRequestError(text, field=own or None)


def _table_hint(name: str, known: Collection[str], foreign: Mapping[str, str]) -> str:
    """Return the hint of a table of foreign names; "" for none that helps with these `known`."""
    found = foreign.get(name, "")
    if " " in found:
        return found
    return f"did you mean {found}?" if found in known else ""


def _nearest(name: str, known: Collection[str]) -> str:
    """Return a hint to the known name that is spelt most alike; "" for none."""
    if len(name) > _LONGEST:
        return ""
    wanted = name.lower().replace("-", "_")
    found = get_close_matches(wanted, sorted({*known} - {name}), n=1)
    return f"did you mean {found[0]}?" if found else ""


def _message(name: object, hint: str, are: str, known: Collection[str]) -> str:
    listed = f"{are}: {', '.join(sorted(known)) or 'none'}"
    if not hint:
        return f"unknown option {short(name)}; {listed}"
    if hint.endswith("?"):
        return f"unknown option {short(name)}: {hint} {listed[0].upper()}{listed[1:]}"
    return f"unknown option {short(name)}: {hint}; {listed}"
