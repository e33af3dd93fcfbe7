package matching

import (
	"fmt"
	"math"
	"strings"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

// Kind is an operation of a communicator.
type Kind uint8

// The kinds of operations. Those from Send on involve two ranks.
const (
	AllReduce Kind = iota
	Broadcast
	AllGather
	ReduceScatter
	Barrier
	Send
	Recv
)

// Pairs reports whether the operation involves two ranks.
//
//go:norace
func (k Kind) Pairs() bool { return k >= Send }

// String returns the method's name.
func (k Kind) String() string {
	return [...]string{"AllReduce", "Broadcast", "AllGather", "ReduceScatter", "Barrier", "Send", "Recv"}[k]
}

// Call is one operation of a rank. Counts are in elements.
type Call struct {
	Kind     Kind
	Type     device.DataType
	Op       device.ReduceOp
	Count    int64
	Peer     int // the other rank, or the root
	Dst, Src device.Ptr
}

// Ranges returns the numbers of elements that the call writes at Dst and reads at Src, and the
// offset from Dst to Src in elements if the call is in place.
func (c *Call) Ranges(rank, size int) (dst, src, inPlace int64) {
	n := c.Count
	switch c.Kind {
	case AllReduce:
		return n, n, 0
	case Broadcast:
		if rank != c.Peer {
			return n, 0, 0
		}
		return n, n, 0
	case AllGather:
		return n * int64(size), n, int64(rank) * n
	case ReduceScatter:
		return n, n * int64(size), -int64(rank) * n
	case Send:
		return 0, n, 0
	case Recv:
		return n, 0, 0
	}
	return 0, 0, 0
}

// Check refuses invalid arguments, except for memory that is not live.
func (c *Call) Check(self backend.Self, rank, size int) error {
	op := c.Kind.String()
	switch {
	case !c.Type.Valid():
		return self.Invalid(op, 0, "the type is %v; types are Float32 to Int64", c.Type)
	case !c.Op.Valid():
		return self.Invalid(op, 0, "the reduction is %v; reductions are ReduceSum to ReduceAvg", c.Op)
	case c.Count < 0:
		return self.Invalid(op, 0, "%d elements; counts are not negative", c.Count)
	case c.Count > math.MaxInt64/8/int64(size):
		return self.Invalid(op, 0, "%d elements of each of %d ranks; that is more than any memory", c.Count, size)
	case c.Peer < 0 || c.Peer >= size:
		return self.Invalid(op, 0, "rank %d of %d; ranks are 0 to %d", c.Peer, size, size-1)
	case c.Count == 0:
		return nil
	}
	bytes := device.Ptr(c.Type.Bytes())
	dst, src, inPlace := c.Ranges(rank, size)
	if dst > 0 && c.Dst%bytes != 0 || src > 0 && c.Src%bytes != 0 {
		return self.Invalid(op, c.Count*int64(bytes), "an address is not a multiple of %d, the size of a %v", bytes, c.Type)
	}
	if dst > 0 && src > 0 && c.Src != c.Dst+device.Ptr(inPlace)*bytes && c.Dst < c.Src+device.Ptr(src)*bytes && c.Src < c.Dst+device.Ptr(dst)*bytes {
		return self.Invalid(op, c.Count*int64(bytes), "the ranges overlap: source minus destination is %d bytes; in place it is %d", int64(c.Src-c.Dst), inPlace*int64(bytes))
	}
	return nil
}

// Matches reports whether calls of two ranks with the same number belong to one operation.
//
//go:norace
func (c *Call) Matches(o *Call) bool {
	if c.Count != o.Count || c.Type != o.Type || c.Op != o.Op {
		return false
	}
	return c.Kind.Pairs() || c.Kind == o.Kind && c.Peer == o.Peer
}

// Post is an operation that a rank queues: one call or a group.
type Post struct {
	rank  int
	calls []Call
	// Of each call: its number among the rank's collectives, or among the calls to or from its
	// peer.
	numbers []int64
	matched []bool
	open    int // number of calls that are not matched
}

// Name returns the operation's name.
func (p *Post) Name() string { return Name(p.calls) }

// Name returns the name of the operation that consists of calls.
func Name(calls []Call) string {
	if len(calls) == 1 {
		return calls[0].Kind.String()
	}
	return "Group"
}

// String describes the post.
func (p *Post) String() string { return Describe(p.calls, p.numbers) }

// Describe describes one call, or a group by its first call: "AllReduce number 3 of 10 float32
// (sum)".
func Describe(calls []Call, numbers []int64) string {
	first := calls[0].Describe(numbers[0])
	if len(calls) == 1 {
		return first
	}
	return fmt.Sprintf("a group of %d calls, first %s", len(calls), first)
}

// Describe describes a call with its number, counted from 0, among those of its rank: "AllReduce
// number 3 of 10 float32 (sum)".
func (c *Call) Describe(number int64) string {
	s := fmt.Sprintf("%v number %d", c.Kind, number+1)
	if c.Kind != Barrier {
		s += fmt.Sprintf(" of %d %v", c.Count, c.Type)
	}
	switch c.Kind {
	case AllReduce, ReduceScatter:
		s += fmt.Sprintf(" (%v)", c.Op)
	case Broadcast, Recv:
		s += fmt.Sprintf(" from rank %d", c.Peer)
	case Send:
		s += fmt.Sprintf(" to rank %d", c.Peer)
	}
	return s
}

// Find returns the index in calls of the counterpart of c, or -1. calls are another rank's or the
// same rank's, and numbers are theirs. c is a call of rank with the number number.
//
//go:norace
func Find(calls []Call, numbers []int64, c *Call, number int64, rank int) int {
	for i := range calls {
		o := &calls[i]
		switch {
		case numbers[i] != number || c.Kind.Pairs() != o.Kind.Pairs():
		case !c.Kind.Pairs() || o.Peer == rank && c.Kind != o.Kind:
			return i
		}
	}
	return -1
}

// RanksAre returns "rank 2 is" or "ranks 2, 3 are".
func RanksAre(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d is", ranks[0])
	}
	list := make([]string, len(ranks))
	for i, r := range ranks {
		list[i] = fmt.Sprint(r)
	}
	return "ranks " + strings.Join(list, ", ") + " are"
}
