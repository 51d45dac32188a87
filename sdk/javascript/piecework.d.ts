/** One attempt of one job. */
export interface Job {
  /** Decimal digits. */
  readonly id: string;
  readonly jobType: string;
  /** JSON text; the handler is given what was read from it. */
  readonly payload: string;
  /** Counted from 1. */
  readonly attempt: number;
  readonly maxAttempts: number;
  /** The same for every attempt on every host: pass it to outside services. */
  readonly idempotencyKey: string;
  readonly orderingKey?: string;
  readonly groupKey?: string;
  /** RFC 3339, UTC. */
  readonly enqueuedAt: string;
  /** RFC 3339, UTC. */
  readonly dueAt: string;
  /** The id of the job whose handler enqueued this one. */
  readonly parent?: string;
}

/**
 * Makes the function that a component exports: `export const run = handler((job, payload) => …)`. What the function returns is
 * the result, as JSON. A thrown Failure says what becomes of the job; any other error is a retry with its stack.
 * The function is not async: calls of the host come back when they are done.
 */
export function handler<P = unknown>(run: (job: Job, payload: P) => unknown): (job: Job) => string | undefined;

/** A failed attempt that says what to do next: one of the four below. */
export abstract class Failure extends Error {}
/** Try again after the plugin's backoff, while attempts are left. */
export class Retry extends Failure {
  constructor(message: string);
}
/** Try again after so many seconds, while attempts are left. */
export class RetryAfter extends Failure {
  constructor(seconds: number, message: string);
}
/** Too early: run again after so many seconds; no attempt is used. */
export class Snooze extends Failure {
  constructor(seconds: number, message: string);
}
/** Trying again is useless: the job fails now. */
export class Discard extends Failure {
  constructor(message: string);
}
/** Discards the job: a member of the payload is not what it must be. */
export function fail(member: string, what: string): never;

/** Tells people how far the attempt is. */
export function progress(percent: number, message?: string): void;
/** Whether the host wants this attempt to end soon: the job was cancelled, or the host stops. */
export function cancelled(): boolean;

export interface FollowUpOptions {
  /** Seconds from the success of this attempt; not together with `dueAt`. */
  delay?: number;
  /** RFC 3339; not together with `delay`. */
  dueAt?: string;
  /** 1 first to 4 last; 2 when not given. */
  priority?: number;
  /** 5 when not given. */
  maxAttempts?: number;
  /** At most one pending or running job of a type has the same key: where there is one already, nothing is enqueued. */
  uniqueKey?: string;
  /** Seconds during which the key stays taken, also when its job has ended by then. */
  uniqueFor?: number;
  /** Jobs with the same key run one after another. */
  orderingKey?: string;
  /** Whom the job is for: jobs of a type take turns between groups. */
  groupKey?: string;
}
/** Enqueues a follow-up when this attempt succeeds: in the same transaction, or not at all. */
export function enqueue(jobType: string, payload: unknown, options?: FollowUpOptions): void;

/** What the job remembers from attempt to attempt. */
export const checkpoint: {
  /** What was saved under this name, by this attempt or an earlier one. */
  load<T = unknown>(name: string): T | undefined;
  /** Keeps a value, as JSON; it is in the database when this returns, whatever becomes of the attempt. */
  save(name: string, value: unknown): void;
};

/** A setting of `[plugins.NAME.config]` in runner.toml. */
export function config(name: string): string | undefined;
/**
 * The placeholder of a secret: put it into a header or the query, and the host puts the secret in its place, in requests to the
 * secret's own hosts only.
 */
export function secret(name: string): string | undefined;

/** Why a call has no answer. */
export class HttpError extends Error {
  readonly kind: "denied" | "timeout" | "dns" | "connect" | "tls" | "protocol" | "too-large" | "limit" | "cancelled";
}
export interface FetchOptions {
  method?: string;
  headers?: Record<string, string> | [string, string][];
  body?: string | Uint8Array;
  /** In place of `body`: a value that is sent as JSON. */
  json?: unknown;
  /** Milliseconds for the whole call; the host's own limit holds where this is longer. */
  timeout?: number;
}
export interface Response {
  readonly url: string;
  readonly status: number;
  /** Whether the status is 200 to 299. */
  readonly ok: boolean;
  readonly headers: Iterable<[string, string]> & { get(name: string): string | null; has(name: string): boolean };
  bytes(): Uint8Array;
  text(): string;
  json<T = unknown>(): T;
}
/**
 * An HTTP call by the host, only to where `allow` of the plugin in runner.toml points. It returns when the answer is there, without
 * a promise; a status that says that something went wrong is no error.
 */
export function fetch(url: string, options?: FetchOptions): Response;

declare global {
  /** To the host's log and the job's record. */
  const console: Record<"debug" | "log" | "info" | "warn" | "error", (...values: unknown[]) => void>;
  /** Bytes of the host that nobody can guess. */
  const crypto: { getRandomValues<T extends ArrayBufferView>(array: T): T; randomUUID(): string };
  class TextEncoder {
    encode(text?: string): Uint8Array;
  }
  class TextDecoder {
    decode(bytes?: ArrayBuffer | ArrayBufferView): string;
  }
}
