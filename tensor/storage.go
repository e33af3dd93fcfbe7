package tensor

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/memcache"
)

// storage is memory that one or several tensors share. It is freed when the last of them is
// released, whichever that is.
type storage struct {
	block    memcache.Block
	host     []byte                    // the block, for kernels of the host; nil: look it up
	borrowed bool                      // the owner of the block frees it
	made     *made                     // by the capture that allocated it; nil: by none
	bytes    int64                     // of the block, used
	again    bool                      // in a slot that is reused; see Lifetime.Reset
	refs     atomic.Int32              // references; freedAgain: the slot can be reused
	graphs   atomic.Int32              // the references of captures and graphs among refs
	version  atomic.Uint64             // the number of writes in place
	away     atomic.Pointer[offloaded] // holds the bytes of an offloaded storage, else nil
	kept     *offloaded                // a pinned copy beside the block, with its version; or nil
}

func newStorage(b memcache.Block, borrowed bool) *storage {
	s := new(storage)
	s.init(b, b.Size(), borrowed)
	return s
}

// hostBytes returns a block's memory for kernels of the host. It is nil if the kernels have to look
// it up: on other devices, and after an error, which they then return.
func (rt *Runtime) hostBytes(b memcache.Block) []byte {
	if rt.visible == nil || b.IsZero() {
		return nil
	}
	data, err := rt.visible.Bytes(b.Ptr(), b.Size())
	if err != nil {
		return nil
	}
	return data
}

// init makes s the memory of b, of which bytes bytes are used, with one reference.
func (s *storage) init(b memcache.Block, bytes int64, borrowed bool) {
	s.block, s.bytes, s.borrowed = b, bytes, borrowed
	s.refs.Store(1)
}

// retain adds a reference, unless the last one is already gone.
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

// writes returns the number of writes in place, including those of replays of the graph that made
// the memory.
func (s *storage) writes() uint64 {
	n := s.version.Load()
	if s.made != nil {
		n += s.made.replays.Load()
	}
	return n
}

// replayed reports whether later replays of a graph may read or write the memory.
func (s *storage) replayed() bool {
	return s.graphs.Load() > 0 || s.made != nil && !s.made.closed.Load()
}

// tensors returns the number of references, except those of graphs.
func (s *storage) tensors() int32 { return s.refs.Load() - s.graphs.Load() }

func (s *storage) release(ctx context.Context) error {
	_, err := s.letGo(ctx)
	return err
}

// letGo is release; last reports whether it released the last reference. When it returns, the
// storage may belong to another tensor.
func (s *storage) letGo(ctx context.Context) (last bool, err error) {
	if n := s.refs.Add(-1); n != 0 {
		if n < 0 {
			accounting.Broken("tensor storage", "references", int64(n))
		}
		return false, nil
	}
	if s.borrowed {
		return true, nil
	}
	err = s.free(ctx)
	if s.again {
		s.refs.Store(freedAgain)
	}
	return true, err
}

func (s *storage) free(ctx context.Context) error {
	if a := s.away.Load(); a != nil {
		return a.release(ctx, s.bytes)
	}
	err := s.block.FreeContext(ctx)
	if s.kept != nil {
		err = errors.Join(err, s.forgetKept())
	}
	return err
}

// label returns the label of the memory, on the device or offloaded.
func (s *storage) label() memcache.Label {
	if a := s.away.Load(); a != nil {
		return a.label
	}
	return s.block.Label()
}

// Memory identifies the memory of a tensor, on the device or offloaded: it is equal for tensors
// that share their memory, and for no others, as long as the Memory is referenced. It does not keep
// the memory from being freed. A tensor in a slot that [Lifetime.Reset] reuses has the Memory of
// the slot's earlier tensor.
type Memory struct{ storage *storage }

// MemoryOf returns the Memory of t; the zero Memory for nil.
func MemoryOf(t *Tensor) Memory {
	if t.none() {
		return Memory{}
	}
	return Memory{t.store}
}

// Tensors returns the number of unreleased tensors that share the memory.
func (m Memory) Tensors() int {
	if m.storage == nil {
		return 0
	}
	return int(max(0, m.storage.tensors()))
}
