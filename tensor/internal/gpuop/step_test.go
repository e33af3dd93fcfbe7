package gpuop

import (
	"math"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// TestStepLaunches: for any number of parameters, each is in one launch, in order, with its own
// numbers and with a block for each 1,024 elements. A launch's arguments fit into a kernel's 4 KiB.
func TestStepLaunches(t *testing.T) {
	r := newRig(t)
	for _, op := range backend.Step.All() {
		const firsts = 1 + sharedNumbers // words of arguments before the first blocks
		const head = firsts + maxParameters/2
		width := kernel.Rules[op.Code()].Width()
		require.LessOrEqual(t, reflect.TypeOf(kernel.Rules[op.Code()].Shared).NumField(), sharedNumbers, op.Name())
		size := func(i int) int { return (i + 1) % 5 * 512 }
		for _, n := range []int{1, maxParameters, maxParameters + 1, 3*maxParameters + 7} {
			for _, live := range []bool{false, true} {
				stride := len(op.ListRoles())
				l := backend.List{Stride: stride, Width: width}
				for i := range n {
					for j := range stride {
						l.Refs = append(l.Refs, memory(device.Ptr(1+i*stride+j)<<12, backend.Float64, size(i)))
					}
					for j := range width {
						l.Own = append(l.Own, float64(i*width+j))
					}
				}
				if live {
					l.Live = memory(1<<40, backend.Float64, n*width)
				}
				call := r.NewCall(op, backend.Float64)
				backend.SetParams(call, plan.Numbers{})
				call.SetList(l)
				r.all = nil
				require.NoError(t, r.Do(t.Context(), call))
				at := 0
				for _, launch := range r.all {
					require.LessOrEqual(t, 8*len(launch.Args), 4<<10, op.Name())
					rows := slices.Collect(slices.Chunk(launch.Args[head:], stride+1+width))
					require.Len(t, rows, min(n-at, maxParameters), op.Name())
					blocks := 0
					for i := range maxParameters {
						first := uint32(launch.Args[firsts+i/2] >> (i % 2 * 32))
						if i >= len(rows) {
							require.Equal(t, uint32(math.MaxUint32), first, op.Name())
							continue
						}
						require.EqualValues(t, blocks, first, op.Name())
						blocks += []int{0, 1, 1, 2, 2}[size(at+i)/512]
					}
					require.Equal(t, [3]uint32{uint32(blocks), 1, 1}, launch.Grid, op.Name())
					want := uint64(0)
					if live {
						want = 1<<40 + uint64(at*width*8)
						require.Contains(t, launch.Reads, device.Range{Ptr: device.Ptr(want), Bytes: int64(len(rows) * width * 8)})
					}
					require.Equal(t, want, launch.Args[0], op.Name())
					for _, row := range rows {
						item := l.Item(at)
						for j := range item {
							require.EqualValues(t, item[j].Ptr, row[j], "%s: %d", op.Name(), at)
						}
						require.EqualValues(t, size(at), row[stride])
						if !live {
							require.Equal(t, backend.Float64.Bits(l.Own[at*width]), row[stride+1])
						}
						if size(at) > 0 {
							require.Contains(t, launch.Writes, item[0].Range())
						}
						require.NotContains(t, launch.Writes, item[1].Range())
						at++
					}
				}
				require.Equal(t, n, at, op.Name())
			}
		}
	}
}

// TestStepGrids: a step without elements has no launch, and one of more blocks than a grid can have
// is refused.
func TestStepGrids(t *testing.T) {
	r := newRig(t)
	step := func(blocks int64) error {
		call := r.NewCall(backend.LionStep, backend.Float32)
		l := backend.List{Stride: len(backend.LionStep.ListRoles()), Width: 2, Own: make([]float64, 4)}
		for range 2 * l.Stride {
			l.Refs = append(l.Refs, backend.Ref{Ptr: 1 << 12, Bytes: 4 * blockElements * blocks, Dtype: backend.Float32})
		}
		backend.SetParams(call, plan.Numbers{})
		call.SetList(l)
		return r.Do(t.Context(), call)
	}
	require.NoError(t, step(0))
	require.Empty(t, r.all)
	if strconv.IntSize == 32 {
		t.Skip("memory has fewer elements")
	}
	require.NoError(t, step(1<<30-1)) // two parameters
	require.Len(t, r.all, 1)
	require.Equal(t, uint32(1<<31-2), r.all[0].Grid[0])
	require.ErrorIs(t, step(1<<30), backend.ErrUnsupported)
	require.Len(t, r.all, 1)
}

// TestNarrowGradients: narrow gradients of parameters of the upcast dtype have kernels of their
// own. All other operands of an update must have the parameters' dtype.
func TestNarrowGradients(t *testing.T) {
	r := newRig(t)
	call := func(op backend.Op, p, g, state backend.Dtype) *backend.Call {
		c := r.NewCall(op, p)
		l := backend.List{Stride: len(op.ListRoles())}
		for i := range l.Stride {
			d := state
			switch i {
			case 0:
				d = p
			case 1:
				d = g
			}
			l.Refs = append(l.Refs, memory(device.Ptr(i+1)<<12, d, 4))
		}
		backend.SetParams(c, plan.Numbers{})
		c.SetList(l)
		return c
	}
	const f32, bf = backend.Float32, backend.BFloat16
	for op, want := range map[backend.Op]string{backend.SGDStep: "sgd_grad_bf16", backend.AdagradStep: "adagrad_grad_bf16"} {
		assert.True(t, r.Supports(call(op, f32, bf, f32)), op.Name())
		assert.True(t, r.Supports(call(op, f32, f32, f32)), op.Name())
		assert.False(t, r.Supports(call(op, bf, bf, bf)), op.Name())
		r.all = nil
		require.NoError(t, r.Do(t.Context(), call(op, f32, bf, f32)))
		assert.Equal(t, want, r.all[0].Kernel)
	}
}
