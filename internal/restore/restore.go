// Package restore puts a cache into a given state. internal/replay reconstructs the state at the
// start of a recording, and package memcache, which registers Into, places the blocks. The package
// keeps this out of memcache's public API.
package restore

import (
	"context"

	"github.com/cistern-ml/cistern/device"
)

// Segment is a segment, or an expandable segment from its first mapped byte on. Sizes are bytes.
type Segment struct {
	Context    context.Context // carries the private pool, if the segment belongs to one
	Stream     device.Stream
	Small      bool // in the pool of small blocks
	Expandable bool
	Range      int64   // of an expandable segment: its addresses, a multiple of its granule
	Pieces     []Piece // by address, contiguous
}

// State is the state of a piece of a segment.
type State uint8

// The states of a piece.
const (
	Used     State = iota
	Free           // its neighbours are not free
	Unmapped       // whole granules of an expandable segment, and not its end
)

// Piece is a part of a segment. Sizes are bytes.
type Piece struct {
	State     State
	Bytes     int64
	Requested int64 // of a used piece
	Block     any   // set for a used piece: the memcache.Block
}

// UnknownRequest is the requested size that a restored free piece has, because its earlier
// allocation is unknown.
const UnknownRequest = -1

// Into fills an empty *memcache.Cache with the segments. It calls the device's Alloc or Reserve
// once for each segment, in order, sets the Block of every used piece, and resets peaks and
// accumulated statistics. The cache must not be in use. Package memcache sets Into.
var Into func(cache any, segments []Segment) error
