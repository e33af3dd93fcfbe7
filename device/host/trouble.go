package host

import (
	"fmt"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
	"github.com/cistern-ml/cistern/internal/race"
)

func (c *communicator) failure(op string, ranks []int, class error, format string, args ...any) *device.CollectiveError {
	return &device.CollectiveError{Op: op, Device: c.dev.Name(), Rank: c.rank, Size: c.size, Ranks: ranks, Detail: fmt.Sprintf(format, args...), Err: class}
}

// troubled returns the error for the trouble that enter has found.
func (c *communicator) troubled(p *post, tr trouble) *device.CollectiveError {
	if tr.other != nil {
		race.Acquire(unsafe.Pointer(&tr.other.begun)) // to read it
	}
	switch tr.kind {
	case disordered:
		return c.failure(matching.Name(p.calls), []int{c.rank}, device.ErrInvalid,
			"rank %d's operations run in another order than they were queued in; order its streams by events, or queue all on one", c.rank)
	case differs:
		return c.failure(matching.Name(p.calls), []int{c.rank, tr.rank}, device.ErrMismatch, "rank %d is in %s, rank %d in %s",
			c.rank, p.calls[tr.call].Describe(p.numbers[tr.call]), tr.rank, tr.other.calls[tr.callOf].Describe(tr.other.numbers[tr.callOf]))
	case circle:
		return c.failure(matching.Name(p.calls), []int{c.rank, tr.rank}, device.ErrMismatch, "rank %d is in %s, rank %d in %s: they would wait for each other",
			c.rank, matching.Describe(p.calls, p.numbers), tr.rank, matching.Describe(tr.other.calls, tr.other.numbers))
	default:
		return c.failure(matching.Name(p.calls), []int{tr.rank}, device.ErrAborted, "rank %d has closed its communicator, and rank %d is in %s", tr.rank, c.rank, matching.Describe(p.calls, p.numbers))
	}
}

// timedOut returns the error of p, which has waited too long for the ranks who.
func (c *communicator) timedOut(p *post, who []int) *device.CollectiveError {
	return c.failure(matching.Name(p.calls), who, device.ErrTimeout, "rank %d has waited for %v in %s; %s missing", c.rank, c.timeout, matching.Describe(p.calls, p.numbers), matching.RanksAre(who))
}
