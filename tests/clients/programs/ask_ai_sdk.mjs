// The packages ai, @ai-sdk/openai-compatible, @ai-sdk/anthropic and @anthropic-ai/sdk of npm;
// prints what came back.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import Anthropic from "@anthropic-ai/sdk";
import { embedMany, generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const openai = createOpenAICompatible({
  name: "local", baseURL: `${url}/v1`, apiKey: "any", includeUsage: true,
  supportsStructuredOutputs: true,
});
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "any" });
const asked = { prompt: "Once upon a time", maxOutputTokens: 24, maxRetries: 0 };
const owls = { schema: z.object({ kind: z.enum(["barn owl", "tawny owl"]) }), prompt: "An owl" };
const count = tool({ inputSchema: z.object({ river: z.enum(["Ouse", "Cam"]) }) });

async function said(of, options) {
  const whole = await generateText({ model: of, ...asked, ...options });
  const stream = streamText({ model: of, ...asked, ...options });
  let streamed = "";
  for await (const text of stream.textStream) streamed += text;
  const usage = await stream.usage;
  const form = await generateObject({ model: of, ...owls, maxRetries: 0 });
  const called = await generateText({
    model: of, prompt: "How many?", tools: { count }, toolChoice: "required", maxRetries: 0,
  });
  return {
    whole: whole.text,
    streamed,
    usage: [usage.inputTokens, usage.outputTokens],
    kind: form.object.kind,
    rivers: called.toolCalls.map((call) => call.input.river),
  };
}

const client = new Anthropic({ baseURL: url, apiKey: "any" });
const messages = [{ role: "user", content: asked.prompt }];
const likeliest = { model, max_tokens: 24, temperature: 0, messages };
const whole = await client.messages.create(likeliest);
const last = await client.messages.stream(likeliest).finalMessage();
const counted = await client.messages.countTokens({ model, messages });
const vectors = await embedMany({
  model: openai.textEmbeddingModel(model), values: ["an owl", "a river"],
});

console.log(JSON.stringify({
  openai: await said(openai(model), { temperature: 1, seed: 7 }),
  anthropic: await said(anthropic(model), { temperature: 0 }),
  sdk: { whole: whole.content[0].text, streamed: last.content[0].text, counted: counted.input_tokens },
  vectors: vectors.embeddings,
}));
