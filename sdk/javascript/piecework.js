// Handlers for Piecework, in JavaScript: what the engine lacks, and the host's functions in the language's own words.
// piecework.d.ts has the types and says what each is for.
import { load, save } from "piecework:handler/checkpoint@0.1.0";
import { send } from "piecework:handler/http@0.1.0";
import * as jobs from "piecework:handler/jobs@0.1.0";
import { log } from "piecework:handler/log@0.1.0";
import { get } from "wasi:config/store@0.2.0-rc.1";
import { getRandomBytes } from "wasi:random/random@0.2.0";

// ---- What the engine lacks

class Encoder {
  get encoding() {
    return "utf-8";
  }
  encode(text = "") {
    // Each escape of encodeURIComponent is one byte; a lone surrogate, which it refuses, becomes U+FFFD as the standard has it.
    const escaped = encodeURIComponent(String(text).toWellFormed?.() ?? wellFormed(String(text)));
    const bytes = [];
    for (let at = 0; at < escaped.length; at++) {
      if (escaped[at] === "%") {
        bytes.push(parseInt(escaped.slice(at + 1, at + 3), 16));
        at += 2;
      } else {
        bytes.push(escaped.charCodeAt(at));
      }
    }
    return Uint8Array.from(bytes);
  }
}

const wellFormed = (text) =>
  text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");

class Decoder {
  get encoding() {
    return "utf-8";
  }
  decode(bytes = new Uint8Array()) {
    if (!(bytes instanceof Uint8Array)) {
      bytes = ArrayBuffer.isView(bytes)
        ? new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength)
        : new Uint8Array(bytes);
    }
    let at = bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? 3 : 0;
    let text = "";
    while (at < bytes.length) {
      const first = bytes[at++];
      if (first < 0x80) {
        text += String.fromCharCode(first);
        continue;
      }
      const more = first >= 0xf0 && first < 0xf5 ? 3 : first >= 0xe0 && first < 0xf0 ? 2 : first >= 0xc2 && first < 0xe0 ? 1 : 0;
      let code = first & (0x3f >> more);
      let read = 0;
      while (read < more && (bytes[at + read] & 0xc0) === 0x80) {
        code = (code << 6) | (bytes[at + read] & 0x3f);
        read++;
      }
      const least = [0, 0x80, 0x800, 0x10000][more];
      at += read;
      const whole = more > 0 && read === more && code >= least && code < 0x110000 && (code < 0xd800 || code > 0xdfff);
      text += whole ? String.fromCodePoint(code) : "\ufffd";
    }
    return text;
  }
}

globalThis.TextEncoder ??= Encoder;
globalThis.TextDecoder ??= Decoder;

const shown = (value) => {
  if (typeof value === "string") return value;
  if (value instanceof Error) return value.stack ? `${value}\n${value.stack}` : `${value}`;
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
};
const line = (level) => (...values) => log(level, values.map(shown).join(" "));
globalThis.console ??= {
  debug: line("debug"),
  log: line("info"),
  info: line("info"),
  warn: line("warn"),
  error: line("error"),
};

// The engine is frozen when the component is built, with the state of its generator: left alone, every job would draw the same
// numbers. This one (xoshiro128**) is seeded by the host when a job first draws.
let state;
const turn = (word, by) => (word << by) | (word >>> (32 - by));
const draw = () => {
  state ??= new Uint32Array(Uint8Array.from(getRandomBytes(16)).buffer);
  const drawn = Math.imul(turn(Math.imul(state[1], 5), 7), 9) >>> 0;
  const shifted = state[1] << 9;
  state[2] ^= state[0];
  state[3] ^= state[1];
  state[1] ^= state[2];
  state[0] ^= state[3];
  state[2] ^= shifted;
  state[3] = turn(state[3], 11);
  return drawn;
};
Math.random = () => ((draw() >>> 5) * 0x4000000 + (draw() >>> 6)) / 0x20000000000000;
globalThis.crypto ??= {
  getRandomValues(array) {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    bytes.set(Uint8Array.from(getRandomBytes(bytes.length)));
    return array;
  },
  randomUUID() {
    const bytes = this.getRandomValues(new Uint8Array(16));
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
  },
};

// ---- What a job comes to

export class Failure extends Error {
  constructor(message, disposition) {
    super(message);
    this.name = new.target.name;
    this.disposition = disposition;
  }
}
export class Retry extends Failure {
  constructor(message) {
    super(message, { tag: "retry" });
  }
}
export class RetryAfter extends Failure {
  constructor(seconds, message) {
    super(message, { tag: "retry-after", val: seconds });
  }
}
export class Snooze extends Failure {
  constructor(seconds, message) {
    super(message, { tag: "snooze", val: seconds });
  }
}
export class Discard extends Failure {
  constructor(message) {
    super(message, { tag: "discard" });
  }
}

