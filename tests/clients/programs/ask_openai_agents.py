"""An agent of openai-agents over Responses and over chat completions; prints what came back."""

import asyncio
import json
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

url, model = sys.argv[1:]
set_tracing_disabled(True)
counted = []


@function_tool
def count_owls(river: str, night: int) -> str:
    """Count the owls at a river in one night."""
    counted.append([river, night])
    return "nine"


async def main() -> None:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="any")
    found = {}
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        counted.clear()
        served = kind(model=model, openai_client=client)
        agent = Agent("counter", instructions="You count.", model=served, tools=[count_owls])
        made = await Runner.run(agent, "How many owls are at the river?")
        streamed = Runner.run_streamed(agent, "How many owls are at the river?")
        events = [event.type async for event in streamed.stream_events()]
        found[kind.__name__] = {
            "counted": list(counted),
            "text": made.final_output,
            "items": [item.type for item in made.new_items],
            "streamed": streamed.final_output,
            "events": len(events),
        }
    print(json.dumps(found))


asyncio.run(main())
