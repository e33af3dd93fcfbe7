package host

import (
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// work does the rank's share of p, whose calls are all matched: each rank reduces a part of what all get, and copies what only it gets.
func (c *communicator) work(p *post) {
	for i := range p.calls {
		for _, q := range p.with[i] {
			if q != nil && p.follows(i, q) {
				race.Acquire(unsafe.Pointer(&q.begun))
			}
		}
		c.share(p, i)
	}
}

func (c *communicator) share(p *post, i int) {
	mine := &p.calls[i]
	bytes := mine.count * mine.t.Bytes()
	if bytes == 0 {
		return
	}
	rank := int64(c.rank)
	switch mine.kind {
	case allReduce:
		lo := mine.count * rank / int64(c.size) * mine.t.Bytes()
		hi := mine.count * (rank + 1) / int64(c.size) * mine.t.Bytes()
		if lo < hi {
			reduce(mine.t, mine.op, parts(p, i, lo, hi, true), parts(p, i, lo, hi, false))
		}
	case reduceScatter:
		reduce(mine.t, mine.op, [][]byte{mine.dst}, parts(p, i, rank*bytes, (rank+1)*bytes, false))
	case allGather:
		for r, q := range p.with[i] {
			move(mine.dst[int64(r)*bytes:][:bytes], q.other(p, i).src)
		}
	case broadcast:
		move(mine.dst, p.with[i][mine.peer].other(p, i).src)
	case recv:
		move(mine.dst, p.with[i][mine.peer].other(p, i).src)
	}
}

// other is the call of q that is the other side of call i of p.
func (q *post) other(p *post, i int) *call {
	c := &p.calls[i]
	for j := range q.calls {
		o := &q.calls[j]
		if o.kind.pairs() != c.kind.pairs() || q.numbers[j] != p.numbers[i] || c.kind.pairs() && (o.kind == c.kind || o.peer != p.rank) {
			continue
		}
		return o
	}
	return nil // not reached: they are matched
}

// parts are the bytes [lo, hi) of all ranks' sources or destinations of a call.
func parts(p *post, i int, lo, hi int64, dst bool) [][]byte {
	all := make([][]byte, len(p.with[i]))
	for r, q := range p.with[i] {
		o := q.other(p, i)
		if all[r] = o.src[lo:hi]; dst {
			all[r] = o.dst[lo:hi]
		}
	}
	return all
}

// move copies, unless it is there already: who works in place lets others read it meanwhile.
func move(dst, src []byte) {
	if unsafe.SliceData(dst) != unsafe.SliceData(src) {
		copy(dst, src)
	}
}
