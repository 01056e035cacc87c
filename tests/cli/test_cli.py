"""The commands end to end: arguments in, text and exit status out."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Outcome, Run, runner

import pybatcher.cli.demo
from pybatcher import BlockingBatcher, Engine
from pybatcher.models import DEMO_PROMPTS, tiny_path
from pybatcher.testing.checkpoints import make_checkpoint

STORY = "Once upon a time"
COMMAND = [sys.executable, "-W", "error", "-m", "pybatcher"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in this process."""
    return runner(monkeypatch, capsys)


# -- generate ---------------------------------------------------------------------------------


def test_generate_prints_what_the_batcher_gives(run: Run) -> None:
    with BlockingBatcher() as batcher:
        greedy = batcher.generate(STORY, max_tokens=12).text
        drawn = batcher.generate(STORY, max_tokens=12, temperature=1.0, seed=7).text
    assert greedy != drawn
    assert run("generate", STORY, "--max-tokens", "12") == Outcome(0, greedy + "\n", "")
    arguments = ["--max-tokens", "12", "--temperature", "1", "--seed", "7"]
    assert run("generate", *arguments, STORY) == Outcome(0, drawn + "\n", "")


def test_generate_reads_a_dash_from_stdin_without_the_last_newline(run: Run) -> None:
    expected = run("generate", "--max-tokens", "8", STORY)
    for stdin in (STORY, STORY + "\n"):
        assert run("generate", "--max-tokens", "8", "-", stdin=stdin.encode()) == expected
    assert run("generate", "--max-tokens", "8", "-", stdin=f"{STORY}\n\n".encode()) != expected


def test_generate_stops_at_each_of_several_texts(run: Run) -> None:
    whole = run("generate", "--max-tokens", "24", STORY).stdout
    first, second, *_ = (word for word in whole.split() if len(word) > 4)
    expected = whole[: min(whole.index(first), whole.index(second))]
    arguments = ["--max-tokens", "24", "--stop", second, "--stop", first]
    assert run("generate", *arguments, STORY).stdout == expected + "\n"


def test_generate_gives_outputs_a_form(run: Run, tmp_path: Path) -> None:
    schema = '{"properties": {"n": {"enum": [1, 2]}}, "required": ["n"], %s}'
    schema %= '"type": "object", "additionalProperties": false'
    file = tmp_path / "schema.json"
    file.write_text(schema)
    for given in (schema, str(file)):
        done = run("generate", "--json-schema", given, "--max-tokens", "40", STORY)
        assert json.loads(done.stdout)["n"] in (1, 2)
    assert run("generate", "--choices", "red", "--choices", "blue", STORY).stdout in (
        "red\n",
        "blue\n",
    )
    assert re.fullmatch("[a-c]{4}\n", run("generate", "--regex", "[a-c]{4}", STORY).stdout)
    missing = run("generate", "--json-schema", str(tmp_path / "nothing"), STORY)
    assert missing.status == 2
    assert "cannot be read" in missing.stderr


def test_generate_takes_a_system_prompt(run: Run) -> None:
    with BlockingBatcher(system_prompt="Tom was a cat. ") as batcher:
        expected = batcher.generate("He liked", max_tokens=8).text
    arguments = ["--system-prompt", "Tom was a cat. ", "--max-tokens", "8"]
    assert run("generate", *arguments, "He liked").stdout == expected + "\n"


def test_options_of_the_engine_and_the_scheduler_leave_the_text_alone(run: Run) -> None:
    expected = run("generate", "--max-tokens", "16", STORY)
    options = "--n-ctx 256 --n-parallel 1 --n-batch 3 --n-threads 1 --block-size 16 --batch-size 1"
    assert run("generate", "--max-tokens", "16", *options.split(), STORY) == expected


