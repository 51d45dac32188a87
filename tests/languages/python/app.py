"""What the tests of all languages ask of a handler: tests/it/languages.rs."""

import random
from dataclasses import dataclass
from typing import Optional

from piecework import (
    Discard, Job, Retry, RetryAfter, Snooze, checkpoint, enqueue, fetch, handler, log, progress, secret,
)


@dataclass
class Payload:
    do: str
    text: Optional[str] = None
    url: Optional[str] = None
    next: Optional[str] = None


def run(job: Job, payload: Payload):
    match payload.do:
        case "work":
            return work(job, payload)
        case "checkpoint":
            return step(job)
        case "retry":
            raise Retry("asked to retry")
        case "retry-after":
            raise RetryAfter(60, "asked to wait")
        case "snooze":
            raise Snooze(30, "too early")
        case "discard":
            raise Discard("asked to discard")
        case "error":
            raise ValueError("an ordinary error")
        case "panic":
            # What is no Exception is not for the SDK.
            raise BaseException("asked to panic")
        case "loop":
            while True:
                pass
        case "allocate":
            held = []
            while True:
                held.append(bytearray(b"x" * (1 << 20)))
        case "random":
            return {"random": random.random()}
        case other:
            raise Discard(f"there is no `{other}`")


def work(job: Job, payload: Payload):
    if payload.text is None:
        raise Discard("the payload: `text` is missing")
    log.info(f"attempt {job.attempt} of {job.max_attempts}")
    progress(10, "parsed")
    shout = "".join(letter.upper() if letter.isascii() else letter for letter in payload.text)
    status = body = None
    if payload.url:
        headers = {"accept": "text/plain"}
        if token := secret("token"):
            headers["authorization"] = f"Bearer {token}"
        answer = fetch(payload.url, headers=headers)
        status, body = answer.status, answer.text
    if payload.next:
        enqueue(payload.next, {"from": "python", "text": shout}, delay=5, unique_key=f"after-{job.id}")
    return {"language": "python", "text": shout, "status": status, "body": body}


def step(job: Job):
    if job.attempt == 1:
        checkpoint.save("step", {"attempt": 1, "note": "für später"})
        progress(50, "saved")
        raise Retry("half way")
    saved = checkpoint.load("step")
    if saved is None:
        raise Discard("the checkpoint is lost")
    return {"resumed": saved["attempt"], "note": saved["note"]}


WitWorld = handler(run)
