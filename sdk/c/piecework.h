/* The handler world for C and C++: include it in one source file, and write
 *
 *     pw_result pw_run(const pw_job *job);
 *
 * Each job has an instance of its own, so nothing needs to be freed. Texts are pointer and length, UTF-8, without a nul at the
 * end; printf takes them with PW_ARG: printf("%.*s", PW_ARG(text)). The comments of wit/world.wit say more about each member.
 *
 * 1. texts   2. what a job comes to   3. the host's functions   4. JSON, read and written   5. the border
 */
#ifndef PIECEWORK_H
#define PIECEWORK_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
#define PW_C extern "C"
#else
#define PW_C
#endif
#define PW_UNUSED __attribute__((unused))
#define PW_FN PW_UNUSED static

/* ---- 1. Texts ---- */

typedef struct {
    const char *ptr;
    size_t len;
} pw_str;

/* A text that may not be there. */
typedef struct {
    bool some;
    pw_str text;
} pw_option;

#define PW_ARG(text) (int)(text).len, (text).ptr

/* Writes a message to standard error and ends the attempt: it is in the job's error, and the job is tried again. */
PW_FN _Noreturn void pw_panic(const char *message) {
    fprintf(stderr, "%s\n", message);
    __builtin_trap();
}

PW_FN void *pw_alloc(size_t size) {
    void *room = malloc(size ? size : 1);
    if (!room) pw_panic("out of memory");
    return room;
}

/* A C string as text. */
PW_FN pw_str pw(const char *text) {
    pw_str result = {text, strlen(text)};
    return result;
}

PW_FN bool pw_is(pw_str text, const char *other) {
    return text.len == strlen(other) && !memcmp(text.ptr, other, text.len);
}

/* How many bytes the character at the start of a text has; 0 where it is no UTF-8. */
PW_FN size_t pw_char(const char *text, size_t len) {
    const unsigned char *at = (const unsigned char *)text;
    size_t size = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
    if (size > len) return 0;
    for (size_t i = 1; i < size; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    /* Longer than it need be, a half of a pair, or beyond the last character. */
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf0 && at[1] < 0x90) ||
        (at[0] == 0xf4 && at[1] > 0x8f))
        return 0;
    return size;
}

/* The text with U+FFFD for each byte that is no UTF-8: the host ends an attempt that hands it anything else. The functions of
 * this header that give people or JSON a text do it themselves. */
PW_FN pw_str pw_clean(pw_str text) {
    size_t good = 0, bad = 0, size;
    for (size_t i = 0; i < text.len; i += size) {
        size = pw_char(text.ptr + i, text.len - i);
        if (size) good += size;
        else bad++, size = 1;
    }
    if (!bad) return text;
    char *room = (char *)pw_alloc(good + bad * 3), *to = room;
    for (size_t i = 0; i < text.len; i += size) {
        size = pw_char(text.ptr + i, text.len - i);
        memcpy(to, size ? text.ptr + i : "\xef\xbf\xbd", size ? size : 3);
        to += size ? size : 3;
        if (!size) size = 1;
    }
    pw_str result = {room, (size_t)(to - room)};
    return result;
}

/* What printf would print. */
PW_FN __attribute__((format(printf, 1, 2))) pw_str pw_format(const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len < 0) pw_panic("pw_format: printf refuses the format");
    char *room = (char *)pw_alloc((size_t)len + 1);
    vsnprintf(room, (size_t)len + 1, format, again);
    va_end(again);
    pw_str result = {room, (size_t)len};
    return result;
}

/* ---- 2. What a job comes to ---- */

typedef struct {
    pw_str id, job_type, payload;
    /* The attempt counts from 1. */
    uint32_t attempt, max_attempts;
    /* The same for every attempt: pass it to outside services. */
    pw_str idempotency_key;
    pw_option ordering_key, group_key;
    /* RFC 3339, UTC. */
    pw_str enqueued_at, due_at;
    /* The job whose handler enqueued this one. */
    pw_option parent;
} pw_job;

/* As the canonical ABI lays it out; make it with the functions below. */
typedef struct {
    uint8_t failed;
    union {
        pw_option result;
        struct {
            pw_str message;
            uint8_t disposition;
            uint32_t seconds;
        } failure;
    } as;
} pw_result;

