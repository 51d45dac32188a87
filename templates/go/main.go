// Watches a page: looks at it, remembers what it saw, and looks again later if it is told to.
package main

import (
	"fmt"

	"handlers/@NAME@/piecework"
)

type Payload struct {
	URL string `json:"url"`
	// How often it is looked at.
	Times int `json:"times"`
}

type Seen struct {
	Bytes  int `json:"bytes"`
	Status int `json:"status"`
}

type Result struct {
	Seen
	Left int `json:"left"`
}

func run(job piecework.Job, payload Payload) (*Result, error) {
	// A payload that is wrong stays wrong: the job fails at once.
	if payload.URL == "" {
		return nil, piecework.Discard("the payload: `url` is missing")
	}
	// An earlier attempt may have come this far: then the page is not fetched again.
	var seen Seen
	found, err := piecework.Load("seen", &seen)
	if err != nil {
		return nil, err
	}
	if !found {
		if seen, err = look(payload.URL); err != nil {
			return nil, err
		}
		if err := piecework.Save("seen", seen); err != nil {
			return nil, err
		}
	}
	piecework.Progress(50, "fetched")

	// The next look is a job of its own; it is enqueued when this one succeeds.
	left := max(payload.Times-1, 0)
	if left > 0 {
		err := piecework.Enqueue(piecework.FollowUp{
			JobType: job.JobType,
			Payload: Payload{payload.URL, left},
			Delay:   piecework.Some[uint32](60),
		})
		if err != nil {
			return nil, err
		}
	}
	return &Result{seen, left}, nil
}

func look(url string) (Seen, error) {
	// An error is a retry, unless it says something else.
	answer, err := piecework.Get(url)
	if err != nil {
		return Seen{}, err
	}
	if answer.Status >= 500 {
		return Seen{}, piecework.RetryAfter(30, fmt.Sprintf("the server answered %d", answer.Status))
	}
	if answer.Status < 200 || answer.Status > 299 {
		return Seen{}, piecework.Discard(fmt.Sprintf("the server answered %d", answer.Status))
	}
	return Seen{len(answer.Body), int(answer.Status)}, nil
}

func init() { piecework.Handle(run) }
func main() {}
