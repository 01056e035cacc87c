"""The JSON-Schema-Test-Suite (2020-12) through the masks, and through the sampler.

Of a schema that is not refused, no output and no instance of the suite may get through that
`jsonschema` or the suite calls invalid. A format that is not enforced is an annotation, as the
specification allows.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bench.structured.schema_outputs import Masks, SchemaOutputs, judge, reason
from pybatcher import Batcher
from pybatcher.text.grammars.idle_keywords import FORMATS
from tools.schema_suite import Case, fetch, read_cases

SEEDS = range(3)
OPTIONS: dict[str, Any] = {"temperature": 1.5, "max_tokens": 400}
STREAMS = 32
# Fewer would say that schemas are refused, or outputs cut, of which most should not be.
LEAST_ACCEPTED = 190
LEAST_FINISHED = 0.9


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return list(read_cases(fetch()))


@pytest.fixture(scope="module")
def masks() -> Masks:
    return Masks()


def is_annotation(schema: Any) -> bool:
    """True if the schema's only condition is a format that is not enforced."""
    return isinstance(schema, dict) and schema.get("format", "") not in FORMATS | {""}


def table(title: str, counts: Counter[str]) -> None:
    print(f"\n{title}: {counts.total()}")
    for what, count in counts.most_common():
        print(f"{count:6} {what}")


def test_no_instance_that_its_schema_forbids_is_let_through(
    cases: list[Case], masks: Masks
) -> None:
    refused: Counter[str] = Counter()
    shut_out: Counter[str] = Counter()
    let_through, n_schemas, n_instances = [], 0, 0
    for case in cases:
        if said := masks.refusal(case.schema):
            refused[reason(said)] += 1
            continue
        n_schemas += 1
        for one in case.instances:
            n_instances += 1
            accepted = masks.accepts(case.schema, one.value)
            if accepted and not one.valid and not is_annotation(case.schema):
                let_through.append(f"{case.name}: {one.description}: {one.value!r}")
            elif one.valid and not accepted:
                shut_out[f"{case.name}: {one.description}"] += 1
    table("schemas refused, by what they have", refused)
    table("valid instances that are not written", shut_out)
    print(f"{n_schemas} schemas accepted; {n_instances} instances, {len(let_through)} wrongly")
    assert not let_through, "\n".join(let_through)
    assert n_schemas >= LEAST_ACCEPTED


async def test_every_finished_output_is_valid(cases: list[Case], masks: Masks) -> None:
    schemas = [case.schema for case in cases]
    drawn = SchemaOutputs()
    async with Batcher(n_parallel=STREAMS, n_ctx=STREAMS * 512) as batcher:
        await drawn.draw(batcher, schemas, SEEDS, at_once=STREAMS, **OPTIONS)
    verdicts: Counter[str] = Counter()
    wrong = []
    for one in drawn.outputs:
        schema, name = schemas[one.schema], f"{cases[one.schema].name}, seed {one.seed}"
        if problem := masks.follow(schema, one.tokens)[0]:
            wrong.append(f"{name}: {problem}: {one.text!r}")
        verdict = judge(schema, one.text) if one.finished else "cut"
        verdicts[verdict] += 1
        if verdict not in ("valid", "rounded", "cut"):
            wrong.append(f"{name}: {verdict}: {one.text!r}")
    table("outputs", verdicts)
    print(f"{sum(len(one.tokens) for one in drawn.outputs)} tokens")
    assert not wrong, "\n".join(wrong)
    assert verdicts["valid"] >= LEAST_FINISHED * len(drawn.outputs)
    refused = {one.schema for one in drawn.refused}
    assert refused == {i for i, schema in enumerate(schemas) if masks.refusal(schema)}
    assert len(drawn.refused) == len(refused) * len(SEEDS)
