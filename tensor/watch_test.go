package tensor

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/backend"
)

// watcher stands before a runtime's backend, and holds each operation to the roles of its operands:
// what it reads stays as it is, and what it overwrites holds garbage before, so that a result shows
// whether it was read. Launches wait for each other then.
type watcher struct {
	backend.Backend
	r    *rig
	seen map[backend.Op]map[backend.Dtype]bool
}

// watched is the rig with a watcher. In race builds it is as it was: waits would hide races.
func (r *rig) watched() (*rig, *watcher) {
	w := &watcher{r: r, Backend: r.backend, seen: map[backend.Op]map[backend.Dtype]bool{}}
	if !race.Enabled {
		r.backend = w
	}
	return r, w
}

func (w *watcher) see(c *backend.Call) {
	if w.seen[c.Op] == nil {
		w.seen[c.Op] = map[backend.Dtype]bool{}
	}
	w.seen[c.Op][c.Dtype] = true
}

// Supports counts a fusion that the backend does not do: its parts are seen instead.
func (w *watcher) Supports(c *backend.Call) bool {
	yes := w.Backend.Supports(c)
	if !yes {
		w.see(c)
	}
	return yes
}

func (w *watcher) Do(ctx context.Context, c *backend.Call) error {
	w.see(c)
	if c.Empty() {
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
			require.NoError(w.r.t, w.r.stream.Memset(r.Ptr, 0xff, r.Bytes))
		}
	})
	if err := w.Backend.Do(ctx, c); err != nil {
		return err
	}
	for r, before := range reads {
		assert.Equal(w.r.t, before, w.download(r), "%s wrote an operand that it reads", op.Name())
	}
	return nil
}

// readsToo reports whether memory is also that of an operand that is read, as of an operation in
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
	b, err := w.r.Pool().Get(w.r.ctx, m.Bytes)
	require.NoError(w.r.t, err)
	require.NoError(w.r.t, w.r.stream.CopyD2H(b.Bytes()[:m.Bytes], m.Ptr))
	require.NoError(w.r.t, w.r.stream.Synchronize(w.r.ctx))
	data := slices.Clone(b.Bytes()[:m.Bytes])
	require.NoError(w.r.t, b.Release())
	return data
}

// complete fails for operations that were not seen in every dtype that they compute in.
func (w *watcher) complete(t *testing.T) {
	t.Helper()
	if race.Enabled {
		return
	}
	floats := []backend.Dtype{backend.Float32, backend.Float64, backend.BFloat16}
	for op := backend.NoOp + 1; op < backend.Ops; op++ {
		want := floats
		switch op {
		case backend.SortIndex:
			want = []backend.Dtype{backend.Int64}
		case backend.NormOfNorms:
			want = floats[:2]
		}
		for _, d := range want {
			assert.True(t, w.seen[op][d], "%s of %v is not compared with the reference", op.Name(), d)
		}
	}
}
