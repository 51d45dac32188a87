//! The handler world for Zig: the canonical ABI in extern structs. In the root file:
//!
//!     comptime { piecework.handler(run); }
//!     fn run(job: piecework.Job) !piecework.Result { ... }
//!
//! Each job has an instance of its own, so nothing needs to be freed. An error that `run` returns is a retry with the error's
//! name; `fail` says something else. The comments of wit/world.wit say more about each member.
const std = @import("std");

pub const allocator = std.heap.wasm_allocator;

/// A list or a string as the canonical ABI lays it out.
fn List(comptime T: type) type {
    return extern struct {
        ptr: usize,
        len: usize,

        fn of(items: []const T) @This() {
            return .{ .ptr = @intFromPtr(items.ptr), .len = items.len };
        }
        fn slice(list: @This()) []const T {
            return if (list.len == 0) &.{} else @as([*]const T, @ptrFromInt(list.ptr))[0..list.len];
        }
    };
}
const Str = List(u8);

const Option = extern struct {
    some: u8 = 0,
    text: Str = .{ .ptr = 0, .len = 0 },

    fn of(optional: ?[]const u8) Option {
        return if (optional) |value| .{ .some = 1, .text = .of(value) } else .{};
    }
    fn get(option: Option) ?[]const u8 {
        return if (option.some == 0) null else option.text.slice();
    }
};
const Number = extern struct {
    some: u8 = 0,
    value: u32 = 0,

    fn of(number: ?u32) Number {
        return if (number) |value| .{ .some = 1, .value = value } else .{};
    }
};

pub const Job = struct {
    id: []const u8,
    job_type: []const u8,
    /// JSON; `parse` reads it.
    payload: []const u8,
    /// Counted from 1.
    attempt: u32,
    max_attempts: u32,
    /// The same for every attempt on every host: pass it to outside services.
    idempotency_key: []const u8,
    ordering_key: ?[]const u8,
    group_key: ?[]const u8,
    /// RFC 3339, UTC.
    enqueued_at: []const u8,
    due_at: []const u8,
    /// The job whose handler enqueued this one.
    parent: ?[]const u8,

    /// The payload as this type; null members and defaults may be left out. Fails with `error.Failed`, for `try`: the job is
    /// discarded.
    pub fn parse(job: Job, comptime T: type) error{Failed}!T {
        return std.json.parseFromSliceLeaky(T, allocator, job.payload, .{ .ignore_unknown_fields = true }) catch |reason| {
            return fail(.discard, "the payload: {s}: it must be like {s}", .{ @errorName(reason), comptime members(T) });
        };
    }
};

/// The names of a struct's members, for people.
fn members(comptime T: type) []const u8 {
    var named: []const u8 = "{";
    for (std.meta.fieldNames(T), 0..) |field, number| {
        named = named ++ (if (number == 0) " " else ", ") ++ "\"" ++ field ++ "\": " ++ @typeName(@FieldType(T, field));
    }
    return named ++ " }";
}

/// The result, JSON, or nothing; `json` makes it of a value.
pub const Result = ?[]const u8;

/// What to do with a job that failed.
pub const Disposition = union(enum) {
    /// Try again after the plugin's backoff, while attempts are left.
    retry,
    /// Try again after so many seconds, while attempts are left.
    retry_after: u32,
    /// Too early: run again after so many seconds; no attempt is used.
    snooze: u32,
    /// Trying again is useless.
    discard,
};

const Failure = struct { message: []const u8, disposition: Disposition };
var failed: ?Failure = null;

/// Notes why the attempt failed and what to do; return what it returns: `return piecework.fail(.discard, "no {s}", .{name});`
pub fn fail(disposition: Disposition, comptime message: []const u8, args: anytype) error{Failed} {
    failed = .{ .message = format(message, args), .disposition = disposition };
    return error.Failed;
}

