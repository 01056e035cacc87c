"""`pybatcher serve --http` as a process: deaths, drains, connections, keys, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from command_line import Run, runner
from serving_doubles import Serving, is_running, serving

from pybatcher import Client

pytestmark = pytest.mark.slow

HTTP = ("--http", "127.0.0.1:0", "--n-ctx", "16384", "--n-parallel", "4")
CHAT: dict[str, Any] = {
    "model": "",
    "messages": [{"role": "user", "content": "Once upon a time"}],
    "seed": 7,
    "stream": True,
    "stream_options": {"include_usage": True},
    "extra_body": {"ignore_eos": True},
}


def client_of(running: Serving, key: str = "any", **more: Any) -> openai.AsyncOpenAI:
    more = {"max_retries": 0, **more}
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, timeout=60.0, **more)


class Chat:
    """A chat that streams: `begun` after its first chunk; `rest` has text and usage."""

    def __init__(self, client: openai.AsyncOpenAI, **params: Any) -> None:
        self._ask = client.chat.completions.create(**{**CHAT, **params})
        self._parts: list[str] = []

    async def begun(self) -> Chat:
        self.stream = await self._ask
        self._take(await anext(self.stream))
        return self

    async def rest(self) -> tuple[str, int]:
        async for chunk in self.stream:
            self._take(chunk)
        return "".join(self._parts), self._n_tokens

    def _take(self, chunk: Any) -> None:
        self._parts += [choice.delta.content or "" for choice in chunk.choices]
        if chunk.usage is not None:
            self._n_tokens = chunk.usage.completion_tokens


async def until_refused(url: str) -> None:
    """Wait until no new connection is taken."""
    address = httpx.URL(url)
    while True:
        try:
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:  # it was about to be accepted
            continue
        await asyncio.sleep(0.01)


# -- a worker's death, the end ----------------------------------------------------------------


async def test_a_chat_goes_on_with_the_same_text_when_its_worker_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, *HTTP, "--no-socket") as running:
        async with client_of(running) as client:
            undisturbed = await (await Chat(client, max_tokens=900).begun()).rest()
            chat = await Chat(client, max_tokens=900).begun()
            first = running.worker_pid
            os.kill(first, signal.SIGKILL)
            assert await chat.rest() == undisturbed
            assert undisturbed[1] == 900
            assert running.worker_pid != first
            assert "1 calls go on" in running.said()


async def test_what_nobody_reads_waits_for_others_and_outlives_its_worker(tmp_path: Path) -> None:
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "seed": 3, "n": 3}
    key = {"idempotency-key": "a"}
    with serving(tmp_path, *HTTP) as running:
        async with httpx.AsyncClient(base_url=running.url, timeout=60) as http:
            expected = (await http.post("/v1/completions", json=body)).json()["choices"]
            async with client_of(running) as client, Client(running.socket) as socket:
                chat = await Chat(client, max_tokens=3000).begun()
                asking = asyncio.ensure_future(http.post("/v1/completions", json=body, headers=key))
                while (await socket.statistics()).submitted < 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                asking.cancel()  # its client has gone
                while (await socket.statistics()).running != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                os.kill(running.worker_pid, signal.SIGKILL)
                while (await socket.statistics()).worker_restarts < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while (counts := await socket.statistics()).running != 1 or counts.queued != 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                again = await http.post("/v1/completions", json=body, headers=key)
                assert again.json()["choices"] == expected
                assert again.headers["idempotent-replayed"] == "true"
                await chat.stream.close()


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
async def test_it_finishes_what_is_in_flight_and_takes_no_more(
    tmp_path: Path, told: signal.Signals
) -> None:
    with serving(tmp_path, *HTTP) as running:
        async with client_of(running) as client, client_of(running) as idle:
            await idle.models.list()  # keeps its connection, which must not delay the end
            chat = await Chat(client, max_tokens=600).begun()
            worker = running.worker_pid
            os.kill(worker, signal.SIGSTOP)  # so that the stream does not end before the rest
            running.process.send_signal(told)
            await until_refused(running.url)
            await asyncio.sleep(1.5)  # longer than clients have where nothing is finished
            os.kill(worker, signal.SIGCONT)
            assert (await chat.rest())[1] == 600
        assert running.wait() == 0
        assert "1 calls in flight are being finished" in running.said()
        assert "were not finished" not in running.said()


async def test_draining_has_its_time(tmp_path: Path) -> None:
    with serving(tmp_path, *HTTP, "--no-socket", "--drain-timeout", "0.1") as running:
        async with client_of(running) as client:
            chat = await Chat(client, max_tokens=2000).begun()
            running.process.terminate()
            with pytest.raises(openai.APIError, match="told to end"):
                await chat.rest()
        assert running.wait() == 0
        assert "1 calls were not finished" in running.said()


async def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    with serving(tmp_path, *HTTP) as running:
        async with client_of(running) as client:
            chat = await Chat(client, max_tokens=2000).begun()
            running.process.send_signal(signal.SIGINT)
            await until_refused(running.url)
            running.process.send_signal(signal.SIGINT)
            with pytest.raises(openai.APIError):
                await chat.rest()
        assert running.wait() == 130


async def test_a_reader_that_does_not_read_does_not_keep_the_server(tmp_path: Path) -> None:
    with serving(tmp_path, *HTTP, "--drain-timeout", "0.1") as running:
        # More bytes than the sockets' buffers hold.
        params = {"max_tokens": 2000, "n": 4, "logprobs": True, "top_logprobs": 20}
        reader, writer = await open_chat(running, **params)
        await reader.readline()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        running.process.terminate()
        assert running.wait() == 0
        writer.close()


async def test_a_reload_moves_new_chats_and_finishes_the_rest(tmp_path: Path) -> None:
    name = ("--served-model-name", "mine")
    with serving(tmp_path, *HTTP, "--no-socket", *name) as running:
        async with client_of(running) as client:
            chat = await Chat(client, max_tokens=900).begun()
            first = running.worker_pid
            os.kill(first, signal.SIGSTOP)
            running.process.send_signal(signal.SIGHUP)
            while "reloaded: " not in running.said():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert (await (await Chat(client, max_tokens=5, model="mine").begun()).rest())[1] == 5
            os.kill(first, signal.SIGCONT)
            assert (await chat.rest())[1] == 900
            while is_running(first):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert [model.id async for model in client.models.list()] == ["mine"]


# -- connections --------------------------------------------------------------------------------


async def open_chat(
    running: Serving, **more: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a chat was asked for."""
    url = httpx.URL(running.url)
    body = {**CHAT, **CHAT["extra_body"], **more}
    request = httpx.Request("POST", f"{url}/v1/chat/completions", json=body)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {url.host}\r\n"
    head += f"content-length: {len(request.content)}\r\n\r\n"
    writer.write(head.encode() + request.content)
    return reader, writer