PW_FN pw_result pw_failure(uint8_t disposition, uint32_t seconds, pw_str message) {
    pw_result result;
    memset(&result, 0, sizeof result);
    result.failed = 1;
    result.as.failure.message = pw_clean(message);
    result.as.failure.disposition = disposition;
    result.as.failure.seconds = seconds;
    return result;
}

/* Done, with a result in JSON. */
PW_FN pw_result pw_done(pw_str json) {
    pw_result result;
    memset(&result, 0, sizeof result);
    result.as.result.some = true;
    result.as.result.text = json;
    return result;
}

/* Done, without a result. */
PW_FN pw_result pw_nothing(void) {
    pw_result result;
    memset(&result, 0, sizeof result);
    return result;
}

/* Try again after the plugin's backoff, while attempts are left. */
PW_FN pw_result pw_retry(pw_str message) { return pw_failure(0, 0, message); }
/* Try again after so many seconds, while attempts are left. */
PW_FN pw_result pw_retry_after(uint32_t seconds, pw_str message) { return pw_failure(1, seconds, message); }
/* Too early: run again after so many seconds; no attempt is used. */
PW_FN pw_result pw_snooze(uint32_t seconds, pw_str message) { return pw_failure(2, seconds, message); }
/* Trying again is useless: the job fails now. */
PW_FN pw_result pw_discard(pw_str message) { return pw_failure(3, 0, message); }

/* You write this one. */
PW_C pw_result pw_run(const pw_job *job);

/* ---- 3. The host's functions ---- */

#define PW_IMPORT(module, name) __attribute__((import_module(module), import_name(name)))
#define PW_HANDLER(interface) "piecework:handler/" interface "@0.1.0"

typedef struct {
    bool some;
    uint32_t value;
} pw_option_u32;
typedef struct {
    uint8_t some;
    uint8_t value;
} pw_option_u8;

/* A job to enqueue when this attempt succeeds. Begin with pw_follow_up and set what is wanted. */
typedef struct {
    pw_str job_type, payload;
    /* Seconds from the success; not together with due_at. */
    pw_option_u32 delay;
    pw_option due_at;
    /* 1 first to 4 last. */
    pw_option_u8 priority;
    pw_option_u32 max_attempts;
    pw_option unique_key;
    pw_option_u32 unique_for;
    pw_option ordering_key, group_key;
} pw_new_job;

typedef struct {
    uint8_t failed;
    pw_str error;
} pw_outcome;

typedef struct {
    pw_str name, value;
} pw_header;

typedef struct {
    /* In capitals, and absolute. */
    pw_str method, url;
    const pw_header *headers;
    size_t header_count;
    /* Its pointer is NULL where there is no body. */
    pw_str body;
    /* Milliseconds for the whole call; 0 for the host's own limit. */
    uint32_t timeout;
} pw_request;

typedef struct {
    uint16_t status;
    /* Names in lower case. */
    const pw_header *headers;
    size_t header_count;
    pw_str body;
} pw_response;

enum pw_http_error {
    PW_DENIED,
    PW_TIMEOUT,
    PW_DNS,
    PW_CONNECT,
    PW_TLS,
    PW_PROTOCOL,
    PW_TOO_LARGE,
    PW_LIMIT,
    PW_CANCELLED
};
enum pw_level { PW_DEBUG, PW_INFO, PW_WARN, PW_ERROR };

PW_C PW_IMPORT(PW_HANDLER("jobs"), "enqueue") void pw_import_enqueue(const pw_new_job *, pw_outcome *);
PW_C PW_IMPORT(PW_HANDLER("jobs"), "progress") void pw_import_progress(uint32_t, const char *, size_t);
PW_C PW_IMPORT(PW_HANDLER("jobs"), "cancelled") uint32_t pw_import_cancelled(void);
PW_C PW_IMPORT(PW_HANDLER("checkpoint"), "load") void pw_import_load(const char *, size_t, pw_option *);
PW_C PW_IMPORT(PW_HANDLER("checkpoint"), "save")
void pw_import_save(const char *, size_t, const char *, size_t, pw_outcome *);
PW_C PW_IMPORT(PW_HANDLER("log"), "log") void pw_import_log(uint32_t, const char *, size_t);
PW_C PW_IMPORT("wasi:config/store@0.2.0-rc.1", "get") void pw_import_get(const char *, size_t, void *);
PW_C PW_IMPORT(PW_HANDLER("http"), "send")
void pw_import_send(const char *, size_t, const char *, size_t, const pw_header *, size_t, uint32_t, const char *, size_t,
                    uint32_t, uint32_t, void *);

