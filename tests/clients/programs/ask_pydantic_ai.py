"""An agent of pydantic-ai with a tool and a type, over two APIs; prints what came back."""

import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

url, model, what = sys.argv[1:]
provider = OpenAIProvider(base_url=f"{url}/v1", api_key="any")
question = "How many owls are at the river?"
counted: list[list[object]] = []


class Sighting(BaseModel):
    """Owls that were seen."""

    owls: Literal[8, 9]
    where: Literal["at the river", "by the sea"]


def count_owls(river: str, night: int) -> str:
    """Count the owls at a river in one night."""
    counted.append([river, night])
    return "nine"


found = {}
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    counted.clear()
    served = kind(model, provider=provider)
    if what == "typed":
        for output in (ToolOutput(Sighting, strict=True), NativeOutput(Sighting, strict=True)):
            agent = Agent(served, output_type=output)
            made = agent.run_sync(question)
            found[f"{kind.__name__}, {type(output).__name__}"] = made.output.model_dump()
    else:
        agent = Agent(served, tools=[count_owls], system_prompt="You count owls.")
        text = agent.run_sync(question).output
        streamed = agent.run_stream_sync(question).get_output()
        found[kind.__name__] = {"text": text, "streamed": streamed, "counted": list(counted)}
print(json.dumps(found))
