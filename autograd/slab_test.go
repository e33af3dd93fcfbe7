package autograd

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// TestSlabs are empty when the next tape gets them, whatever the one before has recorded, and no two tapes have one.
func TestSlabs(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float32{0.1, 0.2, 0.3}, 3)
	defer func() { require.NoError(t, x.Release()) }()
	p := &Parameter{}
	for round := range 4 {
		tapes := []*Tape{NewTape(b.ctx, b.rt), NewTape(b.ctx, b.rt)}
		require.NotSame(t, tapes[0].slab, tapes[1].slab)
		for _, tape := range tapes {
			for _, n := range tape.nodes[:cap(tape.nodes)] {
				require.Nil(t, n.call)
			}
			for _, v := range tape.values[:cap(tape.values)] {
				require.Nil(t, v)
			}
			for _, s := range tape.saved[:cap(tape.saved)] {
				require.Nil(t, s.Variable)
			}
			for _, v := range slices.Concat(tape.slab.uses[:cap(tape.slab.uses)], tape.slab.reads[:cap(tape.slab.reads)]) {
				require.Nil(t, v)
			}
			require.Empty(t, tape.nodes)
			require.Empty(t, tape.values)
			require.Empty(t, tape.saved)
			require.Empty(t, tape.params)
			y := tape.Leaf(x)
			for range 40 * (round + 1) {
				y = tape.Mul(y, y)
			}
			tape.params[p] = y
			for i, n := range tape.nodes {
				require.Len(t, n.saved, 2)
				require.Equal(t, 2, cap(n.saved), "of operation %d", i)
				require.Same(t, n.saved[0].Variable, n.saved[1].Variable)
			}
			if round%2 == 1 {
				delete(tape.params, p)
				z := tape.Checkpoint(func() *Variable { return tape.Mul(tape.Mul(y, y), y) })
				_, err := tape.Backward(tape.Sum(z))
				require.NoError(t, err)
				require.Empty(t, tape.nodes)
				tape.params[p] = y
			}
		}
		own := tapes[0].slab
		require.NoError(t, tapes[0].Close())
		next := NewTape(b.ctx, b.rt)
		require.NoError(t, tapes[0].Close(), "again: the lists are another tape's")
		require.NotSame(t, own, tapes[0].slab)
		other := NewTape(b.ctx, b.rt)
		require.NotSame(t, next.slab, other.slab)
		require.NoError(t, next.Close())
		require.NoError(t, other.Close())
		require.NoError(t, tapes[1].Close())
	}
}

// TestAClosedTapeLeavesTheNextOnesModules: a tape that is closed in a module has given its places to the next tape, which then is where its program says.
func TestAClosedTapeLeavesTheNextOnesModules(t *testing.T) {
	b := open(t, 64<<20)
	var next *Tape
	tape := NewTape(b.ctx, b.rt)
	tape.Module("a", func() *Variable {
		require.NoError(t, tape.Close())
		next = NewTape(b.ctx, b.rt)
		return nil
	})
	tape.Module("c", func() *Variable { return nil })
	x := next.Module("b", func() *Variable { return Upload(next, []float32{1}, 1) })
	assert.Equal(t, "b", x.Value().Label().Module)
	tape.SetContext(memcache.WithModule(b.ctx, "late"))
	y := Upload(next, []float32{1}, 1)
	assert.Empty(t, y.Value().Label().Module)
	assert.Same(t, &tape.after.modulePlace, tape.module)
	require.NoError(t, next.Close())
	require.NoError(t, tape.Close())
}

// TestLabelsOfATapesModules: more modules than contexts are made at a time, and all tell their own names.
func TestLabelsOfATapesModules(t *testing.T) {
	b := open(t, 64<<20)
	for range 2 {
		tape := NewTape(b.ctx, b.rt)
		for i := range 40 {
			name := fmt.Sprint("m", i)
			x := tape.Module(name, func() *Variable { return Upload(tape, []float32{1}, 1) })
			assert.Equal(t, memcache.Label{Module: name, Category: memcache.CategoryInput}, x.Value().Label())
		}
		require.NoError(t, tape.Close())
	}
}
