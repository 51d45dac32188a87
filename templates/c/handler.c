/* Watches a page: looks at it, remembers what it saw, and looks again later if it is told to. */
#include "piecework.h"

pw_result pw_run(const pw_job *job) {
    pw_str url, error, saved;
    int64_t times = 1, status, bytes;

    /* A payload that is wrong stays wrong: the job fails at once. */
    pw_json *payload = pw_parse(job->payload, &error);
    if (!payload) return pw_discard(pw_format("the payload: %.*s", PW_ARG(error)));
    if (!pw_member_str(payload, "url", &url)) return pw_discard(pw("the payload: `url` must be a string"));
    if (pw_member(payload, "times") && !pw_member_int(payload, "times", &times))
        return pw_discard(pw("the payload: `times` must be a whole number"));

    /* An earlier attempt may have come this far: then the page is not fetched again. */
    if (pw_load("seen", &saved)) {
        pw_json *seen = pw_parse(saved, &error);
        if (!pw_member_int(seen, "status", &status) || !pw_member_int(seen, "bytes", &bytes))
            return pw_discard(pw("the checkpoint `seen` is not what was saved"));
    } else {
        pw_response response;
        enum pw_http_error kind;
        if (!pw_get(url, &response, &kind, &error)) return pw_retry(error);
        if (response.status >= 500) return pw_retry_after(30, pw_format("the server answered %u", response.status));
        if (response.status < 200 || response.status > 299)
            return pw_discard(pw_format("the server answered %u", response.status));
        status = response.status;
        bytes = (int64_t)response.body.len;
        saved = pw_format("{\"status\":%lld,\"bytes\":%lld}", (long long)status, (long long)bytes);
        if (!pw_save("seen", saved, &error)) return pw_retry(error);
    }
    pw_progress(50, pw("fetched"));

    /* The next look is a job of its own; it is enqueued when this one succeeds. */
    int64_t left = times > 1 ? times - 1 : 0;
    if (left) {
        pw_str next = pw_format("{\"url\":%.*s,\"times\":%lld}", PW_ARG(pw_quote(url)), (long long)left);
        pw_new_job job_after = pw_follow_up(job->job_type, next);
        pw_set(&job_after.delay, 60);
        if (!pw_enqueue(&job_after, &error)) return pw_discard(error);
    }
    return pw_done(pw_format("{\"bytes\":%lld,\"left\":%lld,\"status\":%lld}", (long long)bytes, (long long)left, (long long)status));
}
