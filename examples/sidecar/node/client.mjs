// A client of `pybatcher serve` in Node: MessagePack-RPC over a unix socket.
//
//     npm ci
//     node client.mjs [SOCKET] [PROMPT]
//
// @msgpack/msgpack writes and reads the messages, Node's own net module has the socket.

import { once } from "node:events";
import { connect } from "node:net";
import { decodeMultiStream, encode } from "@msgpack/msgpack";

const [REQUEST, RESPONSE, NOTIFICATION] = [0, 1, 2];

class SidecarError extends Error {
  // code: "invalid_request", "queue_full", "cancelled", ...; retryable: whether to try again.
  constructor({ code, message, retryable, retry_after_ms }) {
    super(`${code}: ${message}`);
    Object.assign(this, { code, retryable, retryAfterMs: retry_after_ms });
  }
}

class Sidecar {
  #lastId = 0;
  #calls = new Map(); // by message id: what waits for the answer, and for deltas before it

  static async connect(path) {
    const sidecar = new Sidecar();
    sidecar.socket = connect(path);
    await once(sidecar.socket, "connect");
    sidecar.#read();
    return sidecar;
  }

  // Many calls can be under way at once; their answers come in any order.
  call(method, params, onDelta) {
    const id = ++this.#lastId;
    const enter = (resolve, reject) => this.#calls.set(id, { resolve, reject, onDelta });
    const answer = new Promise(enter);
    this.socket.write(encode([REQUEST, id, method, params]));
    return Object.assign(answer, { id });
  }

  generate(prompt, options = {}, onDelta) {
    return this.call("generate", [prompt, { ...options, stream: onDelta !== undefined }], onDelta);
  }

  cancel = (id) => this.socket.write(encode([NOTIFICATION, "cancel", [id]]));
  close = () => this.socket.end();

  async #read() {
    let why = new Error("the sidecar has hung up");
    try {
      for await (const message of decodeMultiStream(this.socket)) this.#take(message);
    } catch (error) {
      why = error;
    }
    for (const call of this.#calls.values()) call.reject(why);
  }

  #take([type, ...rest]) {
    if (type === RESPONSE) {
      const [id, error, result] = rest;
      const { resolve, reject } = this.#calls.get(id);
      this.#calls.delete(id);
      error ? reject(new SidecarError(error)) : resolve(result);
    } else if (type === NOTIFICATION && rest[0] === "delta") {
      const [id, delta] = rest[1];
      this.#calls.get(id)?.onDelta(delta);
    }
  }
}

const { PYBATCHER_SOCKET, XDG_RUNTIME_DIR } = process.env;
const path = process.argv[2] ?? PYBATCHER_SOCKET ?? `${XDG_RUNTIME_DIR}/pybatcher.sock`;
const prompt = process.argv[3] ?? "Once upon a time";
process.on("uncaughtException", ({ message, syscall }) => {
  console.error(message + (syscall ? "; start `pybatcher serve`, or name its socket" : ""));
  process.exit(1);
});
const sidecar = await Sidecar.connect(path);

console.log("== a stream");
const print = (delta) => process.stdout.write(delta.text);
const streamed = await sidecar.generate(prompt, { max_tokens: 24 }, print);
console.log(`\n${streamed.finish_reason}, ${streamed.usage.completion_tokens} tokens`);

console.log("== two at once");
const drawn = { max_tokens: 24, temperature: 0.8, seed: 7 };
const both = [sidecar.generate(prompt, { max_tokens: 24 }), sidecar.generate(prompt, drawn)];
for (const { text } of await Promise.all(both)) console.log(text);

console.log("== a stream that is cancelled");
let deltas = 0;
const long = sidecar.generate(prompt, { max_tokens: 1000, ignore_eos: true }, () => {
  if (++deltas === 5) sidecar.cancel(long.id);
});
await long.catch((error) => console.log(error.message));

const { model } = await sidecar.call("hello", [{}]);
const { completed } = await sidecar.call("statistics", []);
console.log(`== ${model} has completed ${completed}`);
sidecar.close();
