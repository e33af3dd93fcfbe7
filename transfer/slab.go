package transfer

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// A slab belongs to the pool and lasts as long as the driver's allocation. A Buffer is a handle of
// it for one Get, with the slab's serial number at that time. When the slab's number has changed,
// the handle is stale and its methods fail, even if the memory has a new owner. Handles are values,
// so that a Get allocates no Go object.

// slab is one pinned allocation or one registered slice. It belongs to a buffer that is out or to a
// shard.
type slab struct {
	pool       *Pool
	mem        []byte
	class      int
	registered bool // mem is a Go slice of the caller
	pinner     *runtime.Pinner

	// serial is the generation of the handles, odd while a buffer is out. A handle with another
	// serial is stale.
	serial atomic.Uint64

	mu       sync.Mutex // guards the fields down to tainted
	uses     []use
	queueing int  // number of copies that are being queued
	writing  bool // the copy that is being queued writes the buffer
	tainted  bool // a copy failed, or its end is unknown: the memory is not reused

	// Guarded by the lock of a shard.
	above, below *slab         // in the stack of its class's idle slabs
	newer, older *slab         // in the shard's list of idle slabs by age
	since        uint64        // the shard's tick when it became idle
	completions  []*completion // of the last owner's copies
	waiting      int           // number of completions that are in queues

	next, prev *slab // in the list of all slabs, guarded by pinned.mu

	_ [64]byte // keeps the next slab out of this one's last cache line
}

func (s *slab) size() int64 { return int64(len(s.mem)) }

// use is the last copy of a buffer on one stream.
type use struct {
	stream uint64
	last   *completion
	wrote  bool // this copy, or one before it on the stream, writes the buffer
}
