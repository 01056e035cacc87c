"""Coding agents against `pybatcher serve`: each runs a command that the model asks for.

Each is the program that its package manager installs, with settings as docs/http.md has them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from client_programs import ANSWER, CLIENTS, Server, closed_environment, run_client

PROMPT = "How many lanterns are there?"
CODEX = """\
model = "{model}"
model_provider = "local"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where an agent works. Its home is beside it."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def run_agent(command: list[str], folder: Path, **more: str) -> str:
    assert CLIENTS is not None
    program = str(CLIENTS / "node" / "node_modules" / ".bin" / command[0])
    environment = closed_environment(folder.parent / "home", more)
    return run_client([program, *command[1:]], folder, environment)


def counted(folder: Path, tool: str) -> str:
    """What the command left that the model had it run."""
    return (folder / f"of-{tool}.txt").read_text().strip()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_codex(chained: Server, folder: Path) -> None:
    settings = CODEX.format(model=chained.model, url=chained.url)
    write(folder.parent / "home" / ".codex" / "config.toml", settings)
    options = ["--skip-git-repo-check", "--sandbox", "danger-full-access"]
    said = run_agent(["codex", "exec", *options, PROMPT], folder)
    assert ANSWER in said
    assert counted(folder, "exec_command") == "lantern 7"


def test_claude_code(chained: Server, folder: Path) -> None:
    said = run_agent(
        ["claude", "-p", PROMPT, "--allowedTools", "Bash", "--output-format", "json"],
        folder,
        ANTHROPIC_BASE_URL=chained.url,
        ANTHROPIC_API_KEY="any",
        ANTHROPIC_MODEL=chained.model,
        ANTHROPIC_SMALL_FAST_MODEL=chained.model,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )
    result = json.loads(said)
    assert (result["result"], result["is_error"], result["num_turns"]) == (ANSWER, False, 2)
    assert counted(folder, "Bash") == "lantern 7"


def test_opencode(chained: Server, folder: Path) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{chained.url}/v1", "apiKey": "any"},
        "models": {chained.model: {"limit": {"context": 65536, "output": 512}}},
    }
    name = f"local/{chained.model}"
    settings = {"provider": {"local": provider}, "model": name, "small_model": name}
    (folder / "opencode.json").write_text(json.dumps({**settings, "autoupdate": False}))
    said = run_agent(
        ["opencode", "run", PROMPT],
        folder,
        OPENCODE_DISABLE_AUTOUPDATE="1",
        OPENCODE_DISABLE_MODELS_FETCH="1",
    )
    assert ANSWER in said
    assert counted(folder, "bash") == "lantern 7"


def test_pi(chained: Server, folder: Path) -> None:
    provider = {
        "baseUrl": f"{chained.url}/v1",
        "api": "openai-completions",
        "apiKey": "any",
        "models": [{"id": chained.model, "contextWindow": 65536, "maxTokens": 512}],
    }
    settings = json.dumps({"providers": {"local": provider}})
    write(folder.parent / "home" / ".pi" / "agent" / "models.json", settings)
    options = ["--provider", "local", "--model", chained.model]
    said = run_agent(["pi", "-p", *options, PROMPT], folder, PI_OFFLINE="1")
    assert said.strip() == ANSWER
    assert counted(folder, "bash") == "lantern 7"
