"""The files of a repository that are downloaded: never code, never a pickle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...errors import ModelFormatError
from ...errors.checks import short
from .hub_name import HubName, is_plain_path

__all__ = [
    "INDEX",
    "TOKENIZERS",
    "WEIGHTS",
    "chosen_gguf",
    "chosen_mmproj",
    "is_mmproj",
    "matching",
    "names_in_index",
    "parts_of",
    "small_files",
]

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model")
_SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.txt",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    "modules.json",
    "config_sentence_transformers.json",
    *(
        f"sentence_{kind}_config.json"
        for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
    INDEX,
)
_MODULE = re.compile(r"\d_(Pooling|Dense|Normalize)/(config\.json|model\.safetensors)")
"""The files of sentence-transformers' modules."""
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MMPROJ = re.compile(r"(^|[-._])mmproj([-._]|$)", re.I)
_TYPE = re.compile(r"(?<=[-._])(bf16|f16|f32|fp16|fp32|q[0-9][_0-9a-z]*)(?=[-._])", re.I)
"""The type of the numbers in a GGUF file, as a part of its name."""
_TYPES = ("bf16", "f16", "fp16", "q8_0", "f32", "fp32")
"""The types of mmproj files, the preferred one first: nearest to the published one, and small."""
_MOST_NAMES = 12  # file names in a message


def small_files(files: Iterable[str], name: HubName) -> list[str]:
    """Return the files beside the weights of a model in safetensors files.

    Raises ModelFormatError for a repository without such weights.
    """
    files = list(files)
    there = set(files)
    if "config.json" in there and {WEIGHTS, INDEX} & there:
        wanted = there - ({INDEX} if WEIGHTS in there else set())
        if "tokenizer.json" in there:
            wanted.discard("tokenizer.model")
        if not there.isdisjoint(TOKENIZERS):
            wanted.discard("vocab.txt")
        modules = sorted(file for file in files if _MODULE.fullmatch(file))
        return [file for file in _SMALL if file in wanted] + modules * ("modules.json" in wanted)
    raise ModelFormatError(
        f"{short(name.text)}: the repository has no config.json with {WEIGHTS}, and no .gguf; "
        "nothing else is loaded, pickles (.bin, .pt) least of all: name a repository with "
        "safetensors files, or with a GGUF file"
    )


def names_in_index(index: object) -> list[str]:
    """Return the files that an index of weights names; none if one of them is no plain name."""
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    if not all(isinstance(name, str) and _is_weights(name) for name in names):
        return []
    return sorted(names)


def chosen_gguf(files: Sequence[str], name: HubName) -> str | None:
    """Return the one GGUF file that a name stands for; None if it stands for a directory.

    It is the first part of a model in several files, and all parts are in `files`. Raises
    ModelFormatError if the name matches no file or several, or if a part is absent.
    """
    ggufs = [file for file in files if file.endswith(".gguf") and is_plain_path(file)]
    has_weights = bool({WEIGHTS, INDEX} & set(files))
    if name.file is None and name.kind is None and (has_weights or not ggufs):
        return None
    chosen = [name.file] if name.file in ggufs else []
    if name.file is None:
        chosen = matching(ggufs, name.kind)
    if len(chosen) != 1:
        found = f"{len(chosen) or 'none'} of"
        listed = ", ".join(ggufs[:_MOST_NAMES]) + (", ..." if len(ggufs) > _MOST_NAMES else "")
        raise ModelFormatError(
            f"{short(name.text)}: that is {found} the repository's GGUF files "
            f"({listed or 'it has none'}); name one, as 'hf:{name.repo}/FILE.gguf'"
        )
    parts = parts_of(chosen[0])
    missing = [part for part in parts if part not in ggufs]
    if missing:
        raise ModelFormatError(
            f"{short(name.text)}: the repository has no {missing[0]}, a part of {chosen[0]}"
        )
    if chosen[0] != parts[0]:
        raise ModelFormatError(
            f"{short(name.text)}: {chosen[0]} is a part of a model in {len(parts)} files; name the "
            f"first, 'hf:{name.repo}/{parts[0]}'"
        )
    return chosen[0]


def matching(files: Iterable[str], kind: str | None) -> list[str]:
    """Return the models among GGUF files: all, or those whose names contain `kind`.

    A model in several files is told by the name of its first part, which may be absent.
    """
    names = [file for file in files if not is_mmproj(file)]
    models = list(dict.fromkeys(parts_of(file)[0] for file in names))
    if kind is None:
        return models
    ending = re.compile(rf"(^|[-._/]){re.escape(kind)}(-\d{{5}}-of-\d{{5}})?\.gguf$", re.I)
    return [file for file in models if ending.search(file)]


def is_mmproj(file: str) -> bool:
    """Return True if a file, by its name, has the vision tower of a model and not the model."""
    return _MMPROJ.search(file.rsplit("/", 1)[-1]) is not None


def chosen_mmproj(files: Iterable[str], model: str) -> str | None:
    """Return the file with the vision tower of a GGUF model; None: no file seems to be that.

    files: GGUF files of the model's folder or repository. model: the model's file.

    The words of the file's name must be words of the model's name, apart from "mmproj", "model" and
    the type of the numbers. The file with the most words is chosen, of these the preferred type.
    If `model` is the only model, one file with other words is chosen too.
    """
    files = list(files)
    found = sorted(file for file in files if file.endswith(".gguf") and is_mmproj(file))
    words = _words(model)
    fitting = [file for file in found if _words(file) <= words]
    if not fitting and len(matching(files, None)) == 1 and len({*map(_words, found)}) == 1:
        fitting = found
    return min(fitting, key=lambda file: (-len(_words(file)), _rank(file)), default=None)


def _words(file: str) -> frozenset[str]:
    """Return the words of a GGUF file's name that tell the model."""
    name = _TYPE.sub("", parts_of(file)[0].rsplit("/", 1)[-1].lower())
    return frozenset(re.split(r"[-._]+", name)) - {"", "gguf", "mmproj", "model"}


def _rank(file: str) -> int:
    found = _TYPE.search(file)
    kind = "" if found is None else found[0].lower()
    return _TYPES.index(kind) if kind in _TYPES else len(_TYPES)


def parts_of(file: str) -> list[str]:
    """Return the names of all files of the model that a GGUF file belongs to.

    gguf-split names parts NAME-00001-of-0000N.gguf. Any other file is the only one of its model.
    """
    found = _PART.fullmatch(file)
    if found is None:
        return [file]
    stem, count = found["stem"], found["count"]
    return [f"{stem}-{i:05}-of-{count}.gguf" for i in range(1, int(count) + 1)] or [file]


def _is_weights(name: str) -> bool:
    return "/" not in name and name.endswith(".safetensors") and is_plain_path(name)
