// Package piecework is the handler world for Go: set the handler in init, with an empty main.
//
//	func init() { piecework.Handle(run) }
//	func main() {}
//
//	func run(job piecework.Job, payload Payload) (Result, error) { ... }
//
// An error is a retry, unless it is, or wraps, one of Retry, RetryAfter, Snooze and Discard. A panic is a retry with its stack.
// There is no network but Send; goroutines end with the call.
package piecework

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
)

// Job is one attempt of one job.
type Job struct {
	// ID is made of decimal digits.
	ID, JobType string
	// Payload is JSON; the handler is given what was read from it.
	Payload string
	// Attempt counts from 1.
	Attempt, MaxAttempts uint32
	// IdempotencyKey is the same for every attempt on every host: pass it to outside services.
	IdempotencyKey string
	// OrderingKey and GroupKey are those that the job was enqueued with, Parent the job whose handler enqueued it.
	OrderingKey, GroupKey, Parent *string
	// EnqueuedAt and DueAt are RFC 3339 in UTC.
	EnqueuedAt, DueAt string
}

// Failure is an error that says what to do with the job.
type Failure struct {
	Message     string
	disposition uint32
	seconds     uint32
}

func (f *Failure) Error() string { return f.Message }

// Retry tries again after the plugin's backoff, while attempts are left.
func Retry(message string) error { return &Failure{message, 0, 0} }

// RetryAfter tries again after so many seconds, while attempts are left.
func RetryAfter(seconds uint32, message string) error { return &Failure{message, 1, seconds} }

// Snooze says that it is too early: the job runs again after so many seconds, and no attempt is used.
func Snooze(seconds uint32, message string) error { return &Failure{message, 2, seconds} }

// Discard fails the job now: trying again is useless.
func Discard(message string) error { return &Failure{message, 3, 0} }

var handle func(Job) (string, error)

// Handle sets the handler: P is read from the payload, R becomes the result, both by encoding/json.
func Handle[P, R any](run func(Job, P) (R, error)) {
	handle = func(job Job) (string, error) {
		var payload P
		if err := json.Unmarshal([]byte(job.Payload), &payload); err != nil {
			return "", Discard("the payload: " + err.Error())
		}
		result, err := run(job, payload)
		if err != nil {
			return "", err
		}
		text, err := json.Marshal(result)
		if err != nil {
			return "", Discard("the result cannot be written: " + err.Error())
		}
		return string(text), nil
	}
}

func call(job Job) (result string, failure *Failure) {
	defer func() {
		if cause := recover(); cause != nil {
			failure = &Failure{fmt.Sprintf("panic: %v\n%s", cause, debug.Stack()), 0, 0}
		}
	}()
	if handle == nil {
		return "", &Failure{"no handler was set: call piecework.Handle in init", 3, 0}
	}
	result, err := handle(job)
	if err == nil {
		return result, nil
	}
	var said *Failure
	if errors.As(err, &said) {
		return "", &Failure{err.Error(), said.disposition, said.seconds}
	}
	return "", &Failure{err.Error(), 0, 0}
}

// FollowUp is a job to enqueue when this attempt succeeds. What is nil or empty is not given.
type FollowUp struct {
	JobType string
	// Payload is written as JSON.
	Payload any
	// Delay is in seconds from the success of this attempt; not together with DueAt.
	Delay *uint32
	// DueAt is RFC 3339.
	DueAt string
	// Priority is 1 first to 4 last.
	Priority    *uint8
	MaxAttempts *uint32
	// At most one pending or running job of a type has the same UniqueKey; with UniqueFor it stays taken for so many seconds.
	UniqueKey string
	UniqueFor *uint32
	// Jobs with the same OrderingKey run one after another; those of a type take turns between groups.
	OrderingKey, GroupKey string
}

// Some is a pointer to a value, for options: Delay: piecework.Some[uint32](60).
func Some[T any](value T) *T { return &value }

// Enqueue enqueues a follow-up in the transaction of this attempt's success, or not at all.
func Enqueue(job FollowUp) error {
	payload, err := json.Marshal(job.Payload)
	if err != nil {
		return Discard("the payload of the follow-up " + job.JobType + " cannot be written: " + err.Error())
	}
	if reason := enqueue(job, string(payload)); reason != "" {
		return Discard("the follow-up " + job.JobType + ": " + reason)
	}
	return nil
}

// Load reads what this attempt or an earlier one saved under a name; false when nothing was.
func Load(name string, into any) (bool, error) {
	text, found := load(name)
	if !found {
		return false, nil
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return false, Discard("the checkpoint " + name + ": " + err.Error())
	}
	return true, nil
}

// Save keeps a value under a name, as JSON. It is in the database when this returns, whatever becomes of the attempt.
func Save(name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return Discard("the checkpoint " + name + " cannot be written: " + err.Error())
	}
	if reason := save(name, string(text)); reason != "" {
		return Retry("the checkpoint " + name + ": " + reason)
	}
	return nil
}

// Debug, Info, Warn and Error write to the host's log and the job's record, like fmt.Printf.
func Debug(format string, values ...any) { log(0, fmt.Sprintf(format, values...)) }
func Info(format string, values ...any)  { log(1, fmt.Sprintf(format, values...)) }
func Warn(format string, values ...any)  { log(2, fmt.Sprintf(format, values...)) }
func Error(format string, values ...any) { log(3, fmt.Sprintf(format, values...)) }

// Secret is the placeholder of a secret: put it into a header or the query, and the host puts the secret in its place, in
// requests to the secret's own hosts only.
func Secret(name string) (string, bool) { return Config("secrets." + name) }

// Header is a header of a request or an answer; names of an answer are in lower case.
type Header struct{ Name, Value string }

// Request is an HTTP call by the host, only to where allow of the plugin in runner.toml points.
type Request struct {
	// Method is in capitals; GET when it is empty.
	Method, URL string
	Headers     []Header
	Body        []byte
	// Timeout is in milliseconds for the whole call; 0 is the host's own limit.
	Timeout uint32
}

// Response is the answer, whatever its status, with its whole body.
type Response struct {
	Status  uint16
	Headers []Header
	Body    []byte
}

// HTTPError says why there is no answer.
type HTTPError struct {
	// Kind is denied, timeout, dns, connect, tls, protocol, too-large, limit or cancelled.
	Kind, Message string
}

func (e *HTTPError) Error() string { return e.Message }

// Get is Send for a GET without headers of its own.
func Get(url string) (*Response, error) { return Send(Request{URL: url}) }
