package placement

import "sync/atomic"

// Pool identifies a private pool. Its segments serve only its own requests.
type Pool struct {
	ID [2]uint64
	// NoSplit pools serve requests with whole free chunks and segments only.
	NoSplit bool
	// The large segments of StartSmall pools have the sizes of [Rules.SegmentSizeIn].
	StartSmall bool
	// Released pools serve no more requests, and their free memory may be returned to the driver.
	Released bool
	// Captured pools contain blocks that streams allocated, or used until the free, in a capture:
	// graphs use their free memory.
	Captured atomic.Bool
	// DriverCalls is the number of requests that got memory from the driver for the pool, minus the
	// calls that returned some (PyTorch's cudaMalloc_count).
	DriverCalls int
	// Tag belongs to the owner.
	Tag any
}

// Pinned reports whether free memory of the pool must stay, because graphs may use it. The default
// pool, nil, is never pinned.
func (p *Pool) Pinned() bool { return p != nil && !p.Released && p.Captured.Load() }

// CountDriverCalls adds n to DriverCalls, except for the default pool, nil.
func (p *Pool) CountDriverCalls(n int) {
	if p != nil {
		p.DriverCalls += n
	}
}

// lists contains the chunks of one stream and one pool that are not in use, by Kind. An arena has
// lists for the default pool, and for each private pool with a segment in it. Each segment refers
// to the lists of its chunks, so that a free needs no look-up.
type lists struct {
	pool     *Pool // nil: the default pool
	free     [2]index
	unmapped [2]tree // parts of expandable segments without memory, by address
	// segments of these lists; the lists of a private pool are removed with the last one
	segments int
}