PW_FN pw_option pw_some(pw_str text) {
    pw_option result = {true, text};
    return result;
}

PW_FN pw_new_job pw_follow_up(pw_str job_type, pw_str json) {
    pw_new_job job;
    memset(&job, 0, sizeof job);
    job.job_type = job_type;
    job.payload = json;
    return job;
}

PW_FN void pw_set(pw_option_u32 *option, uint32_t value) {
    option->some = true;
    option->value = value;
}

/* Enqueues a follow-up: committed together with this attempt's success, or not at all. False when the job is wrong; then
 * *error says why. */
PW_FN bool pw_enqueue(const pw_new_job *job, pw_str *error) {
    pw_outcome outcome;
    pw_import_enqueue(job, &outcome);
    if (outcome.failed) *error = outcome.error;
    return !outcome.failed;
}

/* Tells people how far the attempt is. */
PW_FN void pw_progress(uint8_t percent, pw_str message) {
    message = pw_clean(message);
    pw_import_progress(percent, message.ptr, message.len);
}

/* Whether the host wants this attempt to end soon: the job was cancelled, or the host stops. */
PW_FN bool pw_cancelled(void) { return pw_import_cancelled() != 0; }

/* The JSON that this attempt or an earlier one saved under this name. */
PW_FN bool pw_load(const char *name, pw_str *json) {
    pw_option found;
    pw_import_load(name, strlen(name), &found);
    if (found.some) *json = found.text;
    return found.some;
}

/* Keeps JSON under a name, whatever becomes of the attempt. */
PW_FN bool pw_save(const char *name, pw_str json, pw_str *error) {
    pw_outcome outcome;
    pw_import_save(name, strlen(name), json.ptr, json.len, &outcome);
    if (outcome.failed) *error = outcome.error;
    return !outcome.failed;
}

PW_FN void pw_log(enum pw_level level, pw_str message) {
    message = pw_clean(message);
    pw_import_log((uint32_t)level, message.ptr, message.len);
}

/* A setting of [plugins.NAME.config] in runner.toml. */
PW_FN bool pw_config(const char *name, pw_str *value) {
    struct {
        uint8_t failed;
        pw_option found;
    } got;
    pw_import_get(name, strlen(name), &got);
    if (got.failed || !got.found.some) return false;
    *value = got.found.text;
    return true;
}

/* The placeholder of a secret: the host puts the secret in its place in headers and queries of requests to its hosts. */
PW_FN bool pw_secret(const char *name, pw_str *placeholder) {
    pw_str key = pw_format("secrets.%s", name);
    return pw_config(key.ptr, placeholder);
}

/* One request. True when there is an answer, whatever its status; else *kind and *error say why there is none. */
PW_FN bool pw_send(const pw_request *request, pw_response *response, enum pw_http_error *kind, pw_str *error) {
    struct {
        uint8_t failed;
        union {
            pw_response response;
            struct {
                uint8_t kind;
                pw_str text;
            } error;
        } as;
    } got;
    bool body = request->body.ptr != NULL;
    pw_import_send(request->method.ptr, request->method.len, request->url.ptr, request->url.len, request->headers,
                   request->header_count, body, body ? request->body.ptr : "", request->body.len, request->timeout != 0,
                   request->timeout, &got);
    if (got.failed) {
        *kind = (enum pw_http_error)got.as.error.kind;
        *error = got.as.error.text;
        return false;
    }
    *response = got.as.response;
    return true;
}

/* GET without headers of its own. */
PW_FN bool pw_get(pw_str url, pw_response *response, enum pw_http_error *kind, pw_str *error) {
    pw_request request;
    memset(&request, 0, sizeof request);
    request.method = pw("GET");
    request.url = url;
    return pw_send(&request, response, kind, error);
}

/* ---- 4. JSON ---- */

