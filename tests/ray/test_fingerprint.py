from __future__ import annotations

from pathlib import Path

from pybatcher import Batcher
from pybatcher.ray.replica import fingerprint_of
from pybatcher.testing import fake_batcher
from pybatcher.testing.checkpoints import make_checkpoint


async def fingerprint(path: Path, **options: object) -> str:
    async with Batcher(path, **options) as batcher:
        return await fingerprint_of(batcher)


async def test_copies_of_a_model_have_one_and_other_weights_and_dtypes_another(
    tmp_path: Path,
) -> None:
    """A copy elsewhere has other inodes and times, and may have other threads and memory."""
    paths = [
        make_checkpoint(tmp_path / str(i), "llama", seed=seed, max_position_embeddings=200)
        for i, seed in enumerate((1, 1, 2))
    ]
    first = await fingerprint(paths[0], dtype="f32", n_threads=1)
    assert await fingerprint(paths[1], dtype="f32", n_threads=2, n_ctx=512) == first
    assert await fingerprint(paths[2], dtype="f32") != first
    other_dtype = await fingerprint(paths[0], dtype="bf16")
    assert other_dtype.partition("bits=")[2] != first.partition("bits=")[2]


async def test_it_names_what_has_to_be_the_same() -> None:
    async with fake_batcher(n_ctx=256) as batcher:
        assert " cpu_target=fake device=cpu dtype=none kv_dtype=none bits=" in (
            await fingerprint_of(batcher)
        )
