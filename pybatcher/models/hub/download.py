"""Download a model with `huggingface_hub` into the hub's cache."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import ModelFormatError
from ...errors.checks import short
from ...errors.distribution import install_extra
from .hub_cache import COMMIT, write_ref
from .hub_files import (
    INDEX,
    WEIGHTS,
    chosen_gguf,
    chosen_mmproj,
    is_mmproj,
    names_in_index,
    parts_of,
    small_files,
)
from .hub_name import HubName, is_plain_path

__all__ = ["Counter", "Progress", "download"]

Progress = Callable[[int, int], object]
_TIMEOUT = 10.0  # seconds to wait for an answer


def download(name: HubName, cache: Path, progress: Progress | None) -> Path:
    """Download the files of a model that are not in the cache yet; return the model's path.

    Within a call, a file whose connection broke resumes where it ended; a later call begins such a
    file again, and skips whole files. Raises ModelFormatError if the model is not available, and
    the exceptions of `progress`.
    """
    with _told(name):
        import huggingface_hub

        return _Download(huggingface_hub, name, cache, progress).run()


class _Download:
    """One download. hub: the module `huggingface_hub`."""

    def __init__(self, hub: Any, name: HubName, cache: Path, progress: Progress | None) -> None:
        self._hub, self._name, self._cache, self._progress = hub, name, cache, progress
        self._endpoint = os.environ.get("HF_ENDPOINT") or None
        self._sizes: dict[str, int] = {}
        self._commit = ""
        self._wanted: set[str] = set()
        self._done = 0

    def run(self) -> Path:
        api = self._hub.HfApi(endpoint=self._endpoint, library_name="pybatcher")
        revision = self._name.revision
        info = api.model_info(
            self._name.repo, revision=revision, files_metadata=True, timeout=_TIMEOUT
        )
        if not isinstance(info.sha, str) or not COMMIT.fullmatch(info.sha):
            raise ModelFormatError(f"{short(self._name.text)}: the hub names no commit of it")
        self._commit = info.sha
        self._sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        path = self._files()
        write_ref(self._name, self._cache, self._commit)
        return path

    def _files(self) -> Path:
        gguf = chosen_gguf([*self._sizes], self._name)
        if gguf is not None:
            tower = None if is_mmproj(gguf) else chosen_mmproj(self._plain_ggufs(), gguf)
            files = parts_of(gguf)
            # The model comes last, so a model in the cache implies that its tower is there too.
            return self._get([*([tower] if tower else []), *files])[-len(files)]
        # Weights come last, so weights in the cache imply that the files beside them are there too.
        small = self._get(small_files(self._sizes, self._name))
        weights = [WEIGHTS]
        if WEIGHTS not in self._sizes:
            index = next(path for path in small if path.name == INDEX)
            weights = names_in_index(json.loads(index.read_bytes()))
            if not weights or not self._sizes.keys() >= {*weights}:
                raise ModelFormatError(
                    f"{short(self._name.text)}: {INDEX} names weights that the repository has not"
                )
        return self._get(weights)[0].parent

    def _plain_ggufs(self) -> list[str]:
        return [file for file in self._sizes if file.endswith(".gguf") and is_plain_path(file)]

    def _get(self, files: list[str]) -> list[Path]:
        self._wanted.update(files)
        return [self._get_one(file) for file in files]

    def _get_one(self, file: str) -> Path:
        path = self._hub.hf_hub_download(
            self._name.repo,
            file,
            revision=self._commit,
            cache_dir=self._cache,
            endpoint=self._endpoint,
            library_name="pybatcher",
            tqdm_class=self._bar,
        )
        self._done += self._sizes[file]
        self._report(0)
        return Path(path)

    def _bar(self, **settings: Any) -> Counter:
        return Counter(self._report, settings.get("initial") or 0)

    def _report(self, of_this_file: int) -> None:
        if self._progress is not None:
            total = sum(self._sizes[file] for file in self._wanted)
            try:
                self._progress(min(self._done + of_this_file, total), total)
            except BaseException as error:
                raise _EndedByCaller(error) from error


class Counter:
    """Counts the bytes of one file; has the methods of a progress bar that the library calls."""

    def __init__(self, report: Callable[[int], None], initial: int) -> None:
        self._report, self._n = report, initial

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def update(self, n: float = 1) -> None:
        """Count `n` more bytes; negative if the hub begins a file again."""
        self._n += int(n)
        self._report(self._n)

    def close(self) -> None:
        """Do nothing, since there is nothing to show or free."""


class _EndedByCaller(BaseException):
    """Ends the download with an exception of `progress`, whatever the library catches."""

    def __init__(self, reason: BaseException) -> None:
        self.reason = reason


@contextlib.contextmanager
def _told(name: HubName) -> Iterator[None]:
    """Convert errors of the library to a ModelFormatError that names the remedy."""
    shown = short(name.text)
    try:
        yield
    except ModelFormatError:
        raise
    except _EndedByCaller as ended:
        raise ended.reason from None
    except ImportError as error:
        raise ModelFormatError(
            f"{shown}: no such directory or GGUF file here, and as a name on the Hugging Face hub "
            f"it is not in the cache; to download it: {install_extra('hub')}"
        ) from error
    except Exception as error:  # from the library, its HTTP client or the disk
        raise ModelFormatError(f"{shown}: {_reason(error, name)}") from error


def _reason(error: Exception, name: HubName) -> str:
    kind = type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    if kind == "RevisionNotFoundError":
        return f"the hub has no revision {name.revision!r} of {name.repo}; leave out '@' for 'main'"
    if kind == "GatedRepoError" or status in (401, 403):
        return (
            f"no such directory or GGUF file here, and the hub says that {name.repo} is private or "
            f"gated, or not there: check the name, accept its terms at https://huggingface.co/"
            f"{name.repo}, and set HF_TOKEN or call `hf auth login`"
        )
    if kind == "RepositoryNotFoundError" or status == 404:
        return (
            f"no such directory or GGUF file here, and the hub has no repository {name.repo}; "
            "check the name, or give a path that begins with ./"
        )
    return (
        "no such directory or GGUF file here, and it could not be downloaded from the hub "
        f"({kind}: {str(error)[:300]}); try again: whole files are not downloaded again"
    )
