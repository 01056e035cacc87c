from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sample_tokenizers import KINDS, build
from tokenizers import Regex, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from pybatcher.errors import InvalidRequestError, ModelFormatError
from pybatcher.loading.tokenizers.growth import growth_of
from pybatcher.testing.checkpoints import make_tokenizer
from pybatcher.text import Tokenizer

BACKEND = make_tokenizer()
TOKENIZER = Tokenizer(BACKEND, bos_token_id=0, eos_token_ids=[1, 3])


@settings(deadline=None)
@given(text=st.text(max_size=80), special=st.booleans())
@example(text="a<|im_start|>b", special=True)
def test_encodes_as_the_library_does(text: str, special: bool) -> None:
    expected = BACKEND.encode(text, add_special_tokens=special).ids
    assert TOKENIZER.encode(text, add_special_tokens=special) == expected
    plain = BACKEND.encode(text, add_special_tokens=False).ids
    if TOKENIZER.special_token_ids.isdisjoint(plain):
        assert TOKENIZER.decode(expected) == text
    else:  # hypothesis draws texts that it finds in the source, special tokens among them
        assert TOKENIZER.decode(expected) == BACKEND.decode(plain, skip_special_tokens=True)


@pytest.mark.parametrize("from_left", [False, True])
@pytest.mark.parametrize("most", [3, 7, 1000])
def test_cuts_a_text_as_the_library_does(most: int, from_left: bool) -> None:
    backend = make_tokenizer()
    special = [("a", 5), ("b", 6)]
    backend.post_processor = processors.TemplateProcessing(single="a $A b", special_tokens=special)
    tokenizer = Tokenizer(backend)
    text = "the fox said <|im_start|> that it was a fox" * 3
    found = tokenizer.encode_cut(text, most, from_left=from_left)
    backend.enable_truncation(most, direction="left" if from_left else "right")
    assert found == backend.encode(text).ids
    assert len(found) == min(most, len(tokenizer.encode_cut(text, 1000)))


def test_special_tokens_alone_are_more_than_the_limit() -> None:
    backend = make_tokenizer()
    special = [("a", 5), ("b", 6)]
    backend.post_processor = processors.TemplateProcessing(single="a $A b", special_tokens=special)
    with pytest.raises(InvalidRequestError, match=r"cut to 2 tokens, and the special .* are 2"):
        Tokenizer(backend).encode_cut("the fox", 2)


def test_special_tokens_are_added_only_when_asked_for() -> None:
    plain = TOKENIZER.encode("the fox", add_special_tokens=False)
    assert TOKENIZER.encode("the fox") == [0, *plain]
    assert TOKENIZER.encode("", add_special_tokens=False) == []
    assert 2 in TOKENIZER.encode("<|im_start|>", add_special_tokens=False)


def test_what_it_says_of_itself() -> None:
    assert TOKENIZER.vocab_size == 384
    assert TOKENIZER.bos_token_id == 0
    assert TOKENIZER.eos_token_ids == {1, 3}
    assert TOKENIZER.special_token_ids == {0, 1, 2, 3}
    assert TOKENIZER.available


def test_special_tokens_leave_a_trace_only_when_asked_to() -> None:
    token_ids = TOKENIZER.encode("the fox<|end|>")
    assert TOKENIZER.decode(token_ids) == "the fox"
    assert TOKENIZER.decode(token_ids, skip_special_tokens=False) == "<|begin|>the fox<|end|>"


@pytest.mark.parametrize("kind", KINDS)
def test_decodes_as_the_library_does(kind: str) -> None:
    backend = build(kind)
    token_ids = [1, 260, 5, 200, 259, 261]
    for skip in (True, False):
        expected = backend.decode(token_ids, skip_special_tokens=skip)
        assert Tokenizer(backend).decode(token_ids, skip_special_tokens=skip) == expected


def test_ids_that_no_token_has_leave_no_trace() -> None:
    (letter,) = TOKENIZER.encode("s", add_special_tokens=False)
    assert TOKENIZER.decode([-1, letter, 384, 2**31, 2**32, 2**70, letter]) == "ss"
    assert TOKENIZER.token(-1) is None
    assert TOKENIZER.token(2**40) is None
    assert TOKENIZER.token(letter) == "s"


@pytest.mark.parametrize("text", ["\ud800", "a fox \udfff", "\udc80x"])
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        TOKENIZER.encode(text)


@pytest.mark.parametrize("text", [None, 5, b"bytes", ["a"], ("a", "b")])
def test_what_is_no_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="must be str"):
        TOKENIZER.encode(text)


def test_without_a_backend_only_ids_can_be_served() -> None:
    tokenizer = Tokenizer(None, eos_token_ids=[7])
    assert not tokenizer.available
    assert tokenizer.eos_token_ids == {7}
    assert tokenizer.decode([1, 2, 3]) == ""
    with pytest.raises(InvalidRequestError, match=r"no tokenizer\.json.*token ids"):
        tokenizer.encode("text")


def test_a_tokenizer_that_fails_is_the_models_fault() -> None:
    settings = json.loads(BACKEND.to_str())
    settings["model"]["unk_token"] = "<no such token>"
    settings["model"]["vocab"] = {"a": 0}
    settings["model"]["merges"] = settings["added_tokens"] = []
    settings["post_processor"] = None
    failing = Tokenizer(Backend.from_str(json.dumps(settings)))
    with pytest.raises(ModelFormatError, match=r"the model's tokenizer failed: .*<no such token>"):
        failing.encode("b")


