"""What `bench.http_compare` sends, how it starts servers, and how it compares them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from bench.engines.engine_list import PYBATCHER
from bench.http import http_compare
from bench.http.aiperf import LIMITS, Aiperf, Limits, figures_of
from bench.http.http_chats import bodies_of, positions_of
from bench.http.http_compare import (
    COMPARED,
    MORE_IS_BETTER,
    check_same_model,
    likeliest,
    ratios,
    summary_of,
)
from bench.http.http_servers import (
    ServedModel,
    llama_server_command,
    pybatcher_command,
    start_server,
)
from bench.serving.loads import LOADS
from bench.serving.traces import draw
from bench.structured.forms import write_large_tokenizer
from pybatcher.models import tiny_path

LOAD = LOADS["mixed"].load
MODEL = ServedModel(Path("model.gguf"), n_threads=2, n_parallel=4, length=2048)


def bodies(seed: int) -> list[dict[str, Any]]:
    return bodies_of(draw(LOAD, 20, 1.0, seed), seed)


def test_rounds_have_one_system_prompt_and_other_questions() -> None:
    one, other = bodies(1), bodies(2)
    assert one == bodies(1)
    systems = {body["messages"][0]["content"] for body in one + other}
    assert len(systems) == 1
    questions = [body["messages"][1]["content"] for body in one + other]
    assert len(set(questions)) == 40
    sizes = [len(question) for question in questions]
    assert min(sizes) < 50
    assert max(sizes) > 300
    assert len({body["max_tokens"] for body in one}) > 10


def test_a_character_is_a_token_and_every_request_fits(tmp_path: Path) -> None:
    write_large_tokenizer(tmp_path, 1000)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for body in bodies(1):
        texts = [message["content"] for message in body["messages"]]
        for text in texts:
            assert len(tokenizer.encode(text).ids) == len(text)
        assert sum(map(len, texts)) + body["max_tokens"] + 32 < positions_of(LOAD)


def report(**more: Any) -> dict[str, Any]:
    spread = {"p50": 2.0, "p99": 9.0}
    tags = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency")
    totals = {"output_token_throughput": 70.0, "request_throughput": 3.0}
    found: dict[str, Any] = dict.fromkeys(tags, spread)
    found |= {tag: {"avg": value} for tag, value in totals.items()}
    return {**found, "request_count": {"avg": 4.0}, "error_summary": [], **more}


def record(ttft: float, itl: float) -> dict[str, Any]:
    return {"time_to_first_token": {"value": ttft}, "inter_token_latency": {"value": itl}}


def test_figures_of_a_report() -> None:
    records = [record(450.0, 40.0), record(451.0, 9.0), record(9.0, 41.0), record(9.0, 201.0)]
    found = figures_of(report(), records, 4)
    assert set(COMPARED) - {"cpu_ms_per_token"} <= set(found)
    assert (found["ttft_p50_ms"], found["gap_p99_ms"]) == (2.0, 9.0)
    assert (found["good_interactive_per_s"], found["good_server_per_s"]) == (0.75, 2.25)
    with pytest.raises(RuntimeError, match="4 of 5 requests ended well"):
        figures_of(report(), records, 5)
    with pytest.raises(RuntimeError, match="it broke"):
        figures_of(report(error_summary=[{"error": "it broke"}]), records, 4)
    assert LIMITS["interactive"] == Limits(ttft=450.0, itl=40.0)


def figures(time: float, rate: float) -> dict[str, float]:
    return {name: rate if name in MORE_IS_BETTER else time for name in COMPARED}


def test_above_one_is_ahead_in_times_and_in_rates() -> None:
    found = ratios(figures(2.0, 10.0), figures(4.0, 5.0))
    assert set(found.values()) == {2.0}
    assert ratios(figures(2.0, 10.0), figures(4.0, 0.0))["good_server_per_s"] is None
    assert ratios(figures(2.0, 0.0), figures(4.0, 5.0))["good_server_per_s"] == 0.0


def test_a_ratio_is_of_neighbours_and_the_median_of_the_rounds() -> None:
    rounds = [
        {"ours": figures(1.0, 10.0), "theirs": figures(2.0, 5.0)},
        {"ours": figures(10.0, 1.0), "theirs": figures(30.0, 0.0)},
        {"ours": figures(1.0, 1.0), "theirs": figures(5.0, 0.5)},
    ]
    found = summary_of(rounds)
    assert found["median"]["ours"]["ttft_p50_ms"] == 1.0
    assert found["ratio"]["theirs"]["ttft_p50_ms"] == 3.0
    assert found["ratio"]["theirs"]["good_server_per_s"] == 2.0


def test_both_have_as_many_threads_sequences_and_positions() -> None:
    ours, theirs = (command(MODEL, 1, {}) for command in (pybatcher_command, llama_server_command))
    for names in (
        ("--n-threads", "--threads"),
        ("--n-parallel", "--parallel"),
        ("--n-ctx", "--ctx-size"),
        ("--model", "--model"),
    ):
        values = {one[one.index(n) + 1] for one, n in zip((ours, theirs), names, strict=True)}
        assert len(values) == 1, names
    assert theirs[theirs.index("--ctx-size") + 1] == "8192"


class Answers:
    """A server that gives one answer to everything."""

    def __init__(self, n_tokens: int, tokens: list[str], *, of_chats: bool) -> None:
        tops: Any = {"top_logprobs": [dict.fromkeys(tokens, -1.0)]}
        if of_chats:
            listed = [{"token": token, "logprob": -1.0} for token in tokens]
            tops = {"content": [{"token": "x", "top_logprobs": listed}]}
        self.answer: dict[str, Any] = {
            "usage": {"prompt_tokens": n_tokens},
            "choices": [{"logprobs": tops}],
        }

    def ask(self, path: str, body: Any) -> Any:
        return self.answer


def test_servers_of_other_models_are_not_compared() -> None:
    letters: list[str] = [chr(97 + i) for i in range(20)]
    one = Answers(9, letters, of_chats=False)
    same = Answers(9, letters[10:] + list("0123456789"), of_chats=True)
    assert likeliest(one.answer["choices"][0]["logprobs"]) == set(letters)
    servers: Any = {"ours": one, "theirs": same}
    found = check_same_model(servers, "a text")
    assert found == {"prompt_tokens": 9, "likeliest_in_common": 10}
    for other in (Answers(8, letters, of_chats=True), Answers(9, ["a", "0"], of_chats=True)):
        servers["theirs"] = other
        with pytest.raises(SystemExit, match=r"prompt|likeliest"):
            check_same_model(servers, "a text")


class Served(Answers):
    """A server that is asked and has used a second of CPU more each time."""

    def __init__(self, name: str, command: list[str]) -> None:
        super().__init__(9, ["a", "b", "c", "d", "e"], of_chats=name != "pybatcher")
        self.url, self.command, self._seconds = name, command, 0.0

    def cpu_seconds(self) -> float:
        self._seconds += 1.0
        return self._seconds


def test_servers_take_turns_and_the_result_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    turns: list[tuple[str, int, Any]] = []

    @contextmanager
    def start(name: str, model: ServedModel, options: Any) -> Iterator[Served]:
        yield Served(name, [name, str(model.n_parallel)])

    def run(self: Aiperf, url: str, sent: Any, concurrency: int) -> dict[str, float]:
        turns.append((url, concurrency, sent))
        return {**figures(2.0, 3.0), "output_tokens": 500.0}

    monkeypatch.setattr(http_compare, "start_server", start)
    monkeypatch.setattr(http_compare, "make_chat_model", lambda *_: (tmp_path, tmp_path / "x.gguf"))
    monkeypatch.setattr(http_compare, "LLAMA_SERVER", Path("/bin/true"))
    monkeypatch.setattr(http_compare, "AIPERF", Path("/bin/true"))
    monkeypatch.setattr(http_compare, "LLAMA_CPP", PYBATCHER)
    monkeypatch.setattr(Aiperf, "run", run)
    monkeypatch.setattr("bench.common.results.RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["http_compare", "--concurrency", "1,3", "--requests", "4"])
    http_compare.main()
    names = ["pybatcher", "llama-server"]
    assert [name for name, _, _ in turns] == [*names, *names[::-1]] * 2
    assert [(one, len(sent)) for _, one, sent in turns] == [(1, 4)] * 4 + [(3, 6)] * 4
    assert all(turns[i][2] == turns[i + 1][2] for i in range(0, 8, 2))  # the same to both
    assert turns[0][2] != turns[2][2]
    result = json.loads((tmp_path / "http-compare-smollm2-135m-int8.json").read_text())
    assert [cell["concurrency"] for cell in result["cells"]] == [1, 3]
    assert result["cells"][1]["commands"] == {name: f"{name} 3" for name in names}
    assert result["cells"][0]["ratio"]["llama-server"]["cpu_ms_per_token"] == 1.0
    assert result["cells"][0]["median"]["pybatcher"]["cpu_ms_per_token"] == 2.0
    assert result["run"]["cpu"]


@pytest.mark.slow
def test_our_server_is_started_asked_and_ended() -> None:
    model = ServedModel(tiny_path(), n_threads=1, n_parallel=2, length=256)
    with start_server("pybatcher", model, {"n_batch": 32}) as server:
        found = check_same_model({"ours": server}, "Once upon a time")
        assert found["likeliest_in_common"] == 20
        pid = Path(f"/proc/{server.pid}")
        assert server.cpu_seconds() > 0.1  # the worker's too: it has loaded the model
        assert pid.exists()
    assert not pid.exists()
    wrong = ServedModel(Path("nothing.gguf"), n_threads=1, n_parallel=1, length=256)
    with pytest.raises(RuntimeError, match="does not serve"), start_server("pybatcher", wrong, {}):
        pass
