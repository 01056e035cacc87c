"""Describe images, all at once, and print each description when it is complete.

    python examples/describe.py MODEL IMAGE [IMAGE ...]

MODEL is a model with a vision tower: a directory, or a name on the hub such as
"Qwen/Qwen3-VL-2B-Instruct". Needs Pillow: pip install 'pybatcher-engine[images]'.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pybatcher import Batcher, InvalidRequestError


async def describe(batcher: Batcher, image: Path) -> None:
    """Print the description of one image, or why there is none."""
    content = [
        {"type": "image", "image": image},
        {"type": "text", "text": "Describe this image in one sentence."},
    ]
    try:
        answer = await batcher.chat([{"role": "user", "content": content}], max_tokens=80)
    except (InvalidRequestError, OSError) as error:  # of this image alone
        print(f"{image}: {error}")
        return
    print(f"{image}: {answer.text.strip()} ({answer.usage.image_tokens} image tokens)")


async def main(model: str, *images: str) -> None:
    """Describe the images together: their patches share the passes of the vision tower."""
    async with Batcher(model) as batcher:
        await asyncio.gather(*(describe(batcher, Path(image)) for image in images))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    asyncio.run(main(*sys.argv[1:]))
