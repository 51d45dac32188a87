// What the tests of all languages ask of a handler: tests/it/languages.rs.
package main

import (
	"errors"
	"math/rand"
	"strings"

	"handlers/watch-go/piecework"
)

type payload struct {
	Do   string  `json:"do"`
	Text *string `json:"text"`
	URL  string  `json:"url"`
	Next string  `json:"next"`
}

type step struct {
	Attempt int    `json:"attempt"`
	Note    string `json:"note"`
}

func run(job piecework.Job, p payload) (any, error) {
	switch p.Do {
	case "work":
		return work(job, p)
	case "checkpoint":
		return checkpoint(job)
	case "retry":
		return nil, piecework.Retry("asked to retry")
	case "retry-after":
		return nil, piecework.RetryAfter(60, "asked to wait")
	case "snooze":
		return nil, piecework.Snooze(30, "too early")
	case "discard":
		return nil, piecework.Discard("asked to discard")
	case "error":
		return nil, errors.New("an ordinary error")
	case "panic":
		panic("asked to panic")
	case "loop":
		for {
		}
	case "allocate":
		var held [][]byte
		for {
			held = append(held, []byte(strings.Repeat("x", 1<<20)))
		}
	case "random":
		return map[string]any{"random": rand.Uint32()}, nil
	}
	return nil, piecework.Discard("there is no `" + p.Do + "`")
}

func work(job piecework.Job, p payload) (any, error) {
	if p.Text == nil {
		return nil, piecework.Discard("the payload: `text` is missing")
	}
	piecework.Info("attempt %d of %d", job.Attempt, job.MaxAttempts)
	piecework.Progress(10, "parsed")
	shout := strings.Map(func(letter rune) rune {
		if letter >= 'a' && letter <= 'z' {
			return letter - 'a' + 'A'
		}
		return letter
	}, *p.Text)
	var status, body any
	if p.URL != "" {
		headers := []piecework.Header{{Name: "accept", Value: "text/plain"}}
		if token, ok := piecework.Secret("token"); ok {
			headers = append(headers, piecework.Header{Name: "authorization", Value: "Bearer " + token})
		}
		answer, err := piecework.Send(piecework.Request{URL: p.URL, Headers: headers})
		if err != nil {
			return nil, err
		}
		status, body = answer.Status, string(answer.Body)
	}
	if p.Next != "" {
		err := piecework.Enqueue(piecework.FollowUp{
			JobType:   p.Next,
			Payload:   map[string]string{"from": "go", "text": shout},
			Delay:     piecework.Some[uint32](5),
			UniqueKey: "after-" + job.ID,
		})
		if err != nil {
			return nil, err
		}
	}
	return map[string]any{"language": "go", "text": shout, "status": status, "body": body}, nil
}

func checkpoint(job piecework.Job) (any, error) {
	if job.Attempt == 1 {
		if err := piecework.Save("step", step{1, "für später"}); err != nil {
			return nil, err
		}
		piecework.Progress(50, "saved")
		return nil, piecework.Retry("half way")
	}
	var saved step
	found, err := piecework.Load("step", &saved)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, piecework.Discard("the checkpoint is lost")
	}
	return map[string]any{"resumed": saved.Attempt, "note": saved.Note}, nil
}

func init() { piecework.Handle(run) }
func main() {}
