from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.sentence_transformers import read_embedding_defaults
from pybatcher.params.embedding_defaults import EmbeddingDefaults

TRANSFORMER = {
    "idx": 0,
    "name": "0",
    "path": "",
    "type": "sentence_transformers.models.Transformer",
}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
LAST = {
    "word_embedding_dimension": 1024,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_lasttoken": True,
    "include_prompt": True,
}
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": None}


def read(directory: Path, *modules: Any, pooling: Any = LAST) -> EmbeddingDefaults:
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "modules.json").write_text(json.dumps(modules))
    return read_embedding_defaults(directory)


def test_what_the_files_say(tmp_path: Path) -> None:
    assert read_embedding_defaults(tmp_path) == EmbeddingDefaults("last", False)
    whole = (TRANSFORMER, POOLING, NORMALIZE)
    assert read(tmp_path, *whole) == EmbeddingDefaults("last", True)
    assert read(tmp_path, *whole[:2], pooling=MEAN) == EmbeddingDefaults("mean", False)
    newer = {"embedding_dimension": 8, "pooling_mode": "mean"}
    assert read(tmp_path, *whole, pooling=newer) == EmbeddingDefaults("mean", True)
    newer["pooling_mode"] = "lasttoken"
    assert read(tmp_path, *whole, pooling=newer) == EmbeddingDefaults("last", True)


@pytest.mark.parametrize(
    ("modules", "pooling", "said"),
    [
        ((TRANSFORMER,), LAST, "modules.json: texts are pooled by ''; expected 'lasttoken' or"),
        ((POOLING,), {"pooling_mode_cls_token": True}, "pooled by 'cls'"),
        ((POOLING,), {**LAST, **MEAN, "pooling_mode_lasttoken": True}, r"by 'lasttoken\+mean'"),
        ((POOLING,), {"pooling_mode": "max"}, "pooled by 'max'"),
        ((POOLING,), {"pooling_mode": 3}, "1_Pooling/config.json: pooling_mode is 3"),
        ((POOLING,), {"pooling_mode_lasttoken": 1}, "pooling_mode_lasttoken is 1"),
        ((POOLING,), [], "1_Pooling/config.json: found"),
        ((POOLING, {"type": "sentence_transformers.models.Dense"}), LAST, "type is .*Dense"),
        ((3,), LAST, "modules.json: found 3; expected a module"),
        (({"path": "x"},), LAST, "type is missing"),
        (({**POOLING, "path": "../1_Pooling"},), LAST, r"path is '\.\./1_Pooling'"),
        (({**POOLING, "path": ".."},), LAST, r"path is '\.\.'"),
        (({**POOLING, "path": "/etc"},), LAST, "path is '/etc'"),
        (({**POOLING, "path": "2_Pooling"},), LAST, "2_Pooling/config.json: no such file"),
    ],
)
def test_what_the_engine_has_not_is_refused_by_name(
    modules: tuple[Any, ...], pooling: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read(tmp_path, *modules, pooling=pooling)


def test_a_file_that_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(ModelFormatError, match=r"modules\.json: found {}; expected a JSON list"):
        read_embedding_defaults(tmp_path)
