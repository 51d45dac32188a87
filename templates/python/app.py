"""Watches a page: looks at it, remembers what it saw, and looks again later if it is told to."""

from dataclasses import dataclass

from piecework import Discard, Job, RetryAfter, checkpoint, enqueue, fetch, handler, progress


@dataclass
class Payload:
    url: str
    # How often it is looked at.
    times: int = 1


# A payload that does not fit the type fails the job at once: it would not fit the next time either.
def run(job: Job, payload: Payload):
    # An earlier attempt may have come this far: then the page is not fetched again.
    seen = checkpoint.load("seen")
    if seen is None:
        seen = look(payload.url)
        checkpoint.save("seen", seen)
    progress(50, "fetched")

    # The next look is a job of its own; it is enqueued when this one succeeds.
    left = max(payload.times - 1, 0)
    if left:
        enqueue(job.job_type, {"url": payload.url, "times": left}, delay=60)
    return {"bytes": seen["bytes"], "left": left, "status": seen["status"]}


def look(url: str):
    # An exception that nobody catches is a retry.
    answer = fetch(url)
    if answer.status >= 500:
        raise RetryAfter(30, f"the server answered {answer.status}")
    if not answer.ok:
        raise Discard(f"the server answered {answer.status}")
    return {"bytes": len(answer.body), "status": answer.status}


WitWorld = handler(run)