@pytest.mark.parametrize("stream", [True, False])
async def test_who_hangs_up_is_forgotten(tmp_path: Path, stream: bool) -> None:
    with serving(tmp_path, *HTTP) as running:
        async with Client(running.socket) as counts:
            reader, writer = await open_chat(running, max_tokens=2000, stream=stream)
            if stream:
                await reader.readuntil(b"data: ")
            while not (await counts.statistics()).running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (await counts.statistics()).connections == 2
            writer.close()
            while (await counts.statistics()).in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while not (found := await counts.statistics()).cancelled:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (found.queued, found.running, found.completed) == (0, 0, 0)
            assert found.connections == 1


async def test_half_a_request_stops_nobody(tmp_path: Path) -> None:
    with serving(tmp_path, *HTTP, "--no-socket") as running:
        url = httpx.URL(running.url)
        begun = [b"", b"POST /v1/chat/comp", b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"]
        writers = []
        for data in 5 * begun:
            _, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(data)
            writers.append(writer)
        async with client_of(running) as client:
            assert (await (await Chat(client, max_tokens=20).begun()).rest())[1] == 20
        running.process.terminate()
        for writer in writers:
            writer.close()
        assert running.wait() == 0


@pytest.mark.parametrize("without", ["", "uvloop"])
def test_over_a_unix_socket(tmp_path: Path, without: str) -> None:
    path, environ = tmp_path / "http.sock", {**os.environ, "PYTHONPATH": str(tmp_path)}
    if without:
        (tmp_path / f"{without}.py").write_text("raise ImportError('not here')")
    with serving(tmp_path, "--no-socket", "--uds", str(path), env=environ) as running:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://here") as client:
            answer = client.get("/health")
            assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        assert f"listening on {path}" in running.said()
    assert not path.exists()


def test_without_a_place_for_a_socket_it_serves_http_alone(tmp_path: Path) -> None:
    places = ("XDG_RUNTIME_DIR", "PYBATCHER_SOCKET")
    environ = {name: value for name, value in os.environ.items() if name not in places}
    command, log = [sys.executable, "-m", "pybatcher", "serve", *HTTP], tmp_path / "serve.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, env=environ, stderr=stderr, stdin=subprocess.DEVNULL)
    running = Serving(process, tmp_path / "none", log)
    try:
        assert running.worker_pid
        assert httpx.get(f"{running.url}/health").json()["status"] == "ok"
        assert "HTTP only" in running.said()
        process.terminate()
        assert running.wait() == 0
    finally:
        process.kill()


# -- keys ---------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.touch(mode=0o600)
    file.write_text("# of the tests\n\nfirst\nsecond \n")
    return file


def test_keys_are_asked_for_and_read_again(tmp_path: Path, keys: Path) -> None:
    with serving(tmp_path, *HTTP, "--no-socket", "--api-key-file", str(keys)) as running:
        url = f"{running.url}/v1"
        third, second = (
            openai.OpenAI(base_url=url, api_key=key, max_retries=0) for key in ("third", "second")
        )
        with third, second:
            with pytest.raises(openai.AuthenticationError):
                third.models.list()
            assert second.models.list().data
            health = [httpx.get(running.url + path) for path in ("/health", "/v1/models/a/health")]
            assert [answer.status_code for answer in health] == [200, 401]
            keys.write_text("third\n")
            hang_up(running, until="reloaded: ")
            assert third.models.list().data
            with pytest.raises(openai.AuthenticationError):
                second.models.list()
            keys.write_text("# none\n")
            hang_up(running, until="not reloaded, all is as it was: api_key_file")
            assert third.models.list().data


@pytest.mark.parametrize("access_log", ["text", "json", "off"])
async def test_the_access_log_has_requests_and_calls(tmp_path: Path, access_log: str) -> None:
    options = () if access_log == "off" else ("--access-log", access_log)
    with serving(tmp_path, *HTTP, *options) as running:
        body = {"prompt": "Hi", "max_tokens": 3, "ignore_eos": True}
        named = {"x-request-id": "mine"}
        async with httpx.AsyncClient(base_url=running.url, headers=named, timeout=60) as http:
            assert (await http.post("/v1/completions", json=body)).status_code == 200
        async with Client(running.socket) as client:
            await client.generate("Hi", max_tokens=3, ignore_eos=True)
    lines = running.said().splitlines()
    if access_log == "off":
        assert not any("/v1/completions" in line for line in lines)
    elif access_log == "text":
        (http,) = [
            line.split() for line in lines if " http POST /v1/completions 200 finished " in line
        ]
        (call,) = [line.split() for line in lines if " socket call generate ok finished " in line]
        assert "completion_tokens=3" in http
        assert "completion_tokens=3" in call
        assert "request_id=mine" in http
        assert f"uid={os.geteuid()}" in call
    else:
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        told = [(one["route"], one["completion_tokens"], one["outcome"]) for one in entries]
        for route in ("/v1/completions", "generate"):
            assert told.count((route, 3, "finished")) == 1


def hang_up(running: Serving, until: str) -> None:
    """Send SIGHUP and wait until the log says so."""
    running.process.send_signal(signal.SIGHUP)
    running.logged(f"({until})")


# -- refusals -----------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


def refusal(run: Run, *arguments: str) -> str:
    outcome = run("serve", "--no-socket", *arguments)
    assert (outcome.status, outcome.stdout) == (2, "")
    last = outcome.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    return last


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_other_machines_need_a_key_or_a_flag(run: Run, address: str) -> None:
    if ":" in address[1:-2] and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    said = refusal(run, "--http", address)
    assert "api_key_file" in said
    assert "allow_no_key" in said


def test_with_the_flag_other_machines_are_served(tmp_path: Path) -> None:
    page = "https://page.example"
    arguments = ("--http", "0.0.0.0:0", "--no-socket", "--allow-no-key", "--allow-origins", page)
    with serving(tmp_path, *arguments) as running:
        url = f"http://127.0.0.1:{httpx.URL(running.url).port}/v1/models"
        assert httpx.get(url).status_code == 200
        pages = [httpx.get(url, headers={"origin": one}) for one in (page, "https://other.example")]
        assert [answer.status_code for answer in pages] == [200, 403]


def test_a_port_in_use_is_said(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refusal(run, "--http", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in said
    assert "in use by another process" in said


def test_a_file_of_keys_that_others_can_read_is_refused(run: Run, keys: Path) -> None:
    keys.chmod(0o644)
    said = refusal(run, "--http", "127.0.0.1:0", "--api-key-file", str(keys))
    assert "chmod 600" in said


@pytest.mark.parametrize(
    "arguments", [(), ("--api-key-file", "keys"), ("--served-model-name", "a")]
)
def test_without_an_address_there_is_nothing_to_serve(run: Run, arguments: tuple[str, ...]) -> None:
    assert "http or uds" in refusal(run, *arguments)


def test_a_missing_extra_is_said_and_only_http_needs_it(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for name in ("starlette", "uvicorn", "httptools"):
        (hidden / f"{name}.py").write_text(f"raise ImportError('{name} was imported')")
    with serving(tmp_path, env={**os.environ, "PYTHONPATH": str(hidden)}) as running:
        assert "was imported" not in running.said()
    for name in [name for name in sys.modules if name.startswith("pybatcher.http")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'pybatcher-engine[http]'" in refusal(run, "--http", "127.0.0.1:0")