/// What `std.fmt` makes of it, as text.
pub fn format(comptime pattern: []const u8, args: anytype) []const u8 {
    return text(std.fmt.allocPrint(allocator, pattern, args) catch @panic("out of memory"));
}

/// Bytes as text, with U+FFFD for what is no UTF-8: the host ends an attempt that hands it anything else, and `json` makes an
/// array of it.
pub fn text(bytes: []const u8) []const u8 {
    if (std.unicode.utf8ValidateSlice(bytes)) return bytes;
    return std.fmt.allocPrint(allocator, "{f}", .{std.unicode.fmtUtf8(bytes)}) catch @panic("out of memory");
}

/// A value as JSON.
pub fn json(value: anytype) []const u8 {
    return std.json.Stringify.valueAlloc(allocator, value, .{}) catch @panic("out of memory");
}

const host = struct {
    const jobs = struct {
        extern "piecework:handler/jobs@0.1.0" fn enqueue(job: *const NewJob, answer: *Outcome) void;
        extern "piecework:handler/jobs@0.1.0" fn progress(percent: u32, ptr: usize, len: usize) void;
        extern "piecework:handler/jobs@0.1.0" fn cancelled() u32;
    };
    const checkpoints = struct {
        extern "piecework:handler/checkpoint@0.1.0" fn load(ptr: usize, len: usize, answer: *Option) void;
        extern "piecework:handler/checkpoint@0.1.0" fn save(ptr: usize, len: usize, json_ptr: usize, json_len: usize, answer: *Outcome) void;
    };
    const logs = struct {
        extern "piecework:handler/log@0.1.0" fn log(level: u32, ptr: usize, len: usize) void;
    };
    const store = struct {
        extern "wasi:config/store@0.2.0-rc.1" fn get(ptr: usize, len: usize, answer: *Got) void;
    };
    const http = struct {
        extern "piecework:handler/http@0.1.0" fn send(mp: usize, mn: usize, up: usize, un: usize, hp: usize, hn: usize, has_body: u32, bp: usize, bn: usize, has_timeout: u32, timeout: u32, answer: *Sent) void;
    };
    const preview1 = struct {
        extern "wasi_snapshot_preview1" fn fd_write(fd: u32, pieces: *const Str, count: usize, written: *usize) u32;
        extern "wasi_snapshot_preview1" fn random_get(ptr: usize, len: usize) u32;
    };
    const Outcome = extern struct { failed: u8, reason: Str };
    const Got = extern struct { failed: u8, found: Option };
    const NewJob = extern struct {
        job_type: Str,
        payload: Str,
        delay: Number,
        due_at: Option,
        priority: extern struct { some: u8, value: u8 },
        max_attempts: Number,
        unique_key: Option,
        unique_for: Number,
        ordering_key: Option,
        group_key: Option,
    };
    const Sent = extern struct {
        failed: u8,
        as: extern union {
            response: extern struct { status: u16, headers: List(Header), body: Str },
            failure: extern struct { kind: u8, text: Str },
        },
    };
};

/// Tells people how far the attempt is.
pub fn progress(percent: u8, message: []const u8) void {
    host.jobs.progress(percent, @intFromPtr(message.ptr), message.len);
}

/// Whether the host wants this attempt to end soon: the job was cancelled, or the host stops.
pub fn cancelled() bool {
    return host.jobs.cancelled() != 0;
}

/// To the host's log and the job's record.
pub fn log(level: enum(u32) { debug, info, warn, err }, comptime pattern: []const u8, args: anytype) void {
    const message = format(pattern, args);
    host.logs.log(@intFromEnum(level), @intFromPtr(message.ptr), message.len);
}

