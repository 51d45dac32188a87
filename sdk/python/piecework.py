"""Handlers for Piecework, in Python.

    from piecework import Discard, Job, handler

    def run(job: Job, payload: dict):
        if not payload.get("name"):
            raise Discard("there is nobody to greet")
        return {"greeting": f"Hello, {payload['name']}"}

    WitWorld = handler(run)

What the function returns is the result, as JSON. A raised Failure says what becomes of the job; any other exception is a retry with
its traceback. If the payload's type is a dataclass, it is made from the payload; what does not fit fails the job at once.
"""

from __future__ import annotations

import dataclasses
import json as _json
import traceback
import types as _types
import typing
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, TypeVar, Union

import wit_world
from componentize_py_types import Err
from wit_world.imports import checkpoint as _checkpoint
from wit_world.imports import http as _http
from wit_world.imports import jobs as _jobs
from wit_world.imports import log as _log
from wit_world.imports import store as _store
from wit_world.imports import types as _wit
from wit_world.imports.types import Job

__all__ = [
    "Discard", "Failure", "HttpError", "Job", "Response", "Retry", "RetryAfter", "Snooze", "cancelled", "checkpoint",
    "config", "enqueue", "fetch", "handler", "log", "progress", "secret",
]

T = TypeVar("T")


class Failure(Exception):
    """A failed attempt that says what to do next: one of the four below."""

    def __init__(self, message: str, disposition: Any):
        super().__init__(message)
        self.disposition = disposition


class Retry(Failure):
    """Try again after the plugin's backoff, while attempts are left."""

    def __init__(self, message: str):
        super().__init__(message, _wit.Disposition_Retry())


class RetryAfter(Failure):
    """Try again after so many seconds, while attempts are left."""

    def __init__(self, seconds: int, message: str):
        super().__init__(message, _wit.Disposition_RetryAfter(seconds))


class Snooze(Failure):
    """Too early: run again after so many seconds; no attempt is used."""

    def __init__(self, seconds: int, message: str):
        super().__init__(message, _wit.Disposition_Snooze(seconds))


class Discard(Failure):
    """Trying again is useless: the job fails now."""

    def __init__(self, message: str):
        super().__init__(message, _wit.Disposition_Discard())


def handler(run: Callable[[Job, Any], Any]) -> type:
    """Makes the class that a component exports, which must be named WitWorld."""
    names = run.__code__.co_varnames[: run.__code__.co_argcount]
    kind = typing.get_type_hints(run).get(names[1], Any) if len(names) > 1 else Any

    class WitWorld(wit_world.WitWorld):
        def run(self, job: Job) -> Optional[str]:
            try:
                try:
                    payload = _fit(kind, _json.loads(job.payload), "")
                except ValueError as error:
                    raise Discard(f"the payload: {error}") from None
                result = run(job, payload)
                return None if result is None else _json.dumps(result, ensure_ascii=False, default=_plain)
            except Failure as failure:
                raise Err(_wit.Failure(str(failure), failure.disposition)) from None
            except MemoryError:
                # Not for the handler to report: the host knows how much it was.
                raise
            except Exception as error:
                # The cause first: it is what an operator sees in a list.
                text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
                raise Err(_wit.Failure(text, _wit.Disposition_Retry())) from None

    return WitWorld


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"a {type(value).__name__} is no JSON")


