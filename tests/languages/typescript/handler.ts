// What the tests of all languages ask of a handler: tests/it/languages.rs.
import {
  Discard, type Job, Retry, RetryAfter, Snooze, checkpoint, enqueue, fail, fetch, handler, progress, secret,
} from "./piecework.js";

interface Payload {
  do: string;
  text?: string;
  url?: string;
  next?: string;
}

export const run = handler<Payload>((job, payload) => {
  switch (payload.do) {
    case "work":
      return work(job, payload);
    case "checkpoint":
      return step(job);
    case "retry":
      throw new Retry("asked to retry");
    case "retry-after":
      throw new RetryAfter(60, "asked to wait");
    case "snooze":
      throw new Snooze(30, "too early");
    case "discard":
      throw new Discard("asked to discard");
    case "error":
      throw new Error("an ordinary error");
    case "panic":
      throw new TypeError("asked to panic");
    case "loop":
      for (;;) {}
    case "allocate": {
      const held: Uint8Array[] = [];
      for (;;) held.push(new Uint8Array(1 << 20).fill(1));
    }
    case "random":
      return { random: crypto.randomUUID() };
    default:
      throw new Discard(`there is no \`${payload.do}\``);
  }
});

function work(job: Job, { text, url, next }: Payload) {
  if (typeof text !== "string") fail("text", "a string");
  console.log(`attempt ${job.attempt} of ${job.maxAttempts}`);
  progress(10, "parsed");
  const shout = text.replace(/[a-z]/g, (letter) => letter.toUpperCase());
  let status: number | null = null;
  let body: string | null = null;
  if (url) {
    const token = secret("token");
    const headers: Record<string, string> = { accept: "text/plain" };
    if (token) headers.authorization = `Bearer ${token}`;
    const answer = fetch(url, { headers });
    status = answer.status;
    body = answer.text();
  }
  if (next) enqueue(next, { from: "typescript", text: shout }, { delay: 5, uniqueKey: `after-${job.id}` });
  return { language: "typescript", text: shout, status, body };
}

function step(job: Job) {
  if (job.attempt === 1) {
    checkpoint.save("step", { attempt: 1, note: "für später" });
    progress(50, "saved");
    throw new Retry("half way");
  }
  const saved = checkpoint.load<{ attempt: number; note: string }>("step");
  if (!saved) throw new Discard("the checkpoint is lost");
  return { resumed: saved.attempt, note: saved.note };
}
