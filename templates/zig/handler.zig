//! Watches a page: looks at it, remembers what it saw, and looks again later if it is told to.
const std = @import("std");
const piecework = @import("piecework.zig");

pub const panic = std.debug.FullPanic(piecework.panicked);
comptime {
    piecework.handler(run);
}

const Payload = struct {
    url: []const u8,
    /// How often it is looked at.
    times: u32 = 1,
};

const Seen = struct { bytes: usize, status: u16 };

fn run(job: piecework.Job) !piecework.Result {
    // A payload that does not fit the type fails the job at once: it would not fit the next time either.
    const payload = try job.parse(Payload);

    // An earlier attempt may have come this far: then the page is not fetched again.
    const seen = try piecework.load(Seen, "seen") orelse fetched: {
        const seen = try look(payload.url);
        try piecework.save("seen", seen);
        break :fetched seen;
    };
    piecework.progress(50, "fetched");

    // The next look is a job of its own; it is enqueued when this one succeeds.
    const left = payload.times -| 1;
    if (left > 0) try piecework.enqueue(.{
        .job_type = job.job_type,
        .payload = piecework.json(Payload{ .url = payload.url, .times = left }),
        .delay = 60,
    });
    return piecework.json(.{ .bytes = seen.bytes, .left = left, .status = seen.status });
}

fn look(url: []const u8) !Seen {
    // Without an answer the attempt is tried again.
    const answer = try piecework.send(.{ .url = url });
    if (answer.status >= 500) return piecework.fail(.{ .retry_after = 30 }, "the server answered {d}", .{answer.status});
    if (answer.status < 200 or answer.status > 299) return piecework.fail(.discard, "the server answered {d}", .{answer.status});
    return .{ .bytes = answer.body.len, .status = answer.status };
}