enum pw_json_type { PW_NULL, PW_FALSE, PW_TRUE, PW_NUMBER, PW_STRING, PW_ARRAY, PW_OBJECT };

/* A value; the members of an array or object are a list. */
typedef struct pw_json {
    enum pw_json_type type;
    /* A string without its escapes, or a number as it was written: it keeps its digits. */
    pw_str text;
    /* Of a member of an object. */
    pw_str name;
    struct pw_json *first, *next;
} pw_json;

typedef struct {
    const char *at, *end;
    const char *error;
    int depth;
} pw_reader;

PW_FN void pw_skip(pw_reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) r->at++;
}

PW_FN size_t pw_digits(pw_reader *r) {
    const char *start = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
    return (size_t)(r->at - start);
}

PW_FN int pw_hex4(pw_reader *r) {
    int value = 0;
    if (r->end - r->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = *r->at++;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

PW_FN char *pw_utf8(char *to, int code) {
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *to++ = (char)(0xe0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    } else {
        *to++ = (char)(0xf0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3f));
        *to++ = (char)(0x80 | (code >> 6 & 0x3f));
        *to++ = (char)(0x80 | (code & 0x3f));
    }
    return to;
}

/* After the opening quote. What is read is never longer than what was written. */
PW_FN pw_str pw_read_string(pw_reader *r) {
    /* Room for this string alone, not for all that follows. */
    const char *last = r->at;
    while (last < r->end && *last != '"') last += *last == '\\' && r->end - last > 1 ? 2 : 1;
    char *start = (char *)pw_alloc((size_t)(last - r->at)), *to = start;
    while (r->at < r->end && *r->at != '"') {
        if ((unsigned char)*r->at < 0x20) {
            r->error = "a control character in a string";
            break;
        }
        if (*r->at != '\\') {
            *to++ = *r->at++;
            continue;
        }
        r->at++;
        char c = r->at < r->end ? *r->at++ : 0;
        const char *plain = "\"\\/bfnrt", *is = c ? strchr(plain, c) : NULL;
        if (is) {
            *to++ = "\"\\/\b\f\n\r\t"[is - plain];
        } else if (c == 'u') {
            int code = pw_hex4(r);
            if (code >= 0xd800 && code < 0xdc00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
                r->at += 2;
                int low = pw_hex4(r);
                code = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : -1;
            }
            if (code < 0 || (code >= 0xd800 && code < 0xe000)) {
                r->error = "a \\u that is no character";
                break;
            }
            to = pw_utf8(to, code);
        } else {
            r->error = "an unknown escape";
            break;
        }
    }
    if (!r->error && r->at == r->end) r->error = "a string without an end";
    if (!r->error) r->at++;
    pw_str result = {start, (size_t)(to - start)};
    return result;
}

PW_FN pw_json *pw_read_value(pw_reader *r) {
    pw_json *value = (pw_json *)pw_alloc(sizeof *value);
    memset(value, 0, sizeof *value);
    pw_skip(r);
    if (r->at == r->end) {
        r->error = "a value is missing";
        return value;
    }
    static const struct {
        const char *word;
        enum pw_json_type type;
    } words[] = {{"null", PW_NULL}, {"true", PW_TRUE}, {"false", PW_FALSE}};
    for (size_t i = 0; i < 3; i++) {
        size_t len = strlen(words[i].word);
        if ((size_t)(r->end - r->at) >= len && !memcmp(r->at, words[i].word, len)) {
            r->at += len;
            value->type = words[i].type;
            return value;
        }
    }
    char c = *r->at;
    if (c == '"') {
        r->at++;
        value->type = PW_STRING;
        value->text = pw_read_string(r);
    } else if (c == '{' || c == '[') {
        r->at++;
        char close = c == '{' ? '}' : ']';
        value->type = c == '{' ? PW_OBJECT : PW_ARRAY;
        if (++r->depth > 128) {
            r->error = "more than 128 levels";
            return value;
        }
        pw_json **last = &value->first;
        pw_skip(r);
        if (r->at < r->end && *r->at == close) {
            r->at++;
            r->depth--;
            return value;
        }
        while (!r->error) {
            pw_str name = {"", 0};
            if (c == '{') {
                pw_skip(r);
                if (r->at == r->end || *r->at++ != '"') {
                    r->error = "the name of a member is missing";
                    break;
                }
                name = pw_read_string(r);
                pw_skip(r);
                if (!r->error && (r->at == r->end || *r->at++ != ':')) r->error = "`:` is missing";
                if (r->error) break;
            }
            pw_json *inner = pw_read_value(r);
            inner->name = name;
            *last = inner;
            last = &inner->next;
            pw_skip(r);
            if (r->error) break;
            char next = r->at < r->end ? *r->at++ : 0;
            if (next == close) break;
            if (next != ',') r->error = "`,` or an end is missing";
        }
        r->depth--;
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        const char *start = r->at;
        if (c == '-') r->at++;
        size_t digits = pw_digits(r);
        bool good = digits == 1 || (digits > 1 && r->at[-(ptrdiff_t)digits] != '0');
        if (r->at < r->end && *r->at == '.') {
            r->at++;
            good = pw_digits(r) && good;
        }
        if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
            r->at++;
            if (r->at < r->end && (*r->at == '+' || *r->at == '-')) r->at++;
            good = pw_digits(r) && good;
        }
        if (!good) r->error = "a number that is none";
        value->type = PW_NUMBER;
        value->text.ptr = start;
        value->text.len = (size_t)(r->at - start);
    } else {
        r->error = "what begins here is no value";
    }
    return value;
}

