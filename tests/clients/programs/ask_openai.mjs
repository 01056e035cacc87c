// openai's package of npm; prints what came back.

import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any" });
const messages = [{ role: "user", content: "Once upon a time" }];
const asked = { model, messages, seed: 7, max_completion_tokens: 24 };

const whole = await client.chat.completions.create(asked);
let streamed = "";
let usage = null;
const options = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create({ ...asked, ...options })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
const helper = client.chat.completions.stream(asked);
const response = await client.responses.create({
  model, input: "Once upon a time", max_output_tokens: 24, seed: 7,
});

const rivers = [];
const parameters = {
  type: "object",
  properties: { river: { enum: ["Ouse", "Cam"] } },
  required: ["river"],
  additionalProperties: false,
};
const runner = client.chat.completions.runTools({
  model,
  messages,
  tool_choice: { type: "function", function: { name: "count" } },
  tools: [{
    type: "function",
    function: {
      name: "count",
      description: "Counts the owls at a river.",
      parameters,
      strict: true,
      parse: JSON.parse,
      function: ({ river }) => { rivers.push(river); return "nine"; },
    },
  }],
});
await runner.done();
const vectors = await client.embeddings.create({ model, input: ["an owl", "a river"] });
const models = [];
for await (const one of client.models.list()) models.push(one.id);

console.log(JSON.stringify({
  whole: whole.choices[0].message.content,
  streamed,
  usage: [usage.prompt_tokens, usage.completion_tokens],
  helper: await helper.finalContent(),
  response: response.output_text,
  rivers,
  vectors: vectors.data.map((one) => one.embedding),
  models,
}));
