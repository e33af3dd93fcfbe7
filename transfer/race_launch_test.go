//go:build race

package transfer_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/child"
	"github.com/cistern-ml/cistern/transfer"
)

// Mistakes with memory that kernels use in place, each with its corrected twin. Enough time passes
// between the two halves of a mistake that they never run at the same time.
var inPlaceMistakes = map[string]func(t *testing.T, r *rig, b transfer.Buffer, mem []byte, twin bool){
	"another stream's kernel": func(t *testing.T, r *rig, b transfer.Buffer, mem []byte, twin bool) {
		l := r.inPlace(t, b, mem, 0, 4096, 1)
		if twin {
			_, err := r.pool.Launch(t.Context(), r.b, l, transfer.BufferUse{Buffer: b, Writes: true})
			require.NoError(t, err)
		} else {
			require.NoError(t, r.b.Launch(l)) // without the pool: nothing orders it
		}
	},
	"a kernel that claims to read": func(t *testing.T, r *rig, _ transfer.Buffer, _ []byte, twin bool) {
		b := r.get(t, 4096)
		mem := b.Bytes()
		for _, s := range []device.Stream{r.a, r.b} {
			_, err := r.pool.Launch(t.Context(), s, r.inPlace(t, b, mem, 0, 4096, 1), transfer.BufferUse{Buffer: b, Writes: twin})
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond)
		}
		require.NoError(t, b.Release())
	},
	"the host": func(t *testing.T, _ *rig, b transfer.Buffer, mem []byte, twin bool) {
		if twin {
			require.NoError(t, b.Wait(t.Context()))
		}
		mem[0] = 0
	},
	"the host, registered": func(t *testing.T, r *rig, _ transfer.Buffer, _ []byte, twin bool) {
		mine := make([]byte, 4096)
		b, err := r.pool.Register(t.Context(), mine)
		require.NoError(t, err)
		c, err := r.pool.Launch(t.Context(), r.b, r.inPlace(t, b, mine, 0, 4096, 1), transfer.BufferUse{Buffer: b, Writes: true})
		require.NoError(t, err)
		time.Sleep(10 * time.Millisecond)
		if twin {
			require.NoError(t, c.Wait(t.Context()))
		}
		mine[0] = 0
		require.NoError(t, b.Release())
	},
	"a batch": func(t *testing.T, r *rig, _ transfer.Buffer, _ []byte, twin bool) {
		batch := r.pool.NewBatch()
		block := r.alloc(t, 4096, r.a)
		require.NoError(t, batch.Upload(t.Context(), block, 0, make([]byte, 4096)))
		_, err := batch.Submit(t.Context(), r.a)
		require.NoError(t, err)
		require.NoError(t, batch.Close())
		time.Sleep(10 * time.Millisecond)
		r.pool.Stats()
		if twin {
			e, err := r.dev.NewEvent(device.EventOptions{})
			require.NoError(t, err)
			require.NoError(t, r.a.Record(e))
			require.NoError(t, r.b.Wait(e))
		}
		require.NoError(t, block.RecordStream(r.b))
		require.NoError(t, r.b.Launch(r.addTo(t, block, 0, 4096, 1)))
		require.NoError(t, block.Free())
	},
}

// TestInPlaceMistake runs one of the mistakes in its own process.
func TestInPlaceMistake(t *testing.T) {
	name, corrected := child.Mistake(t)
	r := newRig(t, transfer.Config{})
	r.host(t)
	b := r.get(t, 4096)
	mem := b.Bytes()
	_, err := r.pool.Launch(t.Context(), r.a, r.inPlace(t, b, mem, 0, 4096, 1), transfer.BufferUse{Buffer: b, Writes: true})
	require.NoError(t, err)
	time.Sleep(10 * time.Millisecond)
	inPlaceMistakes[name](t, r, b, mem, corrected)
	require.NoError(t, b.Release())
}

func TestInPlaceMistakesAreReported(t *testing.T) {
	child.Mistakes(t, "TestInPlaceMistake", slices.Collect(maps.Keys(inPlaceMistakes)), 1)
}
