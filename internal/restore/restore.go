// Package restore puts a cache into the state that a recording begins with. It is the way between internal/replay, which
// works that state out, and package memcache, which alone can place blocks at given addresses. Programs have no use for it.
package restore

import (
	"context"

	"github.com/cistern-ml/cistern/device"
)

// Segment is memory of the driver's, or an expandable range of addresses from its first mapped byte on. Sizes are bytes.
type Segment struct {
	Context    context.Context // carries the private pool, if the segment is of one
	Stream     device.Stream
	Small      bool // of the pool of small blocks
	Expandable bool
	Range      int64   // of an expandable segment: its addresses, a multiple of its granule
	Pieces     []Piece // in the order of their addresses, without a gap
}

// State is what a piece of a segment is.
type State uint8

// The states of a piece.
const (
	Used     State = iota
	Free           // no neighbour is free
	Unmapped       // whole granules of an expandable segment, and not its end
)

// Piece is a part of a segment. Sizes are bytes.
type Piece struct {
	State     State
	Bytes     int64
	Requested int64 // of a used piece
	Block     any   // set for a used piece: the memcache.Block
}

// UnknownRequest is what was asked for in memory that is not used, by an earlier hand-out.
const UnknownRequest = -1

// Into gives an empty cache, which is a *memcache.Cache, memory that is used and free as the segments say. It makes one call
// of the device's Alloc or Reserve for each segment, in their order. Nothing else may use the cache meanwhile. Afterwards
// peaks and accumulated statistics begin anew. Package memcache sets it.
var Into func(cache any, segments []Segment) error
