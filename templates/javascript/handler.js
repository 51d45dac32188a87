// Watches a page: looks at it, remembers what it saw, and looks again later if it is told to.
import { Discard, RetryAfter, checkpoint, enqueue, fail, fetch, handler, progress } from "./piecework.js";

export const run = handler((job, payload) => {
  // A payload that is wrong stays wrong: the job fails at once.
  const { url, times = 1 } = payload ?? {};
  if (typeof url !== "string") fail("url", "a string");
  if (!Number.isInteger(times)) fail("times", "a whole number");

  // An earlier attempt may have come this far: then the page is not fetched again.
  let seen = checkpoint.load("seen");
  if (!seen) {
    seen = look(url);
    checkpoint.save("seen", seen);
  }
  progress(50, "fetched");

  // The next look is a job of its own; it is enqueued when this one succeeds.
  const left = Math.max(times - 1, 0);
  if (left) enqueue(job.jobType, { url, times: left }, { delay: 60 });
  return { bytes: seen.bytes, left, status: seen.status };
});

function look(url) {
  // An error that nobody catches is a retry.
  const answer = fetch(url);
  if (answer.status >= 500) throw new RetryAfter(30, `the server answered ${answer.status}`);
  if (!answer.ok) throw new Discard(`the server answered ${answer.status}`);
  return { bytes: answer.bytes().length, status: answer.status };
}