/// A job to enqueue when this attempt succeeds.
pub const FollowUp = struct {
    job_type: []const u8,
    /// JSON.
    payload: []const u8,
    /// Seconds from the success; not together with `due_at`.
    delay: ?u32 = null,
    /// RFC 3339.
    due_at: ?[]const u8 = null,
    /// 1 first to 4 last.
    priority: ?u8 = null,
    max_attempts: ?u32 = null,
    /// At most one pending or running job of a type has the same key, for `unique_for` seconds also when it has ended.
    unique_key: ?[]const u8 = null,
    unique_for: ?u32 = null,
    /// Jobs with the same key run one after another.
    ordering_key: ?[]const u8 = null,
    /// Jobs of a type take turns between groups.
    group_key: ?[]const u8 = null,
};

/// Enqueues a follow-up in the transaction of this attempt's success, or not at all.
pub fn enqueue(job: FollowUp) error{Failed}!void {
    var outcome: host.Outcome = undefined;
    host.jobs.enqueue(&.{
        .job_type = .of(job.job_type),
        .payload = .of(job.payload),
        .delay = .of(job.delay),
        .due_at = .of(job.due_at),
        .priority = if (job.priority) |value| .{ .some = 1, .value = value } else .{ .some = 0, .value = 0 },
        .max_attempts = .of(job.max_attempts),
        .unique_key = .of(job.unique_key),
        .unique_for = .of(job.unique_for),
        .ordering_key = .of(job.ordering_key),
        .group_key = .of(job.group_key),
    }, &outcome);
    if (outcome.failed != 0) return fail(.discard, "the follow-up {s}: {s}", .{ job.job_type, outcome.reason.slice() });
}

/// What this attempt or an earlier one saved under a name.
pub fn load(comptime T: type, name: []const u8) error{Failed}!?T {
    var found: Option = undefined;
    host.checkpoints.load(@intFromPtr(name.ptr), name.len, &found);
    const saved = found.get() orelse return null;
    return std.json.parseFromSliceLeaky(T, allocator, saved, .{ .ignore_unknown_fields = true }) catch |reason|
        fail(.discard, "the checkpoint {s}: {s}", .{ name, @errorName(reason) });
}

/// Keeps a value under a name, as JSON; it is in the database when this returns, whatever becomes of the attempt.
pub fn save(name: []const u8, value: anytype) error{Failed}!void {
    const saved = json(value);
    var outcome: host.Outcome = undefined;
    host.checkpoints.save(@intFromPtr(name.ptr), name.len, @intFromPtr(saved.ptr), saved.len, &outcome);
    if (outcome.failed != 0) return fail(.retry, "the checkpoint {s}: {s}", .{ name, outcome.reason.slice() });
}

/// A setting of [plugins.NAME.config] in runner.toml.
pub fn config(name: []const u8) ?[]const u8 {
    var got: host.Got = undefined;
    host.store.get(@intFromPtr(name.ptr), name.len, &got);
    return if (got.failed != 0) null else got.found.get();
}

/// The placeholder of a secret: put it into a header or the query, and the host puts the secret in its place, in requests to
/// the secret's own hosts only.
pub fn secret(name: []const u8) ?[]const u8 {
    return config(format("secrets.{s}", .{name}));
}

pub const Header = extern struct {
    name_: Str,
    value_: Str,

    pub fn of(header_name: []const u8, header_value: []const u8) Header {
        return .{ .name_ = .of(header_name), .value_ = .of(header_value) };
    }
    /// In lower case in an answer.
    pub fn name(header: Header) []const u8 {
        return header.name_.slice();
    }
    pub fn value(header: Header) []const u8 {
        return header.value_.slice();
    }
};

pub const Request = struct {
    /// In capitals.
    method: []const u8 = "GET",
    url: []const u8,
    headers: []const Header = &.{},
    body: ?[]const u8 = null,
    /// Milliseconds for the whole call.
    timeout: ?u32 = null,
};

/// The answer, whatever its status, with its whole body.
pub const Response = struct { status: u16, headers: []const Header, body: []const u8 };

pub const HttpError = struct {
    kind: enum(u8) { denied, timeout, dns, connect, tls, protocol, too_large, limit, cancelled },
    message: []const u8,
};

