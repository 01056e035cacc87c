"""The example that describes images: each file by itself, and a bad one alone fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.vision_checkpoints import make_vision_checkpoint, picture


def test_images_are_described(examples: Path, tmp_path: Path) -> None:
    make_vision_checkpoint(tmp_path / "model", "qwen3_vl")
    picture(40, 60).save(tmp_path / "one.png")
    picture(50, 30).save(tmp_path / "two.jpg")
    (tmp_path / "three.png").write_bytes(b"no image")
    files = ["one.png", "two.jpg", "three.png", "four.png"]
    done = subprocess.run(
        [sys.executable, str(examples / "describe.py"), "model", *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert sorted(lines) == sorted(files)
    assert all("image tokens" in lines[name] for name in files[:2])
    assert "three.png" in done.stdout
    assert "image tokens" not in lines["three.png"] + lines["four.png"]
