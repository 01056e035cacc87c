"""instructor in its modes, over openai's package and anthropic's; prints what came back."""

import json
import sys
from typing import Literal

import anthropic
import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field

url, model = sys.argv[1:]


class Owl(BaseModel):
    """What is known of an owl."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["barn owl", "tawny owl"]
    is_awake: bool
    rings: list[Literal[1, 2, 3]] = Field(max_length=2)


question = {"messages": [{"role": "user", "content": "Which owl?"}], "response_model": Owl}
modes = ("JSON_SCHEMA", "TOOLS", "RESPONSES_TOOLS", "ANTHROPIC_TOOLS")
found = {}
for mode in modes:
    if mode.startswith("ANTHROPIC"):
        of_anthropic = anthropic.Anthropic(base_url=url, api_key="any")
        client = instructor.from_anthropic(of_anthropic, mode=instructor.Mode[mode])
    else:
        of_openai = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
        client = instructor.from_openai(of_openai, mode=instructor.Mode[mode])
    create = client.chat.completions
    owl = create.create(model=model, max_tokens=400, max_retries=1, **question)
    parts = list(create.create_partial(model=model, max_tokens=400, max_retries=1, **question))
    found[mode] = [owl.model_dump(), parts[-1].model_dump()]
print(json.dumps(found))
