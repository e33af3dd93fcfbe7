package tensor

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/memcache"
)

// storage is memory that one or several tensors share. It is freed when the last of them is released: never
// when one particular tensor, such as the one a view was made from, is.
type storage struct {
	block    memcache.Block
	host     []byte                    // of the block, where the host's kernels can touch it; nil: look it up
	borrowed bool                      // somebody else frees the block
	made     *made                     // by the capture that made it; nil: by none
	bytes    int64                     // of the block that are used
	again    bool                      // of a slot that is used again; see Lifetime.Reset
	refs     atomic.Int32              // freedAgain: of such a slot, and nobody is at it any more
	graphs   atomic.Int32              // of refs, those of captures and graphs
	version  atomic.Uint64             // the writes in place
	away     atomic.Pointer[offloaded] // where the bytes are instead of in the block; nil: in the block
	kept     *offloaded                // pinned memory that it has beside the block, with the bytes of its version; nil: none
}

func newStorage(b memcache.Block, borrowed bool) *storage {
	s := new(storage)
	s.init(b, b.Size(), borrowed)
	return s
}

// hostBytes is a block's memory for kernels of the host; nil if they have to look it up: on other
// devices, and after an error, which is theirs to return.
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

// writes are those in place, and those of replays of the graph that made it.
func (s *storage) writes() uint64 {
	n := s.version.Load()
	if s.made != nil {
		n += s.made.replays.Load()
	}
	return n
}

// replayed reports whether replays of a graph may come that read or write the memory.
func (s *storage) replayed() bool {
	return s.graphs.Load() > 0 || s.made != nil && !s.made.closed.Load()
}

// tensors are the references but those of graphs.
func (s *storage) tensors() int32 { return s.refs.Load() - s.graphs.Load() }

func (s *storage) release(ctx context.Context) error {
	_, err := s.letGo(ctx)
	return err
}

// letGo is release; last tells whether it was the last reference. The storage may be another tensor's when it returns.
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

// label says what the memory is for, wherever it is.
func (s *storage) label() memcache.Label {
	if a := s.away.Load(); a != nil {
		return a.label
	}
	return s.block.Label()
}

// Memory tells which memory a tensor has: tensors that share it have the same one, on the device or offloaded, and others another one, as
// long as somebody holds the Memory, which does not keep what it names from being freed. Tensors in places that [Lifetime.Reset] uses again have those
// of the tensors before.
type Memory struct{ storage *storage }

// MemoryOf is t's; the zero Memory for nil.
func MemoryOf(t *Tensor) Memory {
	if t.none() {
		return Memory{}
	}
	return Memory{t.store}
}

// Tensors is how many unreleased tensors share the memory.
func (m Memory) Tensors() int {
	if m.storage == nil {
		return 0
	}
	return int(max(0, m.storage.tensors()))
}
