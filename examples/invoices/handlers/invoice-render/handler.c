/* Renders an invoice as text, and hands it on to the handler that sends it: the follow-up is enqueued in the transaction that says
 * that this step is done, so it can be neither lost nor doubled. */
#include "piecework.h"

pw_result pw_run(const pw_job *job) {
    pw_str to, error;
    int64_t invoice, cents;
    pw_json *payload = pw_parse(job->payload, &error);
    if (!payload) return pw_discard(error);
    if (!pw_member_int(payload, "invoice", &invoice)) return pw_discard(pw("the payload: `invoice` must be a whole number"));
    if (!pw_member_int(payload, "cents", &cents)) return pw_discard(pw("the payload: `cents` must be a whole number"));
    if (!pw_member_str(payload, "to", &to)) return pw_discard(pw("the payload: `to` must be a string"));

    pw_str text = pw_format("Invoice %lld\n\nPlease pay %lld.%02lld EUR.\n", (long long)invoice, (long long)(cents / 100),
                            (long long)(cents % 100));
    pw_new_job mail = pw_follow_up(
        pw("invoice-mail"), pw_format("{\"invoice\":%lld,\"to\":%.*s,\"text\":%.*s}", (long long)invoice, PW_ARG(pw_quote(to)),
                                      PW_ARG(pw_quote(text))));
    /* The provider may be in trouble for a while. */
    pw_set(&mail.max_attempts, 100);
    mail.group_key = job->group_key;
    if (!pw_enqueue(&mail, &error)) return pw_discard(error);
    return pw_nothing();
}
