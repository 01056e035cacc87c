// Sends requests to the server of this page, and reads their answers as they arrive.

import { KEY, recall } from "./kept.js";

export class ApiError extends Error {
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

// Returns the response of `path`, which is relative to the page. Throws ApiError.
export async function ask(path, { body = null, signal = null } = {}) {
  const headers = {};
  const key = recall(KEY);
  if (key !== null) headers.authorization = `Bearer ${key}`;
  if (body !== null) headers["content-type"] = "application/json";
  const response = await fetch(new URL(path, document.baseURI), {
    method: body === null ? "GET" : "POST",
    body: body === null ? null : JSON.stringify(body),
    headers,
    signal,
    cache: "no-store",
    credentials: "omit",
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // The body is a proxy's page or empty, so that only the status is known.
  }
  const message = told.message ?? `the server said ${response.status} ${response.statusText}`;
  return new ApiError(response.status, message, told.param ?? null);
}

// Yields the objects of a stream of events until "[DONE]" or its end. Throws ApiError for an
// error event in the stream, and if the stream ends without its last event.
export async function* events(response, { hasEnd = true } = {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = dataOf(part);
        if (data === "[DONE]") return;
        if (data === "") continue;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(0, event.error.message, event.error.param);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
  if (hasEnd) throw new ApiError(0, "the connection ended before the answer did");
}

function dataOf(part) {
  const lines = part.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

// Returns the message of an error for the user.
export function said(error) {
  if (error instanceof ApiError) return error.message;
  return "the server cannot be reached";
}