/// One call, and what it came to.
pub fn trySend(request: Request) union(enum) { response: Response, failure: HttpError } {
    var sent: host.Sent = undefined;
    const body = request.body orelse "";
    host.http.send(@intFromPtr(request.method.ptr), request.method.len, @intFromPtr(request.url.ptr), request.url.len, @intFromPtr(request.headers.ptr), request.headers.len, @intFromBool(request.body != null), @intFromPtr(body.ptr), body.len, @intFromBool(request.timeout != null), request.timeout orelse 0, &sent);
    if (sent.failed != 0) {
        const failure = sent.as.failure;
        return .{ .failure = .{ .kind = @enumFromInt(failure.kind), .message = failure.text.slice() } };
    }
    const response = sent.as.response;
    return .{ .response = .{ .status = response.status, .headers = response.headers.slice(), .body = response.body.slice() } };
}

/// One call. Without an answer the attempt is tried again; a status that says that something went wrong is no error.
pub fn send(request: Request) error{Failed}!Response {
    return switch (trySend(request)) {
        .response => |response| response,
        .failure => |failure| fail(.retry, "{s}", .{failure.message}),
    };
}

/// Bytes that nobody can guess.
pub fn random(bytes: []u8) void {
    if (host.preview1.random_get(@intFromPtr(bytes.ptr), bytes.len) != 0) @panic("the host has no random numbers");
}

/// For the root file, so that a panic's message is in the job's error:
/// `pub const panic = std.debug.FullPanic(piecework.panicked);`
pub fn panicked(message: []const u8, _: ?usize) noreturn {
    var written: usize = 0;
    _ = host.preview1.fd_write(2, &Str.of(message), 1, &written);
    @trap();
}

export fn cabi_realloc(old: usize, old_len: usize, alignment: usize, len: usize) usize {
    if (len == 0) return alignment;
    const room = allocator.rawAlloc(len, .fromByteUnits(alignment), 0) orelse @panic("out of memory");
    if (old != 0) @memcpy(room[0..old_len], @as([*]const u8, @ptrFromInt(old))[0..old_len]);
    return @intFromPtr(room);
}

const Record = extern struct {
    id: Str,
    job_type: Str,
    payload: Str,
    attempt: u32,
    max_attempts: u32,
    idempotency_key: Str,
    ordering_key: Option,
    group_key: Option,
    enqueued_at: Str,
    due_at: Str,
    parent: Option,
};

var returned: extern struct {
    failed: u8,
    as: extern union {
        result: Option,
        failure: extern struct { message: Str, disposition: u8, seconds: u32 },
    },
} = undefined;

/// Makes a function the component's handler: `comptime { piecework.handler(run); }`
pub fn handler(comptime run: anytype) void {
    const entry = struct {
        fn entry(record: *const Record) callconv(.c) *anyopaque {
            const result: Result = run(Job{
                .id = record.id.slice(),
                .job_type = record.job_type.slice(),
                .payload = record.payload.slice(),
                .attempt = record.attempt,
                .max_attempts = record.max_attempts,
                .idempotency_key = record.idempotency_key.slice(),
                .ordering_key = record.ordering_key.get(),
                .group_key = record.group_key.get(),
                .enqueued_at = record.enqueued_at.slice(),
                .due_at = record.due_at.slice(),
                .parent = record.parent.get(),
            }) catch |reason| {
                const noted = if (reason == error.Failed) failed else null;
                const why = noted orelse Failure{ .message = @errorName(reason), .disposition = .retry };
                returned = .{ .failed = 1, .as = .{ .failure = .{
                    .message = .of(why.message),
                    .disposition = @intFromEnum(why.disposition),
                    .seconds = switch (why.disposition) {
                        .retry_after, .snooze => |seconds| seconds,
                        .retry, .discard => 0,
                    },
                } } };
                return &returned;
            };
            returned = .{ .failed = 0, .as = .{ .result = .of(result) } };
            return &returned;
        }
    }.entry;
    @export(&entry, .{ .name = "run" });
}