# -- refused arguments ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["generate", ""], "prompt is ''"),
        (["generate", "--temperature", "nan", "x"], "temperature is nan"),
        (["generate", "--max-tokens", "-3", "x"], "max_tokens is -3"),
        (["generate", "--stop", "", "x"], "stop is ['']"),
        (["generate", "--seed", str(2**64), "x"], f"seed is {2**64}"),
        (["generate", "--n-ctx", "1", "x"], "n_ctx is 1"),
        (["generate", "--dtype", "int3", "x"], "dtype is 'int3'"),
        (["generate", "--model", "/no/such/model", "x"], "/no/such/model"),
        (["generate", "\udcff"], "surrogate"),
        (["generate", "--n-ctx", "16", "fox " * 40], "n_ctx"),
        (["generate", "--system-prompt", "", "x"], "system_prompt is ''"),
        (["chat", "--top-p", "2"], "top_p is 2"),
        (["chat", "--model", "/no/such/model"], "/no/such/model"),
        (["info", "--n-parallel", "0"], "n_parallel is 0"),
        (["info", "--model", "/no/such/model"], "/no/such/model"),
        (["info", "--device", "cuda"], "device is 'cuda'"),
        (["demo", "--max-tokens", "0"], "max_tokens is 0"),
    ],
)
def test_a_bad_value_is_one_line_and_status_2(
    run: Run, arguments: list[str], complaint: str
) -> None:
    outcome = run(*arguments)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("error: ")
    assert outcome.stderr.count("\n") == 1
    assert complaint in outcome.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["tell"],
        ["generate"],
        ["generate", "x", "--heat", "1"],
        ["info", "--seed", "1"],
        ["chat", "--n", "2"],  # a turn has one answer
    ],
)
def test_a_wrong_command_line_is_status_2(run: Run, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert outcome.status == 2
    assert "Traceback" not in outcome.stderr
    assert outcome.stderr.startswith("Usage")


def test_the_model_may_come_first(run: Run) -> None:
    model, prompt = str(tiny_path()), "Once upon a time"
    expected = run("generate", "--max-tokens", "4", prompt)
    assert run("generate", model, prompt, "--max-tokens", "4") == expected
    assert run("generate", "--max-tokens", "4", "--model", model, prompt) == expected
    assert "3 words are given" in run("generate", "Once", "upon", "a").stderr
    assert "two models are given" in run("generate", "a", prompt, "--model", "b").stderr
    asked = b"Hello!\n"
    talked = run("chat", "--max-tokens", "4", "--temperature", "0", stdin=asked)
    assert run("chat", model, "--max-tokens", "4", "--temperature", "0", stdin=asked) == talked
    assert "tiny" in run("info", model).stdout
    for command in ("info", "chat", "demo"):
        assert "'/no/model'" in run(command, "/no/model").stderr


def test_a_prompt_on_stdin_that_is_not_utf8_is_refused(run: Run) -> None:
    outcome = run("generate", "-", stdin=b"caf\xe9")
    assert outcome.status == 2
    assert "not UTF-8" in outcome.stderr


def test_a_warning_is_one_line(run: Run) -> None:
    arguments = "generate --n-batch 8 --n-ubatch 16 --max-tokens 4"
    outcome = subprocess.run(
        [sys.executable, "-m", "pybatcher", *arguments.split(), STORY],
        capture_output=True,
        text=True,
        check=True,
    )
    assert outcome.stderr.startswith("warning: n_ubatch=16 is more than n_batch=8")
    assert outcome.stderr.count("\n") == 1
    assert outcome.stdout == run("generate", "--max-tokens", "4", STORY).stdout


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    command = [*COMMAND, "generate", "--ignore-eos", "--max-tokens", "1500", STORY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_ctrl_c_ends_generate_without_a_word() -> None:
    command = [*COMMAND, "generate", "--ignore-eos", "--max-tokens", "1500", STORY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == b""
    assert process.returncode == 130


@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_full_disk_is_one_line(buffering: dict[str, str]) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        command = [*COMMAND, "generate", "--max-tokens", "4", STORY]
        outcome = subprocess.run(
            command, env=env | buffering, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert outcome.returncode == 2
    assert outcome.stderr.startswith(b"error: ")
    assert outcome.stderr.count(b"\n") == 1
    assert b"No space left" in outcome.stderr


# -- chat -------------------------------------------------------------------------------------


def test_chat_answers_line_by_line_and_knows_what_was_said(run: Run) -> None:
    questions = ["Tell me a story about a fox.", "Who was it about?"]
    answers: list[str] = []
    with BlockingBatcher(system_prompt="Be brief.") as batcher:
        messages = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            answers.append(batcher.chat(messages, max_tokens=16).text)
            messages.append({"role": "assistant", "content": answers[-1]})
        forgotten = batcher.chat(messages[2:3], max_tokens=16).text
    stdin = "\n".join([*questions, "", "/reset", questions[1]]).encode()
    options = ["--system-prompt", "Be brief.", "--max-tokens", "16", "--temperature", "0"]
    outcome = run("chat", *options, stdin=stdin)
    assert outcome == Outcome(0, "\n".join([*answers, forgotten, ""]), "")


def test_chat_goes_on_after_a_message_that_is_too_long(run: Run) -> None:
    long, short = "fox " * 500, "What is 2 plus 3?"
    arguments = ["chat", "--n-ctx", "128", "--max-tokens", "8", "--temperature", "0"]
    outcome = run(*arguments, stdin=f"{long}\n{short}\n".encode())
    assert outcome.status == 0
    assert outcome.stderr.count("error: ") == 1
    assert "/reset" in outcome.stderr
    assert outcome.stdout == run(*arguments, stdin=short.encode()).stdout


def test_ctrl_c_stops_an_answer_and_ctrl_d_leaves() -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "chat", "--ignore-eos", "--max-tokens", "1900"]
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=_take_terminal,
        env=os.environ | {"TERM": "dumb"},  # no escape codes around the prompt
    ) as process:
        os.close(theirs)
        _read_until(ours, b"\n> ")
        os.write(ours, b"Tell me a story.\n")
        _read_until(ours, b"story.\r\n")
        assert os.read(ours, 1)
        os.write(ours, b"\x03")
        _read_until(ours, b"\n> ")
        os.write(ours, b"\x04")
        assert process.wait(timeout=60) == 0
    os.close(ours)


def test_ctrl_c_at_the_prompt_gives_another_prompt(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter([KeyboardInterrupt(), KeyboardInterrupt(), EOFError()])

    def interrupted(prompt: str) -> str:
        raise next(typed)

    monkeypatch.setattr("builtins.input", interrupted)
    assert run("chat") == Outcome(0, "\n\n", "")
    assert list(typed) == []


def _take_terminal() -> None:
    """In the child: start a session whose controlling terminal, with its Ctrl-C, is stdin."""
    os.setsid()
    os.close(os.open(os.ttyname(0), os.O_RDWR))


def _read_until(terminal: int, end: bytes) -> None:
    seen = b""
    while not seen.endswith(end):
        seen += os.read(terminal, 1)


# -- info and demo ----------------------------------------------------------------------------


def test_info_tells_model_dtype_target_and_memory(run: Run) -> None:
    outcome = run("info", "--dtype", "f32", "--n-ctx", "512", "--n-threads", "1")
    facts = dict(line.split(maxsplit=1) for line in outcome.stdout.splitlines())
    assert outcome.status == 0
    assert facts["architecture"].strip() == "llama"
    assert facts["dtype"].strip() == "f32, KV in f32"
    assert int(facts["parameters"].replace(",", "")) > 1_000_000
    assert "1 threads" in facts["device"]
    told = f"threads 1, as n_threads says; by itself {Engine.cores().reason()} weights"
    assert told in " ".join(outcome.stdout.split())
    assert "MiB" in facts["weights"]
    assert "n_ctx 512, " in facts["KV"]


def test_a_name_of_a_model_does_not_control_the_terminal(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "a\x1b]0;title\x07\x9b2J"
    shutil.copytree(tiny_path(), named)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    outcome = run("info", "--model", str(named), "--n-threads", "1")
    assert r"a\x1b]0;title\x07\x9b2J" in outcome.stdout
    assert not {"\x1b", "\x07", "\x9b"} & {*outcome.stdout}


def test_info_tells_the_heads_of_unlike_layers(run: Run, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "gemma4", num_global_key_value_heads=1)
    outcome = run("info", "--model", str(path), "--n-threads", "1")
    assert "6 of 12, 2 for KV; 6 of 20, 1 for KV" in outcome.stdout


@pytest.fixture
def recommending(tmp_path: Path) -> str:
    """The shipped model, with sampling that it recommends."""
    model = shutil.copytree(tiny_path(), tmp_path / "model")
    (model / "generation_config.json").write_text('{"temperature": 1.6, "top_k": 20}')
    return str(model)


def test_info_tells_what_the_models_files_recommend(run: Run, recommending: str) -> None:
    told = run("info", "--model", recommending).stdout.split()
    assert " ".join(told).count("recommended temperature 1.6, top_k 20") == 1
    assert "recommended" not in run("info").stdout


def test_a_chat_is_sampled_as_the_models_files_recommend(run: Run, recommending: str) -> None:
    def answer(*options: str) -> str:
        common = ["--seed", "1", "--max-tokens", "16"]
        return run("chat", *common, *options, stdin=b"Once upon a time\n").stdout

    usual, greedy = answer(), answer("--temperature", "0")
    drawn = answer("--model", recommending)
    assert len({drawn, usual, greedy}) == 3
    assert usual == answer("--temperature", "0.7", "--min-p", "0.05")
    assert drawn == answer("--temperature", "1.6", "--top-k", "20")
    assert answer("--model", recommending, "--temperature", "0") == greedy


def test_info_tells_what_was_chosen(run: Run) -> None:
    outcome = run("info", "--n-ctx", "auto", "--n-parallel", "2", "--n-threads", "1")
    facts = dict(line.split(maxsplit=1) for line in outcome.stdout.splitlines())
    assert outcome.status == 0
    n_ctx = (2 + 16) * 2048  # of shared prefixes too, as in a batcher
    assert f"n_ctx {n_ctx:,} (auto), n_parallel 2" in facts["KV"]
    assert "n_ctx 8,192, n_parallel 32 (auto)" in " ".join(run("info").stdout.split())


def test_info_tells_how_many_threads_and_why(run: Run) -> None:
    told = " ".join(run("info", "--n-ctx", "64").stdout.split())
    cores = Engine.cores()
    assert f", {cores.n_threads} threads threads {cores.reason()} weights" in told


def test_the_cpu_target_can_be_forced_and_a_wrong_one_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", "scalar")
    assert "cpu, scalar," in run("info").stdout
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", "abacus")
    outcome = run("info")
    assert outcome.status == 2
    assert "PYBATCHER_CPU_TARGET is 'abacus'" in outcome.stderr


def test_demo_in_plain_lines(run: Run) -> None:
    outcome = run("demo", "--max-tokens", "6")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "\x1b" not in outcome.stdout
    for number in range(1, len(DEMO_PROMPTS) + 1):
        assert f"caller {number}: " in outcome.stdout
    for figure in ("TTFT", "ITL", "tokens a second", "forward passes"):
        assert figure in outcome.stdout
    assert "All texts were equal, bit for bit, however they were asked.\n" in outcome.stdout
    assert outcome.stdout.endswith("The weather in Oslo is sunny.\n")


def test_demo_with_drawn_tokens_and_few_sequences(run: Run) -> None:
    arguments = "--max-tokens 6 --temperature 1 --seed 3 --n-parallel 2 --n-batch 16"
    outcome = run("demo", *arguments.split())
    assert outcome.status == 0
    assert "equal, bit for bit" in outcome.stdout


def test_demo_counts_a_pass_for_a_token_of_all(run: Run) -> None:
    options = ("--n-batch", "2048", "--batch-timeout", "0.3")  # all eight wait for each other
    text = run("demo", "--max-tokens", "6", *options).stdout
    (passes,) = (line.split() for line in text.splitlines() if "forward passes  " in line)
    together, in_turn = (int(cell) for cell in passes[-2:])
    assert together == 6
    assert in_turn > 3 * together


def test_demo_fails_where_texts_differ(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pybatcher.cli.demo, "same_answers", lambda *_: False)
    outcome = run("demo", "--max-tokens", "2")
    assert outcome.status == 1
    assert "DIFFERED" in outcome.stdout


def test_the_package_runs_as_a_module_with_help_and_a_version() -> None:
    for argument, expected in (("--version", "pybatcher 0."), ("--help", "generate")):
        outcome = subprocess.run([*COMMAND, argument], capture_output=True, text=True, check=True)
        assert expected in outcome.stdout
