"""Images of a connection: kept within a limit, dropped for others, and refused if damaged."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import pytest

from pybatcher.errors import InvalidRequestError
from pybatcher.sidecar.protocol.limits import Limits
from pybatcher.sidecar.session.images import SessionImages

KIB = 1024
LIMITS = Limits(image_bytes=100 * KIB)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def send(images: SessionImages, data: bytes, step: int = 5000) -> str:
    digest = digest_of(data)
    for i in range(0, len(data), step):
        images.add([digest, len(data), i, data[i : i + step]])
    return digest


def test_an_image_is_there_once_its_last_bytes_came() -> None:
    images, data = SessionImages(LIMITS), os.urandom(12_000)
    digest = digest_of(data)
    for i in (0, 5000):
        images.add([digest, 12_000, i, data[i : i + 5000]])
        assert images.get(digest) is None
    images.add([digest, 12_000, 10_000, data[10_000:]])
    assert images.get(digest) == data
    n_bytes = images.n_bytes
    send(images, data)  # again
    assert images.n_bytes == n_bytes
    images.clear()
    assert (images.get(digest), images.n_bytes) == (None, 0)


def test_images_that_were_not_used_for_longest_make_room() -> None:
    images = SessionImages(LIMITS)
    data = [os.urandom(30 * KIB) for _ in range(4)]
    digests = [send(images, one) for one in data[:3]]
    assert images.get(digests[0]) == data[0]
    digests.append(send(images, data[3]))
    assert [images.get(one) is not None for one in digests] == [True, False, True, True]
    assert images.n_bytes <= LIMITS.image_bytes


def test_an_image_beyond_the_limit_is_dropped() -> None:
    images = SessionImages(LIMITS)
    digest = send(images, os.urandom(50 * KIB))
    large = os.urandom(200 * KIB)
    assert images.get(send(images, large)) is None
    assert images.get(digest) is not None
    assert images.n_bytes == 51 * KIB


def test_a_wrong_digest_drops_the_image() -> None:
    images = SessionImages(LIMITS)
    digest = digest_of(b"right")
    images.add([digest, 5, 0, b"wrong"])
    assert (images.get(digest), images.n_bytes) == (None, 0)
    images.add([digest, 5, 0, b"right"])
    assert images.get(digest) == b"right"


def test_an_image_may_begin_again_but_has_no_gaps() -> None:
    images = SessionImages(LIMITS)
    digest = digest_of(b"abcd")
    for size, offset, data in ((4, 0, b"xy"), (4, 0, b"ab"), (4, 3, b"d"), (4, 2, b"cd")):
        images.add([digest, size, offset, data])
    assert (images.get(digest), images.n_bytes) == (None, 0)  # dropped at the gap
    for size, offset, data in ((4, 0, b"xy"), (4, 0, b"ab"), (4, 2, b"cd")):
        images.add([digest, size, offset, data])
    assert images.get(digest) == b"abcd"


DIGEST = digest_of(b"some")


@pytest.mark.parametrize(
    "params",
    [
        [],
        [DIGEST],
        [DIGEST, 4, b"some"],
        [DIGEST, 4, 0, b"some", 5],
        [None, 4, 0, b"some"],
        [DIGEST.encode(), 4, 0, b"some"],
        ["x", 4, 0, b"some"],
        ["0" * 10**6, 4, 0, b"some"],
        [DIGEST, "4", 0, b"some"],
        [DIGEST, True, 0, b"s"],
        [DIGEST, 4.0, 0, b"some"],
        [DIGEST, -4, 0, b"some"],
        [DIGEST, 0, 0, b""],
        [DIGEST, 3, 0, b"some"],
        [DIGEST, 4, 1, b"some"],
        [DIGEST, 4, -1, b"some"],
        [DIGEST, 4, False, b"some"],
        [DIGEST, 4, None, b"some"],
        [DIGEST, 2**70, 0, ""],
        [DIGEST, 4, 0, "some"],
        [DIGEST, 4, 0, None],
        [DIGEST, 4, 0, [115]],
        [DIGEST, 4, 0, b""],
    ],
)
def test_odd_params_are_refused_and_leave_nothing(params: list[Any]) -> None:
    images = SessionImages(LIMITS)
    with pytest.raises(InvalidRequestError) as raised:
        images.add(params)
    assert len(str(raised.value)) < 500
    assert images.n_bytes == 0


def test_images_without_an_end_are_few_and_counted() -> None:
    images = SessionImages(LIMITS)
    for i in range(10_000):
        images.add([digest_of(str(i).encode()), 9000, 0, b"x"])
    assert images.n_bytes == 64 * (KIB + 1)
    for i in range(10_000):
        send(images, f"tiny {i}".encode())
        assert images.n_bytes <= LIMITS.image_bytes


def test_without_memory_images_make_room_and_new_ones_are_dropped() -> None:
    free = 2**30
    images = SessionImages(Limits(free_memory=lambda: free))
    digest = send(images, os.urandom(50 * KIB))
    assert images.get(digest) is not None
    free = 2**22 + 20 * KIB - 50 * KIB
    later = send(images, os.urandom(4000))
    assert images.get(digest) is None
    assert images.get(later) is not None
    free = 0
    assert images.get(send(images, os.urandom(4000))) is None
    assert images.n_bytes == 0
