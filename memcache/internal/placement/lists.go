package placement

import "sync/atomic"

// Pool names a private pool. Its segments serve no requests but its own.
type Pool struct {
	ID [2]uint64
	// NoSplit hands out whole free chunks and segments only.
	NoSplit bool
	// StartSmall pools get large segments as [Rules.SegmentSizeIn] says.
	StartSmall bool
	// Released pools serve no requests any more: what they have free may go back to the driver.
	Released bool
	// Captured pools have blocks that streams allocated, or used until the free, in a capture: graphs use
	// their free memory.
	Captured atomic.Bool
	// DriverCalls are the requests that got memory of the driver for the pool, less the calls that gave some back (PyTorch's
	// cudaMalloc_count).
	DriverCalls int
	// Tag is the owner's.
	Tag any
}

// Pinned reports whether free memory of the pool must stay: graphs may use it. The default pool, which
// is nil, is never pinned.
func (p *Pool) Pinned() bool { return p != nil && !p.Released && p.Captured.Load() }

// CountDriverCalls changes DriverCalls; not of the default pool, which is nil.
func (p *Pool) CountDriverCalls(n int) {
	if p != nil {
		p.DriverCalls += n
	}
}

// lists are the chunks of one stream and one pool that are not in use, by Kind. An arena has them for the default pool, and
// for each private pool that it has a segment of; each segment names the ones that its chunks belong to, so that a free
// looks nothing up.
type lists struct {
	pool     *Pool // nil: the default pool
	free     [2]index
	unmapped [2]tree // parts of expandable segments without memory, by address
	segments int     // whose chunks belong here; with the last one the lists of a private pool go
}
