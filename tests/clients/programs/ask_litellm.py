"""litellm, by OpenAI's APIs and by Anthropic's; prints what came back."""

import json
import sys

import litellm

url, model = sys.argv[1:]
openai = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "any"}
vllm = {**openai, "model": f"hosted_vllm/{model}"}
anthropic = {"model": f"anthropic/{model}", "api_base": url, "api_key": "any"}
messages = [{"role": "user", "content": "Once upon a time"}]
asked = {"messages": messages, "seed": 7, "max_tokens": 24}
numbers = {"type": "object", "properties": {"a": {"enum": [3, 5]}}, "required": ["a"]}
tool = {"name": "sum", "parameters": {**numbers, "additionalProperties": False}, "strict": True}

whole = litellm.completion(**openai, **asked)
chunks = list(litellm.completion(**openai, **asked, stream=True))
of_vllm = litellm.completion(**vllm, **asked)
# It passes no seed on to this API.
of_anthropic = litellm.completion(**anthropic, messages=messages, max_tokens=24, temperature=0)
called = litellm.completion(
    **openai,
    messages=messages,
    tools=[{"type": "function", "function": tool}],
    tool_choice="required",
    parallel_tool_calls=False,
)
text = litellm.text_completion(
    model=f"text-completion-openai/{model}",
    api_base=f"{url}/v1",
    api_key="any",
    prompt="Once upon a time",
    seed=7,
    max_tokens=24,
)
response = litellm.responses(
    **openai, input="Once upon a time", max_output_tokens=24, extra_body={"seed": 7}
)
vectors = litellm.embedding(**openai, input=["an owl", "a river"], encoding_format="float")
try:
    litellm.completion(**{**openai, "model": "openai/another"}, messages=messages)
    refused = ""
except litellm.NotFoundError as error:
    refused = str(error)

print(
    json.dumps(
        {
            "whole": whole.choices[0].message.content,
            "usage": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
            "finish_reason": whole.choices[0].finish_reason,
            "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
            "of_vllm": of_vllm.choices[0].message.content,
            "of_anthropic": of_anthropic.choices[0].message.content,
            "calls": [call.function.model_dump() for call in called.choices[0].message.tool_calls],
            "text": text.choices[0].text,
            "response": response.output[0].content[0].text,
            "vectors": [one["embedding"] for one in vectors.data],
            "refused": refused,
        }
    )
)