const told = (error) => {
  if (!(error instanceof Error)) return shown(error);
  const stack = error.stack?.trimEnd();
  const cause = error.cause === undefined ? "" : `\ncaused by ${told(error.cause)}`;
  return `${error.name}: ${error.message}${stack ? `\n${stack}` : ""}${cause}`;
};

export function handler(run) {
  return (job) => {
    let payload;
    try {
      payload = JSON.parse(job.payload);
    } catch (error) {
      throw { message: `the payload: ${error.message}`, disposition: { tag: "discard" } };
    }
    try {
      const result = run(job, payload);
      if (typeof result?.then === "function") {
        throw new Discard("the handler is async: nothing waits for it here; leave out `async` and `await`");
      }
      return result === undefined ? undefined : JSON.stringify(result);
    } catch (error) {
      if (error instanceof Failure) {
        throw { message: error.message, disposition: error.disposition };
      }
      // Not for the handler to report: the host knows how much it was.
      if (error instanceof Error && error.message === "out of memory") throw error;
      throw { message: told(error), disposition: { tag: "retry" } };
    }
  };
}

export function fail(member, what) {
  throw new Discard(`the payload: \`${member}\` must be ${what}`);
}

// ---- The host's functions

// What the host says of a failed call is in the payload of the error that the engine throws.
const asked = (call, wrap) => {
  try {
    return call();
  } catch (error) {
    throw wrap(error?.payload ?? error);
  }
};

export const progress = (percent, message = "") => jobs.progress(percent, message);
export const cancelled = () => jobs.cancelled();

export function enqueue(jobType, payload, options = {}) {
  const { delay, dueAt, priority, maxAttempts, uniqueKey, uniqueFor, orderingKey, groupKey, ...unknown } = options;
  const [name] = Object.keys(unknown);
  if (name) throw new Discard(`the follow-up \`${jobType}\`: there is no option \`${name}\``);
  const job = { jobType, payload: JSON.stringify(payload), delay, dueAt, priority, maxAttempts, uniqueKey, uniqueFor, orderingKey, groupKey };
  asked(
    () => jobs.enqueue(job),
    (reason) => new Discard(`the follow-up \`${jobType}\`: ${shown(reason)}`),
  );
}

export const checkpoint = {
  load(name) {
    const text = load(name);
    return text === undefined || text === null ? undefined : JSON.parse(text);
  },
  save(name, value) {
    asked(
      () => save(name, JSON.stringify(value)),
      (reason) => new Retry(`the checkpoint \`${name}\`: ${shown(reason)}`),
    );
  },
};

export const config = (name) => get(name) ?? undefined;
export const secret = (name) => config(`secrets.${name}`);

export class HttpError extends Error {
  constructor(kind, message) {
    super(message);
    this.name = "HttpError";
    this.kind = kind;
  }
}

class Headers {
  #pairs;
  constructor(pairs) {
    this.#pairs = pairs;
  }
  get(name) {
    const found = this.#pairs.filter(([other]) => other === name.toLowerCase());
    return found.length ? found.map(([, value]) => value).join(", ") : null;
  }
  has(name) {
    return this.get(name) !== null;
  }
  [Symbol.iterator]() {
    return this.#pairs[Symbol.iterator]();
  }
}

class Response {
  #body;
  constructor(url, answer) {
    this.url = url;
    this.status = answer.status;
    this.ok = answer.status >= 200 && answer.status < 300;
    this.headers = new Headers(answer.headers);
    this.#body = answer.body instanceof Uint8Array ? answer.body : Uint8Array.from(answer.body);
  }
  bytes() {
    return this.#body;
  }
  text() {
    return new TextDecoder().decode(this.#body);
  }
  json() {
    return JSON.parse(this.text());
  }
}

export function fetch(url, { method = "GET", headers = {}, body, json, timeout } = {}) {
  const pairs = (Array.isArray(headers) ? headers : Object.entries(headers)).map(([name, value]) => [name, String(value)]);
  if (json !== undefined) {
    body = JSON.stringify(json);
    if (!pairs.some(([name]) => name.toLowerCase() === "content-type")) pairs.push(["content-type", "application/json"]);
  }
  if (typeof body === "string") body = new TextEncoder().encode(body);
  const request = { method, url: String(url), headers: pairs, body, timeout };
  const answer = asked(
    () => send(request),
    (reason) => (reason?.tag ? new HttpError(reason.tag, reason.val) : reason),
  );
  return new Response(request.url, answer);
}
globalThis.fetch ??= fetch;
