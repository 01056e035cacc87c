from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import Run
from serving_doubles import Serving, serving

from pybatcher import BlockingClient
from pybatcher.models import tiny_path


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A sidecar for one test, which changes it."""
    with serving(tmp_path_factory.mktemp("sidecar")) as running:
        yield running


def test_other_options_and_the_same_model(run: Run, reloaded: Serving) -> None:
    before = reloaded.worker_pids()
    outcome = run("reload", "--socket", str(reloaded.socket), "--n-ctx", "4096")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "ready: requests are served" in outcome.stdout
    with BlockingClient(reloaded.socket) as client:
        assert client.limits["n_ctx"] == 4096
        assert client.generate("Once upon a time", max_tokens=3).text
    assert not set(before) & set(reloaded.worker_pids())


def test_a_client_is_told_which_context_was_chosen(run: Run, reloaded: Serving) -> None:
    options = ("--n-ctx", "auto", "--n-parallel", "2", "--max-prefixes", "1")
    outcome = run("reload", "--socket", str(reloaded.socket), *options)
    assert (outcome.status, outcome.stderr) == (0, "")
    with BlockingClient(reloaded.socket) as client:
        assert client.limits["n_ctx"] == 3 * 2048  # all that three sequences can use
        assert client.limits["n_parallel"] == 2


def test_what_was_counted_is_counted_once_and_for_good(run: Run, reloaded: Serving) -> None:
    with BlockingClient(reloaded.socket) as client:
        before = client.statistics().completed
        for done in range(1, 4):
            client.generate("Once upon a time", max_tokens=3)
            client.reload()
            while len(client.statistics().worker_pids) > 1:  # the one before is being drained
                assert client.statistics().completed == before + done
            assert client.statistics().completed == before + done


def test_a_model_by_a_path_from_here(
    run: Run, reloaded: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_path().parent)
    arguments = ["--model", "tiny", "--system-prompt", "Tom was a cat. "]
    outcome = run("reload", "--socket", str(reloaded.socket), *arguments)
    assert (outcome.status, outcome.stderr) == (0, "")
    own = run("generate", "He liked", "--max-tokens", "8", "--system-prompt", "Tom was a cat. ")
    over = run("generate", "He liked", "--max-tokens", "8", "--socket", str(reloaded.socket))
    assert over == own


def test_the_help_tells_of_no_default(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not given is not set to its default: it stays as it is."""
    monkeypatch.setenv("COLUMNS", "200")
    text = run("reload", "--help").stdout
    assert "--n-ctx" in text
    assert "An option that is not given keeps the value" in text
    assert "Default:" not in text
    assert "ships inside" not in text


def test_an_option_that_is_not_given_keeps_the_value_of_an_earlier_reload(
    run: Run, reloaded: Serving
) -> None:
    path = str(reloaded.socket)
    assert run("reload", "--socket", path, "--n-ctx", "2048").status == 0
    assert run("reload", "--socket", path, "--n-batch", "256").status == 0
    with BlockingClient(reloaded.socket) as client:
        assert client.limits["n_ctx"] == 2048


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "/no/such/model"], "/no/such/model"),
        (["--n-ctx", "1"], "n_ctx is 1"),
        (["--dtype", "int3"], "dtype is 'int3'"),
    ],
)
def test_what_cannot_be_opened_changes_nothing(
    run: Run, reloaded: Serving, arguments: list[str], complaint: str
) -> None:
    before = reloaded.worker_pids()
    outcome = run("reload", "--socket", str(reloaded.socket), *arguments)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("error: ")
    assert complaint in outcome.stderr
    assert run("status", "--socket", str(reloaded.socket)).status == 0
    assert set(before) <= set(reloaded.worker_pids())
