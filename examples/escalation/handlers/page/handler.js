// Pages one person of an alert's ladder, and schedules the next: a follow-up is enqueued in the transaction that says that this page is
// out. Every step has the key of its alert: by that an acknowledgement finds the ladder, wherever it is.
import { Discard, Retry, cancelled, checkpoint, config, enqueue, fail, fetch, handler } from "./piecework.js";

export const run = handler((job, { alert, service, step, ladder }) => {
  if (!Array.isArray(ladder) || !ladder[step]) fail("ladder", "an array with a member for each step");
  const { person, wait } = ladder[step];

  // An attempt that died after the page was out must not page again.
  if (!checkpoint.load("paged")) {
    // Acknowledged since this job was claimed: the host says so, and stops a call that is being made.
    if (cancelled()) throw new Retry("acknowledged meanwhile");
    const answer = fetch(config("service"), {
      method: "POST",
      headers: { "idempotency-key": job.idempotencyKey },
      json: { alert, service, person, step },
    });
    if (answer.status >= 500) throw new Retry(`the paging service answered ${answer.status}`);
    if (!answer.ok) throw new Discard(`the paging service refuses the page: ${answer.status} ${answer.text()}`);
    checkpoint.save("paged", true);
  }

  if (step + 1 < ladder.length) {
    enqueue(job.jobType, { alert, service, step: step + 1, ladder }, {
      delay: wait,
      maxAttempts: job.maxAttempts,
      uniqueKey: `alert-${alert}`,
    });
  }
  return { paged: person };
});
