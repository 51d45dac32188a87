//! What the tests of all languages ask of a handler: tests/it/languages.rs.
const std = @import("std");
const piecework = @import("piecework.zig");

pub const panic = std.debug.FullPanic(piecework.panicked);
comptime {
    piecework.handler(run);
}

const Payload = struct {
    do: []const u8,
    text: ?[]const u8 = null,
    url: ?[]const u8 = null,
    next: ?[]const u8 = null,
};

const Step = struct { attempt: u32, note: []const u8 };

fn run(job: piecework.Job) !piecework.Result {
    const payload = try job.parse(Payload);
    const Do = enum { work, checkpoint, retry, @"retry-after", snooze, discard, @"error", panic, loop, allocate, random };
    switch (std.meta.stringToEnum(Do, payload.do) orelse return piecework.fail(.discard, "there is no `{s}`", .{payload.do})) {
        .work => return work(job, payload),
        .checkpoint => return checkpoint(job),
        .retry => return piecework.fail(.retry, "asked to retry", .{}),
        .@"retry-after" => return piecework.fail(.{ .retry_after = 60 }, "asked to wait", .{}),
        .snooze => return piecework.fail(.{ .snooze = 30 }, "too early", .{}),
        .discard => return piecework.fail(.discard, "asked to discard", .{}),
        // The language's own errors have a name and no text.
        .@"error" => return error.@"an ordinary error",
        .panic => @panic("asked to panic"),
        .loop => while (true) std.mem.doNotOptimizeAway(0),
        .allocate => while (true) {
            const room = piecework.allocator.alloc(u8, 1 << 20) catch @panic("out of memory");
            @memset(room, 1);
            std.mem.doNotOptimizeAway(room.ptr);
        },
        .random => {
            var drawn: [4]u8 = undefined;
            piecework.random(&drawn);
            return piecework.json(.{ .random = std.mem.readInt(u32, &drawn, .little) });
        },
    }
}

fn work(job: piecework.Job, payload: Payload) !piecework.Result {
    const text = payload.text orelse return piecework.fail(.discard, "the payload: `text` is missing", .{});
    piecework.log(.info, "attempt {d} of {d}", .{ job.attempt, job.max_attempts });
    piecework.progress(10, "parsed");
    const shout = try std.ascii.allocUpperString(piecework.allocator, text);
    var status: ?u16 = null;
    var body: ?[]const u8 = null;
    if (payload.url) |url| {
        var headers: [2]piecework.Header = .{ .of("accept", "text/plain"), undefined };
        var count: usize = 1;
        if (piecework.secret("token")) |token| {
            headers[1] = .of("authorization", piecework.format("Bearer {s}", .{token}));
            count = 2;
        }
        const answer = try piecework.send(.{ .url = url, .headers = headers[0..count] });
        status = answer.status;
        body = piecework.text(answer.body);
    }
    if (payload.next) |next| try piecework.enqueue(.{
        .job_type = next,
        .payload = piecework.json(.{ .from = @as([]const u8, "zig"), .text = shout }),
        .delay = 5,
        .unique_key = piecework.format("after-{s}", .{job.id}),
    });
    return piecework.json(.{ .language = @as([]const u8, "zig"), .text = shout, .status = status, .body = body });
}

fn checkpoint(job: piecework.Job) !piecework.Result {
    if (job.attempt == 1) {
        try piecework.save("step", Step{ .attempt = 1, .note = "für später" });
        piecework.progress(50, "saved");
        return piecework.fail(.retry, "half way", .{});
    }
    const step = try piecework.load(Step, "step") orelse return piecework.fail(.discard, "the checkpoint is lost", .{});
    return piecework.json(.{ .resumed = step.attempt, .note = step.note });
}
