package transfer

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// A slab is the pool's, for as long as the driver's allocation lasts; a Buffer is a handle of it
// for one Get, with the slab's serial number of then. A handle whose number is not the slab's any
// more is stale, and says so, whoever has the memory now. Handles are values: a Get makes no Go
// object.

// slab is one pinned allocation, or one registered slice. It belongs to the buffer that is out, or
// to a shard.
type slab struct {
	pool       *Pool
	mem        []byte
	class      int
	registered bool // it is a Go slice of the caller
	pinner     *runtime.Pinner

	// serial is the generation of the handles: odd while a buffer is out. A handle with another one is stale.
	serial atomic.Uint64

	mu       sync.Mutex // of the buffer that is out; guards what follows up to tainted
	uses     []use
	queueing int  // copies that are being queued
	writing  bool // if there is one, it writes the buffer
	tainted  bool // a copy failed, or nothing says when it is done: the memory is not used again

	// Guarded by the lock of a shard.
	above, below *slab         // in the stack of idle ones of its class
	newer, older *slab         // among all idle ones
	since        uint64        // the shard's tick when it became idle
	completions  []*completion // of the copies that its last owner queued
	waiting      int           // how many of them are in queues

	next, prev *slab // all slabs of the pool, guarded by its lock

	_ [64]byte // the next slab is not in this one's last cache line
}

func (s *slab) size() int64 { return int64(len(s.mem)) }

// use is the last copy of a buffer on one stream.
type use struct {
	stream uint64
	last   *completion
	wrote  bool // this copy, or one before it on the stream, writes the buffer
}
