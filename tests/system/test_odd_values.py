"""Any argument of any call may be anything: the call ends, typed, and harms nobody else.

Arguments are found by looking at the methods, so that a new one is tested as soon as there is one.
PYBATCHER_ODD_SEED and PYBATCHER_ODD_CALLS (for each way in) make it another, and a longer, test.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import inspect
import os
import reprlib
import threading
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import islice
from random import Random
from typing import Any

import msgpack
import pytest
from odd_values import ClassTrap, odd_value
from session_helpers import Peer

from bench.serving.sidecar_process import Sidecar, open_sidecar
from pybatcher import (
    Batcher,
    BlockingBatcher,
    BlockingClient,
    Client,
    InvalidRequestError,
    PybatcherError,
    SamplingParams,
    errors,
)
from pybatcher.params import JsonSchema
from pybatcher.params.config import EngineConfig, SchedulerConfig, SupervisionConfig

SEED = int(os.environ.get("PYBATCHER_ODD_SEED", "1"))
N_CALLS = int(os.environ.get("PYBATCHER_ODD_CALLS", "60"))
PATIENCE = 60.0  # seconds after which a call counts as hung
OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_parallel": 4, "n_threads": 1, "max_prefixes": 4}
HONEST = {"max_tokens": 12, "temperature": 1.0, "seed": 7, "ignore_eos": True}
PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Hello"}]
GOOD: dict[str, Any] = {
    "content": PROMPT,
    "continuations": [" a", " b"],
    "items": [PROMPT, [65, 66]],
    "messages": MESSAGES,
    "name": "odd",
    "prefix": PROMPT,
    "prompt": PROMPT,
    "room": 64,
    "texts": ["one", [65, 66]],
    "token_ids": [65, 66],
    "tools": [],
}
LIFE = {"start", "close", "over", "from_torch", "reload", "attach"}
GENERATING = {"generate", "chat", "stream", "stream_chat", "act", "map"}
ITERATED = {"stream", "stream_chat", "map"}
MOST_RESULTS = 20  # of a map, whose items may be endless
FUNCTIONS = {"progress"}  # of the caller, whose errors are its own


def arguments_of(name: str) -> list[str]:
    """The names of all arguments of a call, those of its options too."""
    method = getattr(Batcher, name)
    found = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind is not parameter.VAR_KEYWORD:
            found.append(parameter.name)
            continue
        hint = typing.get_type_hints(method, include_extras=True).get(parameter.name)
        for options in typing.get_args(hint):
            found += typing.get_type_hints(options)
    if name in GENERATING:
        found += [field.name for field in dataclasses.fields(SamplingParams)]
    return list(dict.fromkeys(found))


CALLS = [
    name
    for name, member in inspect.getmembers(Batcher, inspect.isfunction)
    if not name.startswith("_") and name not in LIFE and arguments_of(name)
]


def test_every_call_and_argument_is_found() -> None:
    wanted = "add_prefix chat detokenize embed generate remove_prefix score stream stream_chat"
    assert set(CALLS) >= {*wanted.split(), "tokenize", "act", "map", "trim"}
    assert {"prompt", "namespace", "timeout", "output", "stop"} <= set(arguments_of("generate"))
    for kind in (Client, BlockingBatcher, BlockingClient):
        assert all(callable(getattr(kind, name)) for name in CALLS)


def odd_call(random: Random) -> tuple[str, dict[str, Any], bool]:
    """A call, its arguments, and whether a name of theirs is wrong."""
    name = random.choice(CALLS)
    names = [one for one in arguments_of(name) if one not in FUNCTIONS]
    good = {one: GOOD[one] for one in names if one in GOOD}
    if name in GENERATING:
        good["max_tokens"] = 3
    is_wrong = random.random() < 0.03
    n_odd = min(len(names), random.choice([1, 1, 1, 2, 3]))
    odd = {one: odd_value(random) for one in random.sample(names, n_odd)}
    if is_wrong:
        odd["no_such_argument"] = odd_value(random)
    return name, {**good, **odd}, is_wrong


async def outcome(call: Callable[[], Awaitable[Any]], what: str, is_wrong: bool) -> None:
    """It ends with a result or a PybatcherError, or as Python does for a wrong name."""
    try:
        async with asyncio.timeout(PATIENCE):
            await call()
    except PybatcherError as error:
        str(error).encode()  # it can be shown, and sent
    except TypeError:
        assert is_wrong, what
    except TimeoutError:
        pytest.fail(f"it hangs: {what}")
    except BaseException as error:
        if not isinstance(error, (KeyboardInterrupt, SystemExit, pytest.fail.Exception)):
            error.add_note(what)
        raise


async def read_all(stream: Any, name: str) -> None:
    """Read a stream, or as much of a map as is enough."""
    n_read = 0
    async for _ in stream:
        n_read += 1
        if name == "map" and n_read == MOST_RESULTS:
            break
    await stream.aclose()


class Honest:
    """Seeded streams that run beside, and are looked at each time they end."""

    def __init__(self, generate: Callable[..., Awaitable[Any]]) -> None:
        self._generate = generate
        self._task: asyncio.Task[None] | None = None
        self._ends = False
        self.n = 0

    async def __aenter__(self) -> Honest:
        self._expected = await self._tokens()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ends = True
        assert self._task is not None
        await self._task
        assert self.n

    async def _tokens(self) -> list[tuple[int, ...]]:
        asked = [self._generate(prompt, **HONEST) for prompt in (PROMPT, "There was a fox")]
        return [completion.token_ids for completion in await asyncio.gather(*asked)]

    async def _run(self) -> None:
        while not self._ends or not self.n:
            assert await self._tokens() == self._expected
            self.n += 1


async def check_unharmed(batcher: Any) -> None:
    """Ready, never restarted, and once its prefixes are removed all KV is free."""

    async def ask(question: Callable[[], Any]) -> Any:
        answer = question()
        return await answer if inspect.isawaitable(answer) else answer

    assert (await ask(batcher.health)).status == "ready"
    for info in await ask(batcher.prefixes):
        for _ in range(info.holders if info.name is not None else 0):
            await batcher.remove_prefix(info.name, info.namespace)
    async with asyncio.timeout(PATIENCE):
        while True:
            counts = await ask(batcher.statistics)
            if not counts.running and not counts.queued:
                break
            await asyncio.sleep(0.01)
    assert counts.restarts == 0
    assert counts.kv_free_blocks + counts.kv_cached_blocks == counts.kv_total_blocks


async def play(
    ask: Callable[[str, dict[str, Any]], Awaitable[Any]], seed: object, batcher: Any
) -> None:
    random = Random(f"{SEED} {seed}")
    async with Honest(batcher.generate):
        for i in range(N_CALLS):
            name, arguments, is_wrong = odd_call(random)
            shown = {key: _short(value) for key, value in arguments.items()}
            what = f"seed {SEED}, call {i}: {name}({shown})"
            await outcome(lambda a=arguments, n=name: ask(n, a), what, is_wrong)  # type: ignore[misc]
    await check_unharmed(batcher)


def _short(value: object) -> str:
    try:
        return reprlib.repr(value)[:200].encode("ascii", "backslashreplace").decode()
    except Exception:
        return f"<{type(value).__name__}>"


def direct(batcher: Any) -> Callable[[str, dict[str, Any]], Awaitable[Any]]:
    async def ask(name: str, arguments: dict[str, Any]) -> None:
        if name in ITERATED:
            await read_all(getattr(batcher, name)(**arguments), name)
        else:
            await getattr(batcher, name)(**arguments)

    return ask


def blocking(batcher: Any, threads: concurrent.futures.Executor) -> Any:
    def call(name: str, arguments: dict[str, Any]) -> None:
        result = getattr(batcher, name)(**arguments)
        if name in ITERATED:
            with result:
                for _ in islice(result, MOST_RESULTS if name == "map" else None):
                    pass

    async def ask(name: str, arguments: dict[str, Any]) -> None:
        await asyncio.get_running_loop().run_in_executor(threads, call, name, arguments)

    return ask


class Awaited:
    """A blocking batcher with methods that are awaited."""

    def __init__(self, batcher: Any) -> None:
        self._batcher = batcher

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: asyncio.to_thread(
            getattr(self._batcher, name), *args, **kwargs
        )


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    with open_sidecar(**OPTIONS) as running:
        asyncio.run(running.ready())
        yield running
        assert "Traceback" not in running.said()
        running.close()


async def test_over_a_batcher() -> None:
    async with Batcher(**OPTIONS) as batcher:
        await play(direct(batcher), "batcher", batcher)


async def test_what_raises_when_it_is_asked_what_it_is_is_the_callers_fault() -> None:
    """In the place of every argument; none is taken for a fault of the engine or the program."""
    async with Batcher(**OPTIONS) as batcher:
        for name in CALLS:
            names = arguments_of(name)
            for one in names:
                arguments = {other: GOOD[other] for other in names if other in GOOD}
                if name in GENERATING:
                    arguments["max_tokens"] = 1
                with suppress(InvalidRequestError):
                    await direct(batcher)(name, {**arguments, one: ClassTrap()})
        await check_unharmed(batcher)


async def test_over_the_threadsafe_batcher() -> None:
    async with Batcher(**OPTIONS) as batcher:

        async def ask(name: str, arguments: dict[str, Any]) -> None:
            asked = getattr(batcher.threadsafe, name)(**arguments)
            if name in ITERATED:
                await read_all(asked, name)
            else:
                await asyncio.wrap_future(asked)

        await play(ask, "threadsafe", batcher)


async def test_over_a_blocking_batcher() -> None:
    with (
        BlockingBatcher(**OPTIONS) as batcher,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):
        await play(blocking(batcher, threads), "blocking", Awaited(batcher))


async def test_over_a_client(sidecar: Sidecar) -> None:
    async with Client(sidecar.socket) as client:
        await play(direct(client), "client", client)


async def test_over_a_blocking_client(sidecar: Sidecar) -> None:
    with (
        BlockingClient(sidecar.socket) as client,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):
        await play(blocking(client, threads), "blocking client", Awaited(client))


# -- raw frames -----------------------------------------------------------------------------


@asynccontextmanager
async def raw_peer(sidecar: Sidecar) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_unix_connection(sidecar.socket)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


def n_values(value: object, most: int = 100_000) -> int:
    """How many values it is made of, counted up to `most`."""
    if type(value) is dict:
        inner: Any = [*value, *value.values()]
    else:
        inner = value if type(value) in (list, tuple) else ()
    n = 1
    for one in inner:
        if n >= most:
            break
        n += n_values(one, most - n)
    return n


def packable(value: object) -> object:
    """It as a frame can hold it, or its name."""
    try:
        if (
            n_values(value) < 100_000
            and len(msgpack.packb(value, unicode_errors="surrogatepass")) < 4_000_000
        ):
            return value
    except Exception:  # whatever the packer and the value's own methods raise
        pass
    return type(value).__name__


def odd_frame(random: Random) -> tuple[str, list[Any]]:
    """A method, and params of which one, or an option, is odd."""
    name, arguments, _ = odd_call(random)
    name = name.replace("stream_chat", "chat").replace("stream", "generate")
    needed = {
        "generate": ["prompt"],
        "chat": ["messages"],
        "score": ["prompt", "continuations"],
        "embed": ["texts"],
        "add_prefix": ["prefix"],
        "remove_prefix": ["name"],
        "tokenize": ["content"],
        "detokenize": ["token_ids"],
        "token_bytes": ["token_ids"],
    }.get(name, [])
    params = [packable(arguments.pop(one, odd_value(random))) for one in needed]
    opts = {key: packable(value) for key, value in arguments.items()}
    if opts or random.random() < 0.3:
        params.append(opts)
    if random.random() < 0.1:
        params = [packable(odd_value(random)) for _ in range(random.randrange(4))]
    return name, params


async def test_over_raw_frames(sidecar: Sidecar) -> None:
    random = Random(f"{SEED} frames")
    async with Client(sidecar.socket) as client, Honest(client.generate):
        for _ in range(N_CALLS):
            name, params = odd_frame(random)
            async with asyncio.timeout(PATIENCE), raw_peer(sidecar) as peer:
                try:
                    error, _ = await peer.answer(peer.request(name, *params))
                except EOFError:
                    continue  # the frame itself was too much
            known = error is None or error.get("type") in (None, *errors.__all__)
            assert known, (name, _short(params), error)
    async with Client(sidecar.socket) as client:
        await check_unharmed(client)


# -- constructors ---------------------------------------------------------------------------


CONSTRUCTORS: list[tuple[Callable[..., Any], list[str]]] = [
    (Batcher, ["model", "system_prompt", "progress", "on_failure"]),
    (BlockingBatcher, ["model", "system_prompt", "progress"]),
    (Client, ["path", "idempotent", "connect_timeout"]),
    (BlockingClient, ["path", "idempotent", "connect_timeout"]),
    *(
        (kind, [field.name for field in dataclasses.fields(kind)])
        for kind in (SamplingParams, EngineConfig, SchedulerConfig, SupervisionConfig)
    ),
]


@pytest.mark.parametrize(
    ("make", "names"), CONSTRUCTORS, ids=lambda one: getattr(one, "__name__", "")
)
@pytest.mark.filterwarnings("ignore:n_ubatch")
def test_constructors(make: Callable[..., Any], names: list[str]) -> None:
    random = Random(f"{SEED} {make.__name__}")
    options = [
        field.name
        for kind in (EngineConfig, SchedulerConfig, SupervisionConfig)
        for field in dataclasses.fields(kind)
    ]
    names = names + (options if "model" in names else [])
    n_before = threading.active_count()
    for i in range(N_CALLS * 5):
        arguments = {
            name: odd_value(random) for name in random.sample(names, random.choice([1, 2]))
        }
        try:
            made = make(**arguments)
        except PybatcherError as error:
            str(error).encode()
        except Exception as error:
            error.add_note(f"seed {SEED}, {i}: {_short(arguments)}")
            raise
        else:
            if dataclasses.is_dataclass(made):  # what was taken is plain
                for name in arguments:
                    kind = type(getattr(made, name))
                    assert kind is JsonSchema or kind.__module__ in ("builtins", "pathlib")
    assert threading.active_count() == n_before
