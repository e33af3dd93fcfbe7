//go:build cuda

package cuda_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// halves is pinned memory of n bfloat16, and as much on the device.
func halves(t testing.TB, d device.Device, n int) ([]uint16, []byte, device.Ptr) {
	_, b, p := floats(t, d, (n+1)/2)
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), n), b, p
}

func half(bits uint16) float64 { return float64(math.Float32frombits(uint32(bits) << 16)) }

// TestMatMulOfBFloat16 compares random products, and batches of them, with sums in float64: each
// result is the bfloat16 nearest to a value within the rounding errors of float32. Matrices begin
// anywhere in memory, with gaps between rows.
func TestMatMulOfBFloat16(t *testing.T) {
	d, m, s := openProducts(t)
	if !m.MatMulBFloat16() {
		require.ErrorIs(t, m.MatMul(s, &device.Gemm{BFloat16: true}), device.ErrUnsupported)
		t.Skip("the GPU has no bfloat16")
	}
	const room = 1 << 17
	ctx := context.Background()
	a, rawA, pa := halves(t, d, room)
	b, rawB, pb := halves(t, d, room)
	c, rawC, pc := halves(t, d, room)
	bias, rawBias, pBias := halves(t, d, room)
	workspace, err := m.MatMulWorkspace()
	require.NoError(t, err)
	w, err := d.Alloc(workspace)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Free(w)) }()
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, v := range [][]uint16{a, b, c, bias} {
		for i := range v {
			v[i] = uint16(math.Float32bits(float32(r.NormFloat64())) >> 16)
		}
	}
	require.NoError(t, errors.Join(s.CopyH2D(pa, rawA), s.CopyH2D(pb, rawB), s.CopyH2D(pBias, rawBias)))
	before := append([]uint16(nil), c...)
	for range 300 {
		g := device.Gemm{BFloat16: true, M: 1 + r.IntN(70), N: 1 + r.IntN(70), K: 1 + r.IntN(200), TransA: r.IntN(2) == 0, TransB: r.IntN(2) == 0, Alpha: 1}
		stored := func(rows, cols int, trans bool) (ld, matrix int) {
			if trans {
				rows, cols = cols, rows
			}
			ld = cols + r.IntN(2)*r.IntN(40)
			return ld, rows * ld
		}
		var na, nb, nc int
		g.LDA, na = stored(g.M, g.K, g.TransA)
		g.LDB, nb = stored(g.K, g.N, g.TransB)
		g.LDC, nc = stored(g.M, g.N, false)
		if r.IntN(4) > 0 {
			g.Workspace = device.Range{Ptr: w, Bytes: workspace}
		}
		atBias := r.IntN(300)
		switch r.IntN(4) {
		case 0:
			if m.MatMulEpilogues() {
				g.Bias = pBias + device.Ptr(2*atBias)
			}
		case 1:
			g.Alpha, g.Beta = 0.5, 2
		case 2:
			g.Batch, g.StrideA, g.StrideB, g.StrideC = 1+r.IntN(3), r.IntN(2)*na, nb, nc+r.IntN(2)*r.IntN(9)
		}
		ia, ib, ic := r.IntN(300), r.IntN(300), r.IntN(300)
		g.A, g.B, g.C = pa+device.Ptr(2*ia), pb+device.Ptr(2*ib), pc+device.Ptr(2*ic)
		copy(c, before)
		require.NoError(t, errors.Join(s.CopyH2D(pc, rawC), m.MatMul(s, &g), s.CopyD2H(rawC, pc), s.Synchronize(ctx)), "%+v", g)
		written := make(map[int]bool, g.M*g.N)
		for z := range max(1, g.Batch) {
			for i := range g.M {
				for j := range g.N {
					var sum, size float64
					for l := range g.K {
						x, y := ia+z*g.StrideA+i*g.LDA+l, ib+z*g.StrideB+l*g.LDB+j
						if g.TransA {
							x = ia + z*g.StrideA + l*g.LDA + i
						}
						if g.TransB {
							y = ib + z*g.StrideB + j*g.LDB + l
						}
						v := half(a[x]) * half(b[y])
						sum, size = sum+v, size+math.Abs(v)
					}
					at := ic + z*g.StrideC + i*g.LDC + j
					written[at] = true
					want := g.Alpha*sum + g.Beta*half(before[at])
					places := math.Abs(want) // rounded by half a unit in the last place
					if g.Bias != 0 {
						want += half(bias[atBias+j])
						places += math.Abs(want) // some of the library's kernels round the product first
					}
					require.InDelta(t, want, half(c[at]), 0x1p-8*1.01*places+1e-6*(size+10), "product %d, row %d, column %d of %+v", z, i, j, g)
				}
			}
		}
		for i := range 300 + g.M*g.LDC {
			require.True(t, written[i] || c[i] == before[i], "element %d is not the product's: %+v", i, g)
		}
	}
}
