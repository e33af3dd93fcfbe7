package tensor

import (
	"context"
	"sync/atomic"

	"github.com/cistern-ml/cistern/memcache"
)

// storage is memory that one or several tensors share. It is freed when the last of them is released: never
// when one particular tensor, such as the one a view was made from, is.
type storage struct {
	block    memcache.Block
	host     []byte // of the block, where the host's kernels can touch it; nil: look it up
	borrowed bool   // somebody else frees the block
	refs     atomic.Int32
	version  atomic.Uint64 // the writes in place
}

func newStorage(b memcache.Block, borrowed bool) *storage {
	s := new(storage)
	s.init(b, borrowed)
	return s
}

// init makes s the memory of b, with one reference.
func (s *storage) init(b memcache.Block, borrowed bool) {
	s.block, s.borrowed = b, borrowed
	s.refs.Store(1)
}

// retain takes a reference, unless the last one is already gone.
func (s *storage) retain() bool {
	for {
		n := s.refs.Load()
		if n <= 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (s *storage) release(ctx context.Context) error {
	if s.refs.Add(-1) != 0 || s.borrowed {
		return nil
	}
	return s.block.FreeContext(ctx)
}
