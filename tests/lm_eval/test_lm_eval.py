"""lm-evaluation-harness with tasks of our own, through `pybatcher serve --http`.

PYBATCHER_LM_EVAL names its program. What it was told has to be what `score` says, to the bit, and
what transformers says, to CLOSE.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from serving_doubles import serving

import pybatcher
from pybatcher import BlockingBatcher

MODEL = Path(pybatcher.__file__).parent / "models" / "tiny"
OPTIONS: dict[str, Any] = {"n_ctx": 8192, "n_parallel": 4, "n_threads": 1, "dtype": "f32"}
CLOSE = 1e-3  # of a continuation's log-probability
TIMEOUT = 600  # seconds of the harness, which takes some twenty on an idle machine

pytestmark = pytest.mark.timeout(900)

PLACES = ["lake", "river", "forest", "sea"]
CHOICES = [
    {
        "text": f"Once upon a time, there was a {animal} who lived by the",
        "choices": [f" {place}" for place in PLACES] + [" lake with an old friend."],
        "label": i % 4,
    }
    for i, animal in enumerate(("fox", "bear", "little owl", "mouse", "rabbit", "hedgehog"))
]
LINES = [
    {"text": f"{name} went to the", "target": target}
    for name in ("Anna", "The old fox", "Tim")
    for target in (" lake.", " market to buy bread", " 42!")
]
BEGINNINGS = [
    {"text": f"Once upon a time, there was a {animal} named", "answer": "."}
    for animal in ("fox", "bear", "mouse")
]
TASKS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "own_choices": (
        CHOICES,
        {
            "output_type": "multiple_choice",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{label}}",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        },
    ),
    "own_lines": (
        LINES,
        {
            "output_type": "loglikelihood",
            "doc_to_target": "{{target}}",
            "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
        },
    ),
    "own_outputs": (
        BEGINNINGS,
        {
            "output_type": "generate_until",
            "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": ["."], "max_gen_toks": 24, "temperature": 0},
            "metric_list": [{"metric": "exact_match"}],
        },
    ),
}


@dataclass
class Evaluated:
    """What the harness wrote: its table of results, and the samples of each task."""

    results: dict[str, Any]
    samples: dict[str, list[dict[str, Any]]]


def write_tasks(folder: Path) -> None:
    """Write each task, YAML as JSON, with its documents beside it."""
    for name, (documents, task) in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(one) + "\n" for one in documents))
        told = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "doc_to_text": "{{text}}",
            "target_delimiter": "",
            **task,
        }
        (folder / f"{name}.yaml").write_text(json.dumps(told))


def evaluate(url: str, folder: Path, **more: Any) -> Evaluated:
    """Run the harness against a server."""
    write_tasks(folder)
    given = {
        "model": "",
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "remote",
        **more,
    }
    command = [os.environ["PYBATCHER_LM_EVAL"], "run", "--model", "local-completions"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in given.items())]
    command += ["--tasks", ",".join(TASKS), "--include_path", str(folder), "--log_samples"]
    command += ["--output_path", str(folder / "out")]
    offline = {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ended = subprocess.run(
        command,
        env={**os.environ, **offline},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    (results,) = folder.glob("out/**/results_*.json")
    samples = {}
    for name in TASKS:
        (path,) = folder.glob(f"out/**/samples_{name}_*.jsonl")
        samples[name] = [json.loads(line) for line in path.read_text().splitlines()]
    return Evaluated(json.loads(results.read_text()), samples)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    folder = tmp_path_factory.mktemp("lm_eval")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    with serving(folder, "--no-socket", "--http", "127.0.0.1:0", *options) as running:
        return evaluate(running.url, folder, num_concurrent=3)


@pytest.fixture
def batcher() -> Iterator[BlockingBatcher]:
    with BlockingBatcher(**OPTIONS) as one:
        yield one


def asked_and_told(samples: list[dict[str, Any]]) -> Iterator[tuple[str, str, float, bool]]:
    """Context, continuation, log-probability and whether it is greedy, of each request."""
    for sample in samples:
        for asked, ((logprob, is_greedy),) in zip(
            sample["arguments"].values(), sample["resps"], strict=True
        ):
            yield asked["arg_0"], asked["arg_1"], float(logprob), str(is_greedy) == "True"


def test_log_probabilities_are_those_of_score_and_of_transformers(
    evaluated: Evaluated, batcher: BlockingBatcher, one_thread: None
) -> None:
    module = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    greedy = []
    for task in ("own_choices", "own_lines"):
        requests = list(asked_and_told(evaluated.samples[task]))
        assert len(requests) == sum(len(one.get("choices", "1")) for one in TASKS[task][0])
        for context, continuation, logprob, is_greedy in requests:
            whole = batcher.tokenize(context + continuation, add_special_tokens=False)
            before = batcher.tokenize(context, add_special_tokens=False)
            assert whole[: len(before)] == before
            after = whole[len(before) :]
            (score,) = batcher.score(before, [after], top_logprobs=1)
            assert logprob == sum(score.token_logprobs)
            tops = [top[0][1] for top in score.top_logprobs]
            assert is_greedy == (list(score.token_logprobs) == tops)
            greedy.append(is_greedy)
            with torch.no_grad():
                rows = module(torch.tensor([whole])).logits[0].double().log_softmax(-1)
            rows = rows[len(before) - 1 : -1]
            expected = rows.gather(1, torch.tensor(after)[:, None]).sum().item()
            assert abs(logprob - expected) < CLOSE
            assert is_greedy == (rows.argmax(-1).tolist() == list(after))
    assert set(greedy) == {False, True}


def test_outputs_are_those_of_generate(evaluated: Evaluated, batcher: BlockingBatcher) -> None:
    for sample in evaluated.samples["own_outputs"]:
        context = sample["arguments"]["gen_args_0"]["arg_0"]
        prompt = batcher.tokenize(context, add_special_tokens=False)
        own = batcher.generate(prompt, max_tokens=24, stop=["."])
        assert sample["resps"] == [[own.text]]


def test_the_table_of_results(evaluated: Evaluated) -> None:
    told = evaluated.results["results"]
    assert set(told) == set(TASKS)
    likeliest = []
    for sample in evaluated.samples["own_choices"]:
        logprobs = [float(logprob) for ((logprob, _),) in sample["resps"]]
        likeliest.append(logprobs.index(max(logprobs)) == int(sample["target"]))
    assert told["own_choices"]["acc,none"] == pytest.approx(sum(likeliest) / len(likeliest))
