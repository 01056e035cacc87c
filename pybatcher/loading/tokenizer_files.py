"""Read the files of a tokenizer, of its chat templates, and generation_config.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as TokenizerBackend

from ..errors import ModelFormatError
from .fields import Fields
from .json_file import read_fields, read_text
from .loaded_model import TokenizerParts

__all__ = [
    "MAX_TOKENIZER_BYTES",
    "SPECIAL_TOKENS",
    "build_parts",
    "private_backend",
    "read_tokenizer",
]

MAX_TOKENIZER_BYTES = 512 * 2**20
_MAX_TEMPLATE_BYTES = 2**20
_MAX_TOKEN_ID = 2**31 - 1
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def read_tokenizer(directory: Path, config: Fields) -> TokenizerParts:
    """Read the tokenizer of a Hugging Face directory. Any of its files may be absent.

    config: config.json, used for token ids that no other file has. Only tokenizer.json
    decides which tokens are added around a text (BOS, for example), as in transformers 5.
    Raises ModelFormatError for a damaged file.
    """
    backend = None
    path = directory / "tokenizer.json"
    if path.is_file():
        backend = private_backend(read_text(path, MAX_TOKENIZER_BYTES), str(path))
    settings = _read_settings(directory)
    if backend is not None:
        _add_tokens(backend, _added_tokens(directory, settings, backend))
        _mark_special(backend, settings)
    generation = _read_optional(directory / "generation_config.json")
    template, for_tools = _read_templates(directory, settings)
    return build_parts(backend, template, settings, generation, config, tool_template=for_tools)


def build_parts(
    backend: TokenizerBackend | None,
    chat_template: str | None,
    settings: Fields,
    generation: Fields,
    config: Fields,
    *,
    tool_template: str | None = None,
) -> TokenizerParts:
    """Combine a tokenizer's settings with the two configurations of a model.

    The ids of BOS and EOS come from the first that names any: the generation
    configuration, the model's configuration, the tokenizer's settings. Raises
    ModelFormatError for a value of the wrong type.
    """
    special_tokens = _special_tokens(settings)

    def ids(name: str) -> frozenset[int]:
        token = special_tokens.get(f"{name}_token")
        token_id = None if backend is None or token is None else backend.token_to_id(token)
        last = frozenset() if token_id is None else frozenset([token_id])
        field = f"{name}_token_id"
        return _token_ids(generation, field) or _token_ids(config, field) or last

    return TokenizerParts(
        backend=backend,
        chat_template=chat_template,
        special_tokens=special_tokens,
        bos_token_id=min(ids("bos"), default=None),
        eos_token_ids=ids("eos"),
        response_template=_response_template(settings),
        tool_template=tool_template,
    )


def private_backend(text: str, source: str) -> TokenizerBackend:
    """Make a new tokenizer from its JSON, with padding and truncation switched off.

    Raises ModelFormatError, which names `source`, for JSON that is not a tokenizer.
    """
    try:
        backend = TokenizerBackend.from_str(text)
        backend.no_padding()
        backend.no_truncation()
    except Exception as error:  # the library raises no more specific type
        raise ModelFormatError(f"{source}: not a valid tokenizer: {error}") from error
    return backend


def _read_settings(directory: Path) -> Fields:
    """Read tokenizer_config.json.

    Older checkpoints, without `added_tokens_decoder`, have the special tokens in
    special_tokens_map.json, too, which counts first.
    """
    settings = _read_optional(directory / "tokenizer_config.json")
    if "added_tokens_decoder" in settings:
        return settings
    named = _special_tokens(_read_optional(directory / "special_tokens_map.json"))
    values = {name: settings.get(name) for name in settings.names()}
    return Fields({**values, **named}, settings.source)


def _added_tokens(
    directory: Path, settings: Fields, backend: TokenizerBackend
) -> Iterator[tuple[int, AddedToken]]:
    """Yield the tokens that belong to the tokenizer beside those of tokenizer.json, with their ids.

    Older checkpoints have them in added_tokens.json, without flags.
    """
    if "added_tokens_decoder" in settings:
        tokens = settings.child("added_tokens_decoder")
        for name in tokens.names():
            if not name.isascii() or not name.isdecimal() or len(name) > 10:
                raise settings.error("added_tokens_decoder", "an object of tokens by their ids")
            yield int(name), _added_token(tokens.child(name))
        return
    special = _special_tokens(settings).values()
    added = _read_optional(directory / "added_tokens.json")
    for text in added.names():
        if backend.token_to_id(text) is None:
            token_id = added.integer(text, 0, _MAX_TOKEN_ID)
            yield token_id, AddedToken(text, special=text in special)


def _added_token(fields: Fields) -> AddedToken:
    """Return a token with its flags, of which all may be absent."""
    special = fields.boolean("special", False)
    flags = {name: fields.boolean(name, False) for name in ("single_word", "lstrip", "rstrip")}
    normalized = fields.boolean("normalized", not special)
    return AddedToken(fields.text("content"), special=special, normalized=normalized, **flags)


def _add_tokens(backend: TokenizerBackend, tokens: Iterable[tuple[int, AddedToken]]) -> None:
    """Add tokens in the order of their ids, and give those that are there the flags of these.

    As transformers does, but for a token that would get another id: it is left out.
    """
    there = _tokens_there(backend)
    next_id = backend.get_vocab_size()
    changed = []
    for token_id, token in sorted(tokens, key=itemgetter(0)):
        if backend.token_to_id(token.content) is None:
            if token_id != next_id:
                continue
            next_id += 1
        if repr(token) != repr(there.get(token.content)):
            changed.append(token)
    backend.add_tokens(changed)


def _mark_special(backend: TokenizerBackend, settings: Fields) -> None:
    """Mark the tokens that the settings name as special, as transformers does.

    Their other flags stay.
    """
    there = _tokens_there(backend)
    marked = []
    for text in _special_tokens(settings).values():
        if backend.token_to_id(text) is not None:
            token = there.get(text, AddedToken(text, special=True))
            token.special = True
            marked.append(token)
    backend.add_special_tokens(marked)


def _tokens_there(backend: TokenizerBackend) -> dict[str, AddedToken]:
    return {token.content: token for token in backend.get_added_tokens_decoder().values()}


def _token_ids(fields: Fields, name: str) -> frozenset[int]:
    """Return the token ids of a field: an id, a list, or none (null; -1 in some old files)."""
    value = fields.get(name)
    values = value if isinstance(value, list) else [value]
    for item in values:
        if item is not None and (isinstance(item, bool) or not isinstance(item, int)):
            raise fields.error(name, "a token id or a list of them")
        if item is not None and item > _MAX_TOKEN_ID:
            raise fields.error(name, f"token ids up to {_MAX_TOKEN_ID}")
    return frozenset(item for item in values if item is not None and item >= 0)


def _read_optional(path: Path) -> Fields:
    return read_fields(path) if path.is_file() else Fields({}, str(path))


def _special_tokens(settings: Fields) -> dict[str, str]:
    """Return the special tokens by name; a token is a text, or an object with `content`."""
    tokens = {}
    for name in SPECIAL_TOKENS:
        value: Any = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if value is not None and not isinstance(value, str):
            raise settings.error(name, "a text, or an object with a text in content")
        if value is not None:
            tokens[name] = value
    return tokens


def _response_template(settings: Fields) -> dict[str, Any] | None:
    """Return how responses are to be read: untrusted data of any shape; None where it says nothing.

    Source of the names: transformers, "Response Parsing".
    """
    for name in ("response_template", "response_schema"):
        value: Any = settings.get(name)
        if isinstance(value, dict):
            return value
    return None


def _read_templates(directory: Path, settings: Fields) -> tuple[str | None, str | None]:
    """Return the chat template and the one for chats with tools, where that is another.

    A file of templates counts before tokenizer_config.json, as in transformers.
    """
    found = []
    for name in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        file = directory / name
        found.append(read_text(file, _MAX_TEMPLATE_BYTES) if file.is_file() else None)
    template, for_tools = found
    return _named_templates(settings) if template is None else (template, for_tools)


def _named_templates(settings: Fields) -> tuple[str | None, str | None]:
    """Return the template alone, or of a list those named "default" and "tool_use"."""
    value: Any = settings.get("chat_template")
    if value is None or isinstance(value, str):
        return value, None
    wanted = "a template, or a list of objects with texts in name and template"
    if not isinstance(value, list):
        raise settings.error("chat_template", wanted)
    named = {}
    for item in value:
        name = item.get("name") if isinstance(item, dict) else None
        template = item.get("template") if isinstance(item, dict) else None
        if not isinstance(name, str) or not isinstance(template, str):
            raise settings.error("chat_template", wanted)
        named[name] = template
    return named.get("default"), named.get("tool_use")
