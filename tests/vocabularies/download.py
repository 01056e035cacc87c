"""Downloads llama.cpp's test vocabularies into build/vocabularies: `make test-vocabularies`.

They are in the source distribution of llama-cpp-python, which is read and not built. None of them
is part of this project.
"""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "templates"))

from download import SOURCES, get_archive

_FOLDER = "vendor/llama.cpp/models"


def main(folder: Path) -> int:
    """Download what is not there yet; return the status of the program."""
    source = next(each for each in SOURCES if each.package == "llama-cpp-python")
    target = folder / source.name
    if target.is_dir():
        return 0
    archive = get_archive(source, "The vocabularies are", "tests/vocabularies")
    if archive is None:
        return 1
    unfinished = folder / f"{source.name}.unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    for name, contents in _vocabularies(archive):
        (unfinished / name).write_bytes(contents)
    unfinished.rename(target)
    print(f"{len([*target.glob('*.gguf')])} vocabularies of {source.name} in {target}")
    return 0


def _vocabularies(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Return the names and contents of vocabularies, of test texts and of their ids."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        for member in members:
            path = PurePosixPath(member.name)
            inside = "/".join(path.parts[1:-1])
            file = members.extractfile(member) if member.isfile() else None
            if inside == _FOLDER and path.name.startswith("ggml-vocab-") and file is not None:
                yield path.name, file.read()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
