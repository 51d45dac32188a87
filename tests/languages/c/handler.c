/* What the tests of all languages ask of a handler: tests/it/languages.rs. */
#include "piecework.h"

#include <ctype.h>
#include <unistd.h>

static pw_result work(const pw_job *job, const pw_json *payload) {
    pw_str text, url, next, token, error, status = pw("null"), body = pw("null");
    if (!pw_member_str(payload, "text", &text)) return pw_discard(pw("the payload: `text` must be a string"));
    pw_log(PW_INFO, pw_format("attempt %u of %u", (unsigned)job->attempt, (unsigned)job->max_attempts));
    pw_progress(10, pw("parsed"));
    char *upper = (char *)pw_alloc(text.len);
    for (size_t i = 0; i < text.len; i++) upper[i] = (char)((unsigned char)text.ptr[i] < 0x80 ? toupper(text.ptr[i]) : text.ptr[i]);
    pw_str shout = {upper, text.len};
    if (pw_member_str(payload, "url", &url)) {
        pw_header headers[2] = {{pw("accept"), pw("text/plain")}};
        size_t count = 1;
        if (pw_secret("token", &token)) {
            headers[1].name = pw("authorization");
            headers[1].value = pw_format("Bearer %.*s", PW_ARG(token));
            count = 2;
        }
        pw_request request = {pw("GET"), url, headers, count, {NULL, 0}, 0};
        pw_response response;
        enum pw_http_error kind;
        if (!pw_send(&request, &response, &kind, &error)) return pw_retry(error);
        status = pw_format("%u", response.status);
        body = pw_quote(response.body);
    }
    if (pw_member_str(payload, "next", &next)) {
        pw_new_job job_after = pw_follow_up(next, pw_format("{\"from\":\"c\",\"text\":%.*s}", PW_ARG(pw_quote(shout))));
        pw_set(&job_after.delay, 5);
        job_after.unique_key = pw_some(pw_format("after-%.*s", PW_ARG(job->id)));
        if (!pw_enqueue(&job_after, &error)) return pw_discard(error);
    }
    return pw_done(pw_format("{\"language\":\"c\",\"text\":%.*s,\"status\":%.*s,\"body\":%.*s}", PW_ARG(pw_quote(shout)),
                             PW_ARG(status), PW_ARG(body)));
}

static pw_result checkpoint(const pw_job *job) {
    pw_str saved, note, error;
    int64_t attempt;
    if (job->attempt == 1) {
        if (!pw_save("step", pw("{\"attempt\":1,\"note\":\"für später\"}"), &error)) return pw_retry(error);
        pw_progress(50, pw("saved"));
        return pw_retry(pw("half way"));
    }
    if (!pw_load("step", &saved)) return pw_discard(pw("the checkpoint is lost"));
    pw_json *step = pw_parse(saved, &error);
    if (!step || !pw_member_int(step, "attempt", &attempt) || !pw_member_str(step, "note", &note))
        return pw_discard(pw("the checkpoint is another"));
    return pw_done(pw_format("{\"resumed\":%lld,\"note\":%.*s}", (long long)attempt, PW_ARG(pw_quote(note))));
}

pw_result pw_run(const pw_job *job) {
    pw_str what, error;
    pw_json *payload = pw_parse(job->payload, &error);
    if (!payload) return pw_discard(pw_format("the payload: %.*s", PW_ARG(error)));
    if (!pw_member_str(payload, "do", &what)) return pw_discard(pw("the payload: `do` must be a string"));
    if (pw_is(what, "work")) return work(job, payload);
    if (pw_is(what, "checkpoint")) return checkpoint(job);
    if (pw_is(what, "retry")) return pw_retry(pw("asked to retry"));
    if (pw_is(what, "retry-after")) return pw_retry_after(60, pw("asked to wait"));
    if (pw_is(what, "snooze")) return pw_snooze(30, pw("too early"));
    if (pw_is(what, "discard")) return pw_discard(pw("asked to discard"));
    /* C has no other kind of error. */
    if (pw_is(what, "error")) return pw_retry(pw("an ordinary error"));
    if (pw_is(what, "panic")) pw_panic("asked to panic");
    if (pw_is(what, "loop"))
        for (;;) __asm__ volatile("");
    if (pw_is(what, "allocate"))
        for (;;) {
            char *room = (char *)malloc(1 << 20);
            if (!room) pw_panic("out of memory");
            memset(room, 1, 1 << 20);
            __asm__ volatile("" ::"r"(room));
        }
    if (pw_is(what, "random")) {
        uint32_t drawn;
        if (getentropy(&drawn, sizeof drawn)) return pw_retry(pw("there is no entropy"));
        return pw_done(pw_format("{\"random\":%lu}", (unsigned long)drawn));
    }
    return pw_discard(pw_format("there is no `%.*s`", PW_ARG(what)));
}
