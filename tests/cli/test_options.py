from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pybatcher.cli.options import LongHelpCommand, chosen_model, takes_options
from pybatcher.errors import ConfigError
from pybatcher.params import SamplingParams
from pybatcher.params.config import EngineConfig, SchedulerConfig, SupervisionConfig

Collected = dict[str, dict[str, Any]]


@pytest.fixture
def collected() -> Collected:
    return {}


@pytest.fixture
def app(collected: Collected) -> typer.Typer:
    app = typer.Typer()

    @app.command(cls=LongHelpCommand)
    @takes_options(SamplingParams, EngineConfig, SchedulerConfig, SupervisionConfig)
    def command(word: str, *, sampling: dict[str, Any], options: dict[str, Any]) -> None:
        collected.update(sampling=sampling, options=options, word={"word": word})

    return app


def run(app: typer.Typer, *arguments: str) -> int:
    return CliRunner().invoke(app, arguments).exit_code


def test_options_not_given_are_left_to_the_library(app: typer.Typer, collected: Collected) -> None:
    assert run(app, "hello") == 0
    assert collected == {"sampling": {}, "options": {}, "word": {"word": "hello"}}


def test_values_reach_their_group_with_their_type(app: typer.Typer, collected: Collected) -> None:
    arguments = "w --max-tokens 7 --temperature 0.5 --n-ctx 64 --dtype f32 --batch-timeout 0.25"
    assert run(app, *arguments.split()) == 0
    assert collected["sampling"] == {"max_tokens": 7, "temperature": 0.5}
    assert collected["options"] == {"n_ctx": 64, "dtype": "f32", "batch_timeout": 0.25}


def test_the_context_is_a_number_or_automatic(app: typer.Typer, collected: Collected) -> None:
    assert run(app, "w", "--n-ctx", "auto") == 0
    assert collected["options"] == {"n_ctx": "auto"}
    for odd in ("many", "1.5", ""):
        outcome = CliRunner().invoke(app, ["w", "--n-ctx", odd])
        assert outcome.exit_code == 2
        assert "'auto'" in outcome.output


def test_a_list_is_given_by_repeating_and_a_bool_by_naming(
    app: typer.Typer, collected: Collected
) -> None:
    arguments = "w --stop a --stop b --stop-token-ids 3 --stop-token-ids 4 --ignore-eos"
    assert run(app, *arguments.split()) == 0
    assert collected["sampling"] == {
        "stop": ["a", "b"],
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
    }
    SamplingParams(**collected["sampling"])


@pytest.mark.parametrize(
    ("flags", "given"),
    [([], {}), (["--no-vision"], {"vision": False}), (["--vision"], {"vision": True})],
)
def test_a_bool_that_is_usually_true_can_be_denied(
    app: typer.Typer, collected: Collected, flags: list[str], given: dict[str, Any]
) -> None:
    assert run(app, "w", *flags) == 0
    assert collected["options"] == given


def test_a_zero_is_given_too(app: typer.Typer, collected: Collected) -> None:
    assert run(app, "w", "--top-k", "0", "--seed", "0", "--n-threads", "0") == 0
    assert collected["sampling"] == {"top_k": 0, "seed": 0}
    assert collected["options"] == {"n_threads": 0}


def test_a_value_of_another_type_is_refused(app: typer.Typer) -> None:
    assert run(app, "w", "--max-tokens", "many") == 2


@pytest.mark.parametrize(
    "owner", [SamplingParams, EngineConfig, SchedulerConfig, SupervisionConfig]
)
def test_every_field_is_an_option_and_is_explained(owner: type, app: typer.Typer) -> None:
    text = CliRunner().invoke(app, ["--help-all"], env={"COLUMNS": "200"}).stdout
    lines = text.splitlines()
    for field in fields(owner):
        if field.name in {"logit_bias", "logprobs", "of_model", "skip_special_tokens"}:
            continue
        flag = f"--{field.name.replace('_', '-')} "
        (line,) = (line for line in lines if flag in line)
        explanation = line.partition(">")[2].strip(" │")
        assert len(explanation) > 10, line


def test_the_short_help_shows_usual_options(app: typer.Typer) -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    assert "--n-ctx" in text
    assert "--temperature" in text
    assert "--watermark" not in text
    assert "--help-all" not in CliRunner().invoke(app, ["--", "--help-all"]).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max-new-tokens 5", "--max-new-tokens; did you mean --max-tokens?"),
        ("--temp=0.5", "--temp; did you mean --temperature?"),
        ("-ngl 99", "-ngl; did you mean --device?"),
        ("-n 8", "-n; did you mean --max-tokens?"),
        ("--max-token 5", "--max-token (Possible options: "),
        ("--stop -c -zz", "-z "),
        ("-x -- -xngl", "-x "),
    ],
)
def test_flags_of_other_programs_are_answered_with_ours(
    app: typer.Typer, words: str, message: str
) -> None:
    outcome = CliRunner().invoke(app, [*words.split(), "w"], env={"COLUMNS": "200"})
    assert outcome.exit_code == 2
    assert f"No such option: {message}" in outcome.stderr


def test_a_closed_set_of_values_is_in_the_help_and_checked_by_the_library(
    app: typer.Typer, collected: Collected
) -> None:
    text = CliRunner().invoke(app, ["--help-all"], env={"COLUMNS": "200"}).stdout
    assert "<auto|cpu|cuda>" in text
    assert "<youngest|priority|cheapest>" in text
    assert run(app, "w", "--block-size", "64", "--dtype", "int7") == 0
    assert collected["options"] == {"block_size": 64, "dtype": "int7"}
    assert run(app, "w", "--block-size", "many") == 2


def test_a_model_is_an_argument_or_an_option() -> None:
    assert chosen_model(None, None) is None
    assert chosen_model("a", None) == chosen_model(None, "a") == chosen_model("a", "a") == "a"
    with pytest.raises(ConfigError, match="two models are given: 'a' and --model 'b'"):
        chosen_model("a", "b")


def test_defaults_are_shown_as_the_library_has_them(app: typer.Typer) -> None:
    lines = CliRunner().invoke(app, ["--help-all"], env={"COLUMNS": "400"}).stdout.splitlines()
    shown = {flag: next(line for line in lines if flag in line) for flag in ("--n-ctx", "--top-k")}
    assert "Default: 8192." in shown["--n-ctx"]
    assert "Default: 0." in shown["--top-k"]


def test_only_some_fields_can_be_taken(collected: Collected) -> None:
    app = typer.Typer()

    @app.command()
    @takes_options(SamplingParams, only=("seed",))
    def command(*, sampling: dict[str, Any]) -> None:
        collected.update(sampling=sampling)

    assert run(app, "--seed", "3") == 0
    assert collected == {"sampling": {"seed": 3}}
    assert run(app, "--temperature", "1") == 2
