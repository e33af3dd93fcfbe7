package tensor

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// launched is a stream that keeps what was launched.
type launched struct {
	device.Stream
	all []device.Launch
}

func (s *launched) Launch(l *device.Launch) error {
	copied := *l
	copied.Args, copied.Reads, copied.Writes = slices.Clone(l.Args), slices.Clone(l.Reads), slices.Clone(l.Writes)
	s.all = append(s.all, copied)
	return nil
}

// TestStepLaunches: whatever the number of parameters, each is in one launch, in their order, with
// others of its dtype and options, and a launch's arguments fit into the 4 KiB that a kernel takes.
// No launch could take the next one's parameters.
func TestStepLaunches(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	for _, n := range []int{1, maxParameters, maxParameters + 1, 3*maxParameters + 7} {
		var ps []*Tensor
		for i := range n {
			if i/70%2 == 0 { // runs of one dtype, shorter and longer than a launch
				ps = append(ps, put(r, []float32{1, 2}))
			} else {
				ps = append(ps, put(r, []float64{1, 2}))
			}
		}
		sgd, adam, rms, ada := make([]sgdUpdate, n), make([]adamUpdate, n), make([]rmspropUpdate, n), make([]adagradUpdate, n)
		for i, p := range ps {
			sgd[i] = sgdUpdate{p: p, g: p, buf: p}
			sgd[i].Momentum, sgd[i].First = 0.9, i%2 == 0
			adam[i] = adamUpdate{p: p, g: p, m: p, v: p, greatest: p}
			adam[i].StepSize, adam[i].Correction = float64(i), float64(i)
			rms[i] = rmspropUpdate{p: p, g: p, v: p, mean: p, buf: p}
			ada[i] = adagradUpdate{p: p, g: p, sum: p}
			ada[i].Rate = float64(i)
		}
		for name, c := range map[string]struct {
			step      func(*gpuKernels) error
			head, row int // words of arguments
		}{
			"sgd":     {func(g *gpuKernels) error { return g.sgd(sgd) }, 7, 5},
			"adam":    {func(g *gpuKernels) error { return g.adam(adam) }, 8, 8},
			"rmsprop": {func(g *gpuKernels) error { return g.rmsprop(rms) }, 8, 6},
			"adagrad": {func(g *gpuKernels) error { return g.adagrad(ada) }, 4, 5},
		} {
			s := &launched{}
			g := &gpuKernels{stream: s, kernels: map[kernelKey]any{{name, "_f32"}: 32, {name, "_f64"}: 64}}
			require.NoError(t, c.step(g))
			var got []uint64
			for i, l := range s.all {
				require.LessOrEqual(t, 8*len(l.Args), 4<<10, name)
				rows := slices.Collect(slices.Chunk(l.Args[c.head:], c.row))
				require.Len(t, rows, int(l.Grid[1]), name)
				if i > 0 && l.Kernel == s.all[i-1].Kernel {
					require.EqualValues(t, maxParameters, s.all[i-1].Grid[1], name)
				}
				for k, row := range rows {
					require.Equal(t, 8*int(ps[len(got)].dtype.Size()), l.Kernel, name)
					got = append(got, row[0])
					require.Contains(t, l.Writes, ps[len(got)-1].memory(), "%s: %d", name, k)
				}
			}
			var want []uint64
			for _, p := range ps {
				want = append(want, uint64(p.ptr()))
			}
			require.Equal(t, want, got, name)
		}
	}
}
