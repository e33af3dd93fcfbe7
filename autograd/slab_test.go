package autograd

import (
	"testing"

	"github.com/stretchr/testify/require"
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
				require.Nil(t, n.back)
			}
			for _, v := range tape.values[:cap(tape.values)] {
				require.Nil(t, v)
			}
			for _, s := range tape.saved[:cap(tape.saved)] {
				require.Nil(t, s.Variable)
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
				_, err := tape.Backward(tape.Sum(y))
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
