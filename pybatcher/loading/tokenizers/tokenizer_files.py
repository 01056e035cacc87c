"""Read the files of a tokenizer, of its chat templates, and generation_config.json."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as TokenizerBackend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from ...errors import ModelFormatError
from ..checkpoints.fields import Fields
from ..checkpoints.json_file import read_bytes, read_optional, read_text
from ..checkpoints.loaded_model import TokenizerParts
from ..checkpoints.model_files import is_file
from .added_tokens import (
    MAX_TOKEN_ID,
    add_tokens,
    added_tokens,
    special_tokens,
    surround_as_set,
    surround_texts,
)
from .growth import check_growth
from .recommended_sampling import IN_GENERATION_CONFIG, recommended_sampling
from .sentencepiece_model import MAX_SENTENCEPIECE_BYTES, read_sentencepiece

__all__ = [
    "MAX_TOKENIZER_BYTES",
    "build_parts",
    "building_tokenizer",
    "lower_texts",
    "private_backend",
    "read_tokenizer",
]

MAX_TOKENIZER_BYTES = 512 * 2**20
_MAX_TEMPLATE_BYTES = 2**20
_LIKE_BERT = ("Bert", "DistilBert", "Electra", "ConvBert", "MobileBert", "SqueezeBert", "Lxmert")
"""The beginnings of names of tokenizer classes that are BERT's in transformers."""
_TOKENS_OF_BERT = {
    f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")
}


def read_tokenizer(directory: Path, config: Fields) -> TokenizerParts:
    """Read the tokenizer of a Hugging Face directory. Any of its files may be absent.

    config: config.json, used for token ids that no other file has. Only tokenizer.json decides
    which tokens are added around a text (BOS, for example), as in transformers 5. If it is
    absent, tokenizer.model is read, and tokenizer_config.json decides; or vocab.txt of a BERT.
    Raises ModelFormatError for a damaged file.
    """
    backend, settings = _read_backend(directory, _read_settings(directory), config)
    generation = read_optional(directory / "generation_config.json")
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

    The ids of BOS and EOS come from the first of three sources that has any: the generation
    configuration, the model's configuration, the tokenizer's settings. The EOS token of the
    tokenizer's settings always ends texts, as in vLLM: a model that was trained on chats may have
    its new EOS token only there. Raises ModelFormatError for a value of the wrong type.
    """
    named = special_tokens(settings)

    def of_tokenizer(name: str) -> frozenset[int]:
        token = named.get(f"{name}_token")
        token_id = None if backend is None or token is None else backend.token_to_id(token)
        return frozenset() if token_id is None else frozenset([token_id])

    def ids(name: str) -> frozenset[int]:
        field = f"{name}_token_id"
        return _token_ids(generation, field) or _token_ids(config, field) or of_tokenizer(name)

    return TokenizerParts(
        backend=backend,
        chat_template=chat_template,
        special_tokens=named,
        bos_token_id=min(ids("bos"), default=None),
        eos_token_ids=ids("eos") | of_tokenizer("eos"),
        response_template=_response_template(settings),
        tool_template=tool_template,
        sampling=recommended_sampling(generation, IN_GENERATION_CONFIG),
    )


def private_backend(text: str, source: str) -> TokenizerBackend:
    """Make a new tokenizer from its JSON, with padding and truncation switched off.

    Raises ModelFormatError, which names `source`, for JSON that is not a tokenizer, and for one
    that makes far too much of a text.
    """
    with building_tokenizer(source):
        backend = TokenizerBackend.from_str(text)
        backend.no_padding()
        backend.no_truncation()
        check_growth(backend, source)
    return backend


def lower_texts(tokenizer: TokenizerParts) -> None:
    """Convert texts to lower case before all else, as sentence-transformers' `do_lower_case` does.

    A tokenizer that has such a step already is not changed.
    """
    backend = tokenizer.backend
    if backend is None:
        return
    steps: Any = backend.normalizer
    listed = [steps] if steps else []
    if isinstance(steps, normalizers.Sequence):
        listed = [steps[i] for i in range(len(steps))]
    if not any(isinstance(step, normalizers.Lowercase) for step in listed):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *listed])


def _is_bert(settings: Fields, config: Fields) -> bool:
    """Return whether transformers opens the tokenizer with one of BERT's classes."""
    name = settings.text("tokenizer_class", None)
    if name is None and config.get("model_type") == "bert":
        name = "BertTokenizer"
    return (name or "").removesuffix("Fast").removesuffix("Tokenizer") in _LIKE_BERT


