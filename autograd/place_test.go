package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// TestNarrowOfAllIsAView: Narrow of a whole dimension takes no memory, and neither does its
// gradient. A part is a copy.
func TestNarrowOfAllIsAView(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, c := range []struct {
		axis, start, length int
		view                bool
	}{{0, 0, 2, true}, {1, 0, 3, true}, {-1, 0, 3, true}, {-2, 0, 2, true}, {0, 0, 1, false}, {1, 1, 2, false}, {-1, 0, 2, false}} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		x := tape.Leaf(tapetest.Upload(b, []float64{1, 2, 3, 4, 5, 6}, 2, 3))
		before := b.Cache.MemoryAllocated()
		y := tape.Narrow(x, c.axis, c.start, c.length).Keep()
		require.Equal(t, c.view, before == b.Cache.MemoryAllocated(), c)
		want := [][2]int{{2, 3}, {2, 3}}
		want[1][(c.axis+2)%2] = c.length
		require.EqualValues(t, want[1][:], y.Shape())
		_, err := tape.Backward(tape.Sum(tape.Square(y)))
		require.NoError(t, err)
		for i, g := range tapetest.Read[float64](b, x.Grad()) {
			at := [2]int{i / 3, i % 3}[(c.axis+2)%2]
			if at < c.start || at >= c.start+c.length {
				require.Zero(t, g, c)
			} else {
				require.Equal(t, 2*float64(i+1), g, c)
			}
		}
		require.NoError(t, tape.Close())
	}
	for _, c := range [][3]int{{2, 0, 2}, {-3, 0, 2}, {0, 0, 3}, {0, 0, -1}, {0, 1, 2}, {0, -1, 2}} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		tape.Narrow(tape.Leaf(tapetest.Upload(b, []float64{1, 2, 3, 4, 5, 6}, 2, 3)), c[0], c[1], c[2])
		require.ErrorContains(t, tape.Close(), "Narrow", c)
	}
}
