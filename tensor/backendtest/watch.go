package backendtest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/watch"
)

// watcher wraps a runtime's backend and checks the roles of each operation's operands. Operands
// that are read must stay unchanged. Operands that are overwritten hold garbage before, so that a
// result shows whether they were read. It makes each launch wait for the one before. In race builds
// it only records calls, because waits would hide races.
type watcher struct {
	backend.Backend
	t           testing.TB
	rt          *tensor.Runtime
	seen, done  map[backend.Op]map[backend.Dtype]bool // calls, and calls without an error
	composed    map[backend.Op]bool                   // fusions that the backend does not support
	lacks       map[string]bool                       // names of unsupported operations
	unsupported backend.Op                            // the operation of the trial, or backend.NoOp
}

// watched wraps the backend of a runtime in a watcher.
func watched(t testing.TB, rt *tensor.Runtime) *watcher {
	w := &watcher{t: t, rt: rt, seen: map[backend.Op]map[backend.Dtype]bool{}, done: map[backend.Op]map[backend.Dtype]bool{}, composed: map[backend.Op]bool{}, lacks: map[string]bool{}}
	watch.Backend(rt, func(next backend.Backend) backend.Backend {
		w.Backend = next
		return w
	})
	return w
}

func (w *watcher) see(c *backend.Call) { w.mark(w.seen, c.Op, c.Dtype) }

func (w *watcher) mark(in map[backend.Op]map[backend.Dtype]bool, op backend.Op, d backend.Dtype) {
	if in[op] == nil {
		in[op] = map[backend.Dtype]bool{}
	}
	in[op][d] = true
}

// Supports records a fusion that the backend does not support, because only its parts are queued.
func (w *watcher) Supports(c *backend.Call) bool {
	yes := w.Backend.Supports(c)
	if !yes {
		w.see(c)
		w.composed[c.Op] = true
	}
	return yes
}

func (w *watcher) Do(ctx context.Context, c *backend.Call) error {
	op, dtype := c.Op, c.Dtype
	w.see(c)
	err := w.do(ctx, c)
	switch {
	case err == nil:
		w.mark(w.done, op, dtype)
	case errors.Is(err, backend.ErrUnsupported):
		w.unsupported = op
	}
	return err
}

func (w *watcher) do(ctx context.Context, c *backend.Call) error {
	if c.Empty() || race.Enabled {
		return w.Backend.Do(ctx, c)
	}
	op, reads := c.Op, map[device.Range][]byte{}
	var writes []device.Range
	each := func(f func(r backend.Ref, role backend.Role)) {
		for i, r := range c.Args[:c.N] {
			f(r, c.Role(i))
		}
		for i, r := range c.List.Refs {
			f(r, op.ListRoles()[i%c.List.Stride])
		}
	}
	each(func(r backend.Ref, role backend.Role) {
		if role&backend.Write != 0 && r.Bytes > 0 {
			writes = append(writes, r.Range())
		}
	})
	shared := func(r device.Range, with []device.Range) (n int) {
		for _, o := range with {
			if r.Ptr < o.Ptr+device.Ptr(o.Bytes) && o.Ptr < r.Ptr+device.Ptr(r.Bytes) {
				n++
			}
		}
		return n
	}
	each(func(r backend.Ref, role backend.Role) {
		if role == backend.Read && r.Bytes > 0 && shared(r.Range(), writes) == 0 {
			reads[r.Range()] = w.download(r.Range())
		}
	})
	each(func(r backend.Ref, role backend.Role) {
		if role == backend.Write && r.Bytes > 0 && shared(r.Range(), writes) == 1 && !w.readsToo(c, r.Range()) {
			require.NoError(w.t, w.rt.Stream().Memset(r.Ptr, 0xff, r.Bytes))
		}
	})
	if err := w.Backend.Do(ctx, c); err != nil {
		return err
	}
	for r, before := range reads {
		assert.Equal(w.t, before, w.download(r), "%s wrote an operand that it reads", op.Name())
	}
	return nil
}

// readsToo reports whether memory also belongs to an operand that is read, as in an operation in
// place.
func (w *watcher) readsToo(c *backend.Call, m device.Range) bool {
	for i, r := range c.Args[:c.N] {
		if c.Role(i)&backend.Read != 0 && r.Ptr < m.Ptr+device.Ptr(m.Bytes) && m.Ptr < r.Ptr+device.Ptr(r.Bytes) {
			return true
		}
	}
	return false
}

func (w *watcher) download(m device.Range) []byte {
	b, err := w.rt.Pool().Get(context.Background(), m.Bytes)
	require.NoError(w.t, err)
	require.NoError(w.t, w.rt.Stream().CopyD2H(b.Bytes()[:m.Bytes], m.Ptr))
	require.NoError(w.t, w.rt.Stream().Synchronize(context.Background()))
	data := slices.Clone(b.Bytes()[:m.Bytes])
	require.NoError(w.t, b.Release())
	return data
}

// complete fails for operations that were not called in every dtype that they compute in.
func (w *watcher) complete(t *testing.T) {
	t.Helper()
	floats := []backend.Dtype{backend.Float32, backend.Float64, backend.BFloat16, backend.Float16}
	for op := backend.NoOp + 1; op < backend.Ops; op++ {
		want := floats
		switch op {
		case backend.SortIndex, backend.Randperm:
			want = []backend.Dtype{backend.Int64}
		case backend.NormOfNorms:
			want = floats[:2]
		}
		for _, d := range want {
			assert.True(t, w.seen[op][d], "%s of %v is not compared with the reference", op.Name(), d)
		}
	}
}

// supportsRequired fails for operations of Required that no trial ran without an error.
func (w *watcher) supportsRequired(t testing.TB) {
	t.Helper()
	for _, op := range Required {
		for _, d := range []backend.Dtype{backend.Float32, backend.Float64} {
			assert.True(t, w.done[op][d], "%s of %v is required", op.Name(), d)
		}
	}
}
