package host

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

func (c *communicator) failure(op string, ranks []int, class error, format string, args ...any) *device.CollectiveError {
	return &device.CollectiveError{Op: op, Device: c.dev.Name(), Rank: c.rank, Size: c.size, Ranks: ranks, Detail: fmt.Sprintf(format, args...), Err: class}
}

// troubled is the error of what enter has found.
func (c *communicator) troubled(p *post, tr trouble) *device.CollectiveError {
	if tr.other != nil {
		race.Acquire(unsafe.Pointer(&tr.other.begun)) // to look at it
	}
	switch tr.kind {
	case disordered:
		return c.failure(p.name(), []int{c.rank}, device.ErrInvalid,
			"rank %d's operations run in another order than they were queued in; order its streams by events, or queue all on one", c.rank)
	case differs:
		return c.failure(p.name(), []int{c.rank, tr.rank}, device.ErrMismatch, "rank %d is in %s, rank %d in %s",
			c.rank, p.describe(tr.call), tr.rank, tr.other.describe(tr.callOf))
	case circle:
		return c.failure(p.name(), []int{c.rank, tr.rank}, device.ErrMismatch, "rank %d is in %s, rank %d in %s: they would wait for each other",
			c.rank, p.describeAll(), tr.rank, tr.other.describeAll())
	default:
		return c.failure(p.name(), []int{tr.rank}, device.ErrAborted, "rank %d has closed its communicator, and rank %d is in %s", tr.rank, c.rank, p.describeAll())
	}
}

// timedOut is the error of p, which has waited too long for who.
func (c *communicator) timedOut(p *post, who []int) *device.CollectiveError {
	return c.failure(p.name(), who, device.ErrTimeout, "rank %d has waited for %v in %s; %s missing", c.rank, c.timeout, p.describeAll(), ranksAre(who))
}

// name is the operation's.
func (p *post) name() string {
	if len(p.calls) == 1 {
		return p.calls[0].kind.String()
	}
	return "Group"
}

func (p *post) describeAll() string {
	if len(p.calls) == 1 {
		return p.describe(0)
	}
	return fmt.Sprintf("a group of %d calls, first %s", len(p.calls), p.describe(0))
}

// describe is "AllReduce number 3 of 10 float32 (sum)".
func (p *post) describe(i int) string {
	c := &p.calls[i]
	s := fmt.Sprintf("%v number %d", c.kind, p.numbers[i]+1)
	if c.kind != barrier {
		s += fmt.Sprintf(" of %d %v", c.count, c.t)
	}
	switch c.kind {
	case allReduce, reduceScatter:
		s += fmt.Sprintf(" (%v)", c.op)
	case broadcast, recv:
		s += fmt.Sprintf(" from rank %d", c.peer)
	case send:
		s += fmt.Sprintf(" to rank %d", c.peer)
	}
	return s
}

// ranksAre is "rank 2 is" or "ranks 2, 3 are".
func ranksAre(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d is", ranks[0])
	}
	list := make([]string, len(ranks))
	for i, r := range ranks {
		list[i] = fmt.Sprint(r)
	}
	return "ranks " + strings.Join(list, ", ") + " are"
}
