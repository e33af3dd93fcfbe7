package host

import (
	"unsafe"

	"github.com/cistern-ml/cistern/device/internal/matching"
	"github.com/cistern-ml/cistern/internal/race"
)

// work does this rank's share of p, whose calls are all matched: the rank reduces its part of
// results that all ranks get, and copies the data that only it gets.
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
	mine, own := &p.calls[i], &p.memory[i]
	bytes := mine.Count * mine.Type.Bytes()
	if bytes == 0 {
		return
	}
	rank := int64(c.rank)
	switch mine.Kind {
	case matching.AllReduce:
		lo := mine.Count * rank / int64(c.size) * mine.Type.Bytes()
		hi := mine.Count * (rank + 1) / int64(c.size) * mine.Type.Bytes()
		if lo < hi {
			reduce(mine.Type, mine.Op, parts(p, i, lo, hi, true), parts(p, i, lo, hi, false))
		}
	case matching.ReduceScatter:
		reduce(mine.Type, mine.Op, [][]byte{own.dst}, parts(p, i, rank*bytes, (rank+1)*bytes, false))
	case matching.AllGather:
		for r, q := range p.with[i] {
			move(own.dst[int64(r)*bytes:][:bytes], q.other(p, i).src)
		}
	case matching.Broadcast:
		move(own.dst, p.with[i][mine.Peer].other(p, i).src)
	case matching.Recv:
		move(own.dst, p.with[i][mine.Peer].other(p, i).src)
	}
}

// other returns the memory of q's call that is the counterpart of call i of p.
func (q *post) other(p *post, i int) *memory {
	// Find succeeds because the calls are matched.
	return &q.memory[matching.Find(q.calls, q.numbers, &p.calls[i], p.numbers[i], p.rank)]
}

// parts returns the bytes [lo, hi) of all ranks' sources or destinations of a call.
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

// move copies src to dst unless they are the same memory, because other ranks may read a source in
// place meanwhile.
func move(dst, src []byte) {
	if unsafe.SliceData(dst) != unsafe.SliceData(src) {
		copy(dst, src)
	}
}