def test_a_panic_of_the_library_is_an_error_like_any_other() -> None:
    settings = json.loads(BACKEND.to_str())
    (template,) = (p for p in settings["post_processor"]["processors"] if "single" in p)
    template["single"][0]["SpecialToken"]["id"] = "<no such token>"
    panicking = Tokenizer(Backend.from_str(json.dumps(settings)))
    with pytest.raises(ModelFormatError, match="the model's tokenizer failed"):
        panicking.encode("b")
    assert panicking.encode("s", add_special_tokens=False) == [TOKENIZER.encode("s")[-1]]


def test_a_very_long_text() -> None:
    text = "the fox and the river, " * 20_000 + "a" * 100_000
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_threads_share_it() -> None:
    texts = [f"{n} foxes, {n * n} rivers 日本" * 50 for n in range(200)]
    expected = [BACKEND.encode(text).ids for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(TOKENIZER.encode, texts)) == expected
        assert list(pool.map(TOKENIZER.decode, expected)) == texts


@pytest.fixture
def patient_threads() -> Iterator[None]:
    """No thread is made to give up the GIL: another runs only where it is released."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("patient_threads")
@pytest.mark.parametrize("work", ["encode", "decode"])
def test_the_gil_is_released_while_a_long_text_is_handled(work: str) -> None:
    text = "the fox and the river, " * 10_000
    token_ids = TOKENIZER.encode(text)
    started, seen, done = threading.Event(), threading.Event(), threading.Event()

    def worker() -> None:
        started.set()
        for _ in range(200):  # each time another thread may run, which a busy machine wakes late
            if work == "encode":
                TOKENIZER.encode(text)
            else:
                TOKENIZER.decode(token_ids)
            if seen.is_set():
                break
        done.set()

    thread = threading.Thread(target=worker)
    thread.start()
    started.wait()
    ran_meanwhile = not done.is_set()
    seen.set()
    thread.join()
    assert ran_meanwhile


BYTES_OF = {kind: Tokenizer(build(kind)) for kind in KINDS}


@settings(deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.integers(0, 300), max_size=12))
def test_the_bytes_of_tokens_are_their_text(kind: str, ids: list[int]) -> None:
    tokenizer = BYTES_OF[kind]
    before = tokenizer.encode("s", add_special_tokens=False)[-1:]
    joined = b"".join(tokenizer.token_bytes(ids))
    text = tokenizer.decode(before, skip_special_tokens=False)
    whole = tokenizer.decode([*before, *ids], skip_special_tokens=False)
    try:
        assert text + joined.decode() == whole
    except UnicodeDecodeError:  # the library writes U+FFFD
        assert "\ufffd" in whole
    assert joined == b"".join(tokenizer.token_bytes([one])[0] for one in ids)


@pytest.mark.parametrize("kind", ["byte level", "llama"])
@given(st.text(max_size=20))
def test_a_part_of_a_character_has_its_own_bytes(kind: str, text: str) -> None:
    tokenizer = BYTES_OF[kind]
    spelled = tokenizer.token_bytes(tokenizer.encode(f"s{text}🦊日", add_special_tokens=False))
    joined = b"".join(spelled).decode().removeprefix(" ")
    assert joined == f"s{text}🦊日".replace("\u2581", " " if kind == "llama" else "\u2581")
    assert any(part not in (b"", part.decode("utf-8", "ignore").encode()) for part in spelled)


def test_ids_without_a_token_and_models_without_a_tokenizer_have_no_bytes() -> None:
    assert TOKENIZER.token_bytes([10**6, 2**40]) == [b"", b""]
    assert Tokenizer(None).token_bytes([1]) == [b""]
    assert Tokenizer(build("unknown")).token_bytes([10**6]) == [b""]


GROWING = normalizers.Sequence([normalizers.NFKD(), normalizers.Replace("e", "e" * 50)])


def bounded(backend: Backend) -> Tokenizer:
    return Tokenizer(backend, growth=growth_of(backend))


def growing() -> Tokenizer:
    backend = make_tokenizer()
    backend.normalizer = GROWING
    return bounded(backend)


def test_a_text_is_measured_after_each_step_of_the_normalizer() -> None:
    tokenizer = growing()
    text = "fee \ufdfa" * 1000
    assert tokenizer.normalized_length(text) == len(GROWING.normalize_str(text))
    shrinking = make_tokenizer()
    shrinking.normalizer = normalizers.Sequence([GROWING, normalizers.Replace("e", "")])
    assert bounded(shrinking).normalized_length(text) == len(GROWING.normalize_str(text))
    assert TOKENIZER.normalized_length(text) == len(text)
    seen: list[int] = []
    tokenizer.normalized_length(text, lambda n: bool(seen.append(n)))
    assert len(seen) == 1


def test_how_long_a_text_may_be_that_is_encoded_at_once() -> None:
    assert TOKENIZER.quick_length == Tokenizer(None).quick_length == 1024
    assert 0 < growing().quick_length < 10
    slow = make_tokenizer()
    slow.pre_tokenizer = pre_tokenizers.Split(Regex("(e|ee)+$"), "isolated")
    assert bounded(slow).quick_length == 0


@pytest.mark.parametrize("kind", KINDS)
def test_no_decoded_text_is_longer_than_was_told(kind: str) -> None:
    backend = build(kind)
    tokenizer = bounded(backend)
    token_ids = [*range(tokenizer.vocab_size), 10**6]
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    assert len(text) <= tokenizer.decoded_length(token_ids)