def _word_pieces(text: str, settings: Fields) -> TokenizerBackend:
    """Build BERT's tokenizer from the text of a vocab.txt, which has one token in each line.

    Raises ModelFormatError if a token that surrounds texts is not there.
    """
    ids = {token: i for i, token in enumerate(text.removesuffix("\n").split("\n"))}
    named = special_tokens(settings)
    first, last = named["cls_token"], named["sep_token"]
    for token in (first, last):
        if token not in ids:
            raise ModelFormatError(f"vocab.txt has no token {token!r}")
    backend = TokenizerBackend(models.WordPiece(ids, unk_token=named["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece("##")
    special = [named.get(name, token) for name, token in _TOKENS_OF_BERT.items()]
    backend.add_special_tokens([token for token in special if token in ids])
    surround_texts(backend, {"bos": (ids[first], first), "eos": (ids[last], last)})
    return backend


def _set_bert_normalizer(backend: TokenizerBackend, settings: Fields, config: Fields) -> None:
    """Normalise as `tokenizer_config.json` specifies if the tokenizer is BERT's.

    transformers ignores the normaliser in the tokenizer.json of such a tokenizer.
    """
    if not _is_bert(settings, config) or not isinstance(backend.model, models.WordPiece):
        return
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.boolean("tokenize_chinese_chars", True),
        strip_accents=None
        if settings.get("strip_accents") is None
        else settings.boolean("strip_accents", False),
        lowercase=settings.boolean("do_lower_case", True),
    )


def _read_backend(
    directory: Path, settings: Fields, config: Fields
) -> tuple[TokenizerBackend | None, Fields]:
    """Return the tokenizer, None without a file, and the settings with that file's own values."""
    added = dict(added_tokens(directory, settings))
    path = directory / "tokenizer.json"
    if is_file(path):
        with building_tokenizer(str(path)):
            backend = private_backend(read_text(path, MAX_TOKENIZER_BYTES), str(path))
            _set_bert_normalizer(backend, settings, config)
            add_tokens(backend, added, settings)
        return backend, settings
    path = directory / "tokenizer.model"
    words = directory / "vocab.txt"
    if not is_file(path) and is_file(words) and _is_bert(settings, config):
        settings = settings.with_defaults(_TOKENS_OF_BERT)
        with building_tokenizer(str(words)):
            backend = _word_pieces(read_text(words, MAX_TOKENIZER_BYTES), settings)
            _set_bert_normalizer(backend, settings, config)
            add_tokens(backend, added, settings)
            check_growth(backend, str(words))
        return backend, settings
    if not is_file(path):
        return None, settings
    model = read_sentencepiece(read_bytes(path, MAX_SENTENCEPIECE_BYTES), str(path))
    settings = settings.with_defaults(model.special_tokens)
    legacy = settings.boolean("legacy", "Llama" not in settings.text("tokenizer_class", ""))
    with building_tokenizer(str(path)):
        backend, added = model.build(added, legacy=legacy)
        add_tokens(backend, added, settings)
        surround_as_set(backend, settings)
        check_growth(backend, str(path))
        model.map_characters(backend)
    return backend, settings


@contextmanager
def building_tokenizer(source: str) -> Iterator[None]:
    """Raise ModelFormatError for any exception of the library while a tokenizer is built.

    source: the file, for the message.
    """
    try:
        yield
    except (ModelFormatError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises no more specific type, and panics
        raise ModelFormatError(f"{source}: not a valid tokenizer: {error}") from error


def _read_settings(directory: Path) -> Fields:
    """Read tokenizer_config.json.

    Older checkpoints, without `added_tokens_decoder`, also have the special tokens in
    special_tokens_map.json, which takes precedence.
    """
    settings = read_optional(directory / "tokenizer_config.json")
    if "added_tokens_decoder" in settings:
        return settings
    named = special_tokens(read_optional(directory / "special_tokens_map.json"))
    values = {name: settings.get(name) for name in settings.names()}
    return Fields({**values, **named}, settings.source)


def _token_ids(fields: Fields, name: str) -> frozenset[int]:
    """Return the token ids of a field: an id, a list, or none (null; -1 in some old files)."""
    value = fields.get(name)
    values = value if isinstance(value, list) else [value]
    for item in values:
        if item is not None and (isinstance(item, bool) or not isinstance(item, int)):
            raise fields.error(name, "a token id or a list of them")
        if item is not None and item > MAX_TOKEN_ID:
            raise fields.error(name, f"token ids up to {MAX_TOKEN_ID}")
    return frozenset(item for item in values if item is not None and item >= 0)


def _response_template(settings: Fields) -> dict[str, Any] | None:
    """Return the template for parsing responses, untrusted data of any shape; None if absent.

    transformers defines the names ("Response Parsing").
    """
    for name in ("response_template", "response_schema"):
        value: Any = settings.get(name)
        if isinstance(value, dict):
            return value
    return None


def _read_templates(directory: Path, settings: Fields) -> tuple[str | None, str | None]:
    """Return the chat template, and the template for chats with tools if that differs.

    A file of templates takes precedence over tokenizer_config.json, as in transformers, and that
    over chat_template.json, which models with a vision part have for their processor.
    """
    found = []
    for name in ("chat_template.jinja", "additional_chat_templates/tool_use.jinja"):
        file = directory / name
        found.append(read_text(file, _MAX_TEMPLATE_BYTES) if is_file(file) else None)
    template, for_tools = found
    if template is not None:
        return template, for_tools
    of_processor = directory / "chat_template.json"
    return _named_templates(
        settings if "chat_template" in settings else read_optional(of_processor)
    )


def _named_templates(settings: Fields) -> tuple[str | None, str | None]:
    """Return the only template and None, or the templates "default" and "tool_use" of a list."""
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