/* Reads JSON. NULL when it is none; then *error says why. */
PW_FN pw_json *pw_parse(pw_str json, pw_str *error) {
    pw_reader r = {json.ptr, json.ptr + json.len, NULL, 0};
    pw_json *value = pw_read_value(&r);
    pw_skip(&r);
    if (!r.error && r.at != r.end) r.error = "something comes after the value";
    if (!r.error) return value;
    *error = pw_format("%s, at byte %zu", r.error, (size_t)(r.at - json.ptr));
    return NULL;
}

/* A member of an object; NULL when there is none, or no object. The last one counts where a name is there twice. */
PW_FN const pw_json *pw_member(const pw_json *object, const char *name) {
    const pw_json *found = NULL;
    if (!object || object->type != PW_OBJECT) return NULL;
    for (const pw_json *inner = object->first; inner; inner = inner->next)
        if (pw_is(inner->name, name)) found = inner;
    return found;
}

/* The text of a member that is a string. */
PW_FN bool pw_member_str(const pw_json *object, const char *name, pw_str *text) {
    const pw_json *member = pw_member(object, name);
    if (!member || member->type != PW_STRING) return false;
    *text = member->text;
    return true;
}

/* The value of a member that is a whole number. */
PW_FN bool pw_member_int(const pw_json *object, const char *name, int64_t *number) {
    const pw_json *member = pw_member(object, name);
    if (!member || member->type != PW_NUMBER || member->text.len > 20) return false;
    char digits[24], *end;
    memcpy(digits, member->text.ptr, member->text.len);
    digits[member->text.len] = 0;
    errno = 0;
    *number = strtoll(digits, &end, 10);
    return *end == 0 && errno == 0;
}

/* A text as a JSON string, with its quotes. */
PW_FN pw_str pw_quote(pw_str text) {
    text = pw_clean(text);
    char *start = (char *)pw_alloc(text.len * 6 + 2), *to = start;
    *to++ = '"';
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c == '"' || c == '\\') {
            *to++ = '\\';
            *to++ = (char)c;
        } else if (c < 0x20) {
            to += snprintf(to, 7, "\\u%04x", c);
        } else {
            *to++ = (char)c;
        }
    }
    *to++ = '"';
    pw_str result = {start, (size_t)(to - start)};
    return result;
}

/* ---- 5. The border ---- */

PW_C __attribute__((export_name("cabi_realloc"))) PW_UNUSED void *pw_cabi_realloc(void *old, size_t old_len, size_t align,
                                                                                  size_t len) {
    (void)old_len;
    if (len == 0) return (void *)align;
    void *room = realloc(old, len);
    if (!room) pw_panic("out of memory");
    return room;
}

PW_C __attribute__((export_name("run"))) PW_UNUSED pw_result *pw_entry(const pw_job *job) {
    static pw_result result;
    result = pw_run(job);
    /* The start of a reactor's output is held back until something flushes it. */
    fflush(stdout);
    return &result;
}

#endif
