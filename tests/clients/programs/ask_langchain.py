"""langchain-openai by chat completions and by Responses; prints what came back."""

import json
import sys
from typing import Literal

from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

url, model = sys.argv[1:]
where = {"model": model, "base_url": f"{url}/v1", "api_key": "any"}


class Owl(BaseModel):
    """What is known of an owl."""

    kind: Literal["barn owl", "tawny owl"]
    is_awake: bool


def count(river: Literal["Ouse", "Cam"]) -> int:
    """Count the owls at a river."""
    return len(river)


chat = ChatOpenAI(**where, seed=7, max_tokens=24)
responses = ChatOpenAI(**where, use_responses_api=True, max_tokens=24, extra_body={"seed": 7})
free = ChatOpenAI(**where, seed=7)
whole = chat.invoke("Once upon a time")
forms = {}
for method in ("json_schema", "function_calling"):
    owl = free.with_structured_output(Owl, method=method, strict=True).invoke("Which owl?")
    forms[method] = owl.model_dump()
called = free.bind_tools([count], tool_choice="count", strict=True).invoke("How many owls?")
texts = OpenAIEmbeddings(**where, check_embedding_ctx_length=False)
tokens = OpenAIEmbeddings(**where, tiktoken_enabled=False, check_embedding_ctx_length=False)

print(
    json.dumps(
        {
            "whole": whole.content,
            "usage": [whole.usage_metadata[name] for name in ("input_tokens", "output_tokens")],
            "streamed": "".join(chunk.content for chunk in chat.stream("Once upon a time")),
            "batch": [made.content for made in chat.batch(["Once upon a time"] * 4)],
            "responses": responses.invoke("Once upon a time").text,
            "responses_streamed": "".join(
                chunk.text for chunk in responses.stream("Once upon a time")
            ),
            "text": OpenAI(**where, seed=7, max_tokens=24, temperature=1).invoke(
                "Once upon a time"
            ),
            "forms": forms,
            "calls": [[call["name"], call["args"]] for call in called.tool_calls],
            "vectors": texts.embed_documents(["an owl", "a river"]),
            "vector": tokens.embed_query("an owl"),
        }
    )
)
