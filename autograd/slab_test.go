package autograd_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
)

// TestSlabs: a slab is empty when the next tape gets it, whatever the one before has recorded, and
// no two tapes share one.
func TestSlabs(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float32{0.1, 0.2, 0.3}, 3)
	defer func() { require.NoError(t, x.Release()) }()
	p := &autograd.Parameter{}
	for round := range 4 {
		tapes := []*autograd.Tape{autograd.NewTape(b.Ctx, b.RT), autograd.NewTape(b.Ctx, b.RT)}
		require.NotSame(t, autograd.SlabOf(tapes[0]), autograd.SlabOf(tapes[1]))
		for _, tape := range tapes {
			nodes, values, saved, uses, reads := autograd.ListsOf(tape)
			for i := range nodes {
				require.Nil(t, autograd.CallOf(&nodes[i]))
			}
			for _, v := range values {
				require.Nil(t, v)
			}
			for _, s := range saved {
				require.Nil(t, s.Variable)
			}
			for _, v := range slices.Concat(uses, reads) {
				require.Nil(t, v)
			}
			require.Empty(t, autograd.NodesOf(tape))
			require.Empty(t, autograd.ValuesOf(tape))
			require.Empty(t, autograd.SavedOn(tape))
			require.Empty(t, autograd.VariablesOf(tape))
			y := tape.Leaf(x)
			for range 40 * (round + 1) {
				y = tape.Mul(y, y)
			}
			autograd.VariablesOf(tape)[p] = y
			for i := range autograd.NodesOf(tape) {
				saved := autograd.SavedOf(&autograd.NodesOf(tape)[i])
				require.Len(t, saved, 2)
				require.Equal(t, 2, cap(saved), "of operation %d", i)
				require.Same(t, saved[0].Variable, saved[1].Variable)
			}
			if round%2 == 1 {
				delete(autograd.VariablesOf(tape), p)
				z := remat.Checkpoint(tape, func() *autograd.Variable { return tape.Mul(tape.Mul(y, y), y) })
				_, err := tape.Backward(tape.Sum(z))
				require.NoError(t, err)
				require.Empty(t, autograd.NodesOf(tape))
				autograd.VariablesOf(tape)[p] = y
			}
		}
		own := autograd.SlabOf(tapes[0])
		require.NoError(t, tapes[0].Close())
		next := autograd.NewTape(b.Ctx, b.RT)
		require.NoError(t, tapes[0].Close(), "again: the lists are another tape's")
		require.NotSame(t, own, autograd.SlabOf(tapes[0]))
		other := autograd.NewTape(b.Ctx, b.RT)
		require.NotSame(t, autograd.SlabOf(next), autograd.SlabOf(other))
		require.NoError(t, next.Close())
		require.NoError(t, other.Close())
		require.NoError(t, tapes[1].Close())
	}
}

// TestAClosedTapeLeavesTheNextOnesModules: when a tape is closed in a module, the next tape reuses
// its modules. The closed one does not change them.
func TestAClosedTapeLeavesTheNextOnesModules(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	var next *autograd.Tape
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.Module("a", func() *autograd.Variable {
		require.NoError(t, tape.Close())
		next = autograd.NewTape(b.Ctx, b.RT)
		return nil
	})
	tape.Module("c", func() *autograd.Variable { return nil })
	x := next.Module("b", func() *autograd.Variable { return autograd.Upload(next, []float32{1}, 1) })
	assert.Equal(t, "b", x.Value().Label().Module)
	tape.SetContext(memcache.WithModule(b.Ctx, "late"))
	y := autograd.Upload(next, []float32{1}, 1)
	assert.Empty(t, y.Value().Label().Module)
	assert.True(t, autograd.InOwnPlace(tape))
	require.NoError(t, next.Close())
	require.NoError(t, tape.Close())
}

// TestLabelsOfATapesModules: a tape has more modules than contexts are made at a time, and each has
// its own name.
func TestLabelsOfATapesModules(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for range 2 {
		tape := autograd.NewTape(b.Ctx, b.RT)
		for i := range 40 {
			name := fmt.Sprint("m", i)
			x := tape.Module(name, func() *autograd.Variable { return autograd.Upload(tape, []float32{1}, 1) })
			assert.Equal(t, memcache.Label{Module: name, Category: memcache.CategoryInput}, x.Value().Label())
		}
		require.NoError(t, tape.Close())
	}
}