def _fit(kind: Any, value: Any, at: str) -> Any:
    """The value as this type, or a ValueError that names the member."""
    where = f"`{at}`" if at else "it"
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        return value
    if origin in (Union, _types.UnionType):
        for one in inner:
            try:
                return _fit(one, value, at)
            except ValueError as error:
                last = error
        raise last
    if kind is type(None):
        if value is not None:
            raise ValueError(f"{where} must be null")
        return None
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be an object")
        hints, made = typing.get_type_hints(kind), {}
        for member in dataclasses.fields(kind):
            path = f"{at}.{member.name}" if at else member.name
            if member.name in value:
                made[member.name] = _fit(hints[member.name], value[member.name], path)
            elif member.default is dataclasses.MISSING and member.default_factory is dataclasses.MISSING:
                raise ValueError(f"`{path}` is missing")
        return kind(**made)
    if origin in (list, tuple, set) or kind in (list, tuple, set):
        if not isinstance(value, list):
            raise ValueError(f"{where} must be an array")
        each = inner[0] if inner else Any
        return (origin or kind)(_fit(each, one, f"{at}[{number}]") for number, one in enumerate(value))
    if origin is dict or kind is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be an object")
        each = inner[1] if inner else Any
        return {name: _fit(each, one, f"{at}.{name}") for name, one in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(kind, type):
        return value
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
        raise ValueError(f"{where} must be {names.get(kind, kind.__name__)}")
    return value


def progress(percent: int, message: str = "") -> None:
    """Tells people how far the attempt is."""
    _jobs.progress(percent, message)


def cancelled() -> bool:
    """Whether the host wants this attempt to end soon: the job was cancelled, or the host stops."""
    return _jobs.cancelled()


def enqueue(
    job_type: str,
    payload: Any,
    *,
    delay: Optional[int] = None,
    due_at: Optional[str] = None,
    priority: Optional[int] = None,
    max_attempts: Optional[int] = None,
    unique_key: Optional[str] = None,
    unique_for: Optional[int] = None,
    ordering_key: Optional[str] = None,
    group_key: Optional[str] = None,
) -> None:
    """Enqueues a follow-up when this attempt succeeds: in the same transaction, or not at all.

    delay and unique_for are seconds from the success; due_at is RFC 3339; priority is 1 first to 4 last.
    """
    text = _json.dumps(payload, ensure_ascii=False, default=_plain)
    job = _jobs.NewJob(
        job_type, text, delay, due_at, priority, max_attempts, unique_key, unique_for, ordering_key, group_key
    )
    try:
        _jobs.enqueue(job)
    except Err as error:
        raise Discard(f"the follow-up `{job_type}`: {error.value}") from None


class checkpoint:
    """What the job remembers from attempt to attempt."""

    @staticmethod
    def load(name: str) -> Any:
        """What was saved under this name, by this attempt or an earlier one; None when nothing was."""
        text = _checkpoint.load(name)
        return None if text is None else _json.loads(text)

    @staticmethod
    def save(name: str, value: Any) -> None:
        """Keeps a value, as JSON; it is in the database when this returns, whatever becomes of the attempt."""
        try:
            _checkpoint.save(name, _json.dumps(value, ensure_ascii=False, default=_plain))
        except Err as error:
            raise Retry(f"the checkpoint `{name}`: {error.value}") from None


class log:
    """To the host's log and the job's record; what is printed is in the record only."""

    @staticmethod
    def debug(message: str) -> None:
        _log.log(_log.Level.DEBUG, message)

    @staticmethod
    def info(message: str) -> None:
        _log.log(_log.Level.INFO, message)

    @staticmethod
    def warn(message: str) -> None:
        _log.log(_log.Level.WARN, message)

    @staticmethod
    def error(message: str) -> None:
        _log.log(_log.Level.ERROR, message)


def config(name: str) -> Optional[str]:
    """A setting of [plugins.NAME.config] in runner.toml, as text."""
    return _store.get(name)


def secret(name: str) -> Optional[str]:
    """The placeholder of a secret: put it into a header or the query, and the host puts the secret in its place, in requests to
    the secret's own hosts only."""
    return config(f"secrets.{name}")


class HttpError(Exception):
    """Why a call has no answer; kind is denied, timeout, dns, connect, tls, protocol, too-large, limit or cancelled."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@dataclass
class Response:
    """The answer, whatever its status, with its whole body."""

    status: int
    # Names in lower case.
    headers: list[tuple[str, str]]
    body: bytes = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether the status is 200 to 299."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        return _json.loads(self.body)

    def header(self, name: str) -> Optional[str]:
        return next((value for other, value in self.headers if other == name.lower()), None)


def fetch(
    url: str,
    *,
    method: str = "GET",
    headers: Optional[Mapping[str, str]] = None,
    body: Union[bytes, str, None] = None,
    json: Any = None,
    timeout: Optional[int] = None,
) -> Response:
    """An HTTP call by the host, only to where `allow` of the plugin in runner.toml points.

    json is sent in place of body; timeout is in milliseconds. A status that says that something went wrong is no error.
    """
    pairs = list((headers or {}).items())
    if json is not None:
        body = _json.dumps(json, ensure_ascii=False, default=_plain)
        if not any(name.lower() == "content-type" for name, _ in pairs):
            pairs.append(("content-type", "application/json"))
    if isinstance(body, str):
        body = body.encode()
    try:
        answer = _http.send(_http.Request(method, url, pairs, body, timeout))
    except Err as error:
        kind = type(error.value).__name__.removeprefix("HttpError_")
        kind = {"TooLarge": "too-large"}.get(kind, kind.lower())
        raise HttpError(kind, error.value.value) from None
    return Response(answer.status, answer.headers, answer.body)
