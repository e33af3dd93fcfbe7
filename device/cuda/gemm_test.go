//go:build cuda

package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// floats is pinned memory of n float32, and as much on the device.
func floats(t testing.TB, d device.Device, n int) ([]float32, []byte, device.Ptr) {
	b, err := d.AllocPinned(int64(n) * 4)
	require.NoError(t, err)
	p, err := d.Alloc(int64(n) * 4)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(d.FreePinned(b), d.Free(p))) })
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), n), b, p
}

// openProducts opens the GPU, a stream, and memory for matrices. Without the library it skips the
// test.
func openProducts(t testing.TB) (device.Device, device.MatrixMultiplier, device.Stream) {
	d := open(t)
	m := d.(device.MatrixMultiplier)
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(s.Close(), d.Close())) })
	if _, err := m.MatMulWorkspace(); err != nil {
		t.Skip(err)
	}
	return d, m, s
}

// TestMatMul compares random products with sums in float64: matrices anywhere in memory, with gaps
// between rows, with a bias or a Beta, and the same shapes again at addresses with another
// alignment.
func TestMatMul(t *testing.T) {
	d, m, s := openProducts(t)
	const room = 1 << 17
	ctx := context.Background()
	a, rawA, pa := floats(t, d, room)
	b, rawB, pb := floats(t, d, room)
	c, rawC, pc := floats(t, d, room)
	bias, rawBias, pBias := floats(t, d, room)
	workspace, err := m.MatMulWorkspace()
	require.NoError(t, err)
	w, err := d.Alloc(workspace)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Free(w)) }()
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, v := range [][]float32{a, b, c, bias} {
		for i := range v {
			v[i] = float32(r.NormFloat64())
		}
	}
	require.NoError(t, errors.Join(s.CopyH2D(pa, rawA), s.CopyH2D(pb, rawB), s.CopyH2D(pBias, rawBias)))
	before := append([]float32(nil), c...)
	for range 300 {
		g := device.Gemm{M: 1 + r.IntN(70), N: 1 + r.IntN(70), K: r.IntN(200), TransA: r.IntN(2) == 0, TransB: r.IntN(2) == 0, Alpha: 1}
		stored := func(rows, cols int, trans bool) int {
			if trans {
				cols = rows
			}
			return max(cols, 1) + r.IntN(2)*r.IntN(40)
		}
		g.LDA, g.LDB, g.LDC = stored(g.M, g.K, g.TransA), stored(g.K, g.N, g.TransB), stored(g.M, g.N, false)
		if r.IntN(4) > 0 {
			g.Workspace = device.Range{Ptr: w, Bytes: workspace}
		}
		atBias := r.IntN(300)
		switch r.IntN(3) {
		case 0:
			if m.MatMulEpilogues() && g.K > 0 {
				g.Bias = pBias + device.Ptr(4*atBias)
			}
		case 1:
			g.Alpha, g.Beta = 0.5, 2
		}
		for range 1 + r.IntN(2) {
			ia, ib, ic := r.IntN(300), r.IntN(300), r.IntN(300)
			g.A, g.B, g.C = pa+device.Ptr(4*ia), pb+device.Ptr(4*ib), pc+device.Ptr(4*ic)
			copy(c, before)
			require.NoError(t, errors.Join(s.CopyH2D(pc, rawC), m.MatMul(s, &g), s.CopyD2H(rawC, pc), s.Synchronize(ctx)), "%+v", g)
			written := make(map[int]bool, g.M*g.N)
			for i := range g.M {
				for j := range g.N {
					var sum, size float64
					for l := range g.K {
						x, y := ia+i*g.LDA+l, ib+l*g.LDB+j
						if g.TransA {
							x = ia + l*g.LDA + i
						}
						if g.TransB {
							y = ib + j*g.LDB + l
						}
						v := float64(a[x]) * float64(b[y])
						sum, size = sum+v, size+math.Abs(v)
					}
					at := ic + i*g.LDC + j
					written[at] = true
					want := g.Alpha*sum + g.Beta*float64(before[at])
					if g.Bias != 0 {
						want += float64(bias[atBias+j])
					}
					require.InDelta(t, want, c[at], 1e-6*(size+10), "row %d, column %d of %+v", i, j, g)
				}
			}
			for i := range 300 + g.M*g.LDC {
				require.True(t, written[i] || c[i] == before[i], "element %d is not the product's: %+v", i, g)
			}
		}
	}
}

// TestMatMulOfNaN: NaN stays NaN, also with a bias.
func TestMatMulOfNaN(t *testing.T) {
	d, m, s := openProducts(t)
	v, raw, p := floats(t, d, 64)
	for i := range v {
		v[i] = float32(math.NaN())
	}
	g := device.Gemm{M: 4, N: 4, K: 4, LDA: 4, LDB: 4, LDC: 4, A: p, B: p + 64, C: p + 128, Alpha: 1}
	if m.MatMulEpilogues() {
		g.Bias = p
	}
	require.NoError(t, errors.Join(s.CopyH2D(p, raw), m.MatMul(s, &g), s.CopyD2H(raw, p), s.Synchronize(context.Background())))
	for _, x := range v[32:48] {
		require.True(t, x != x)
	}
}

// TestMatMulRefuses products for which the library would give no clear reason.
func TestMatMulRefuses(t *testing.T) {
	d, m, s := openProducts(t)
	_, _, p := floats(t, d, 64)
	g := device.Gemm{M: 2, N: 2, K: 2, LDA: 2, LDB: 2, LDC: 2, A: p, B: p + 64, C: p + 128, Alpha: 1, Bias: p}
	for name, change := range map[string]func(g *device.Gemm){
		"float64": func(g *device.Gemm) { g.Float64 = true },
		"batch":   func(g *device.Gemm) { g.Batch, g.StrideA, g.StrideB, g.StrideC = 2, 4, 4, 4 },
		"Beta":    func(g *device.Gemm) { g.Beta = 1 },
		"bias":    func(g *device.Gemm) { g.Bias = p + 256 },
	} {
		bad := g
		change(&bad)
		require.ErrorIs(t, m.MatMul(s, &bad), device.ErrInvalid, name)
	}
}

// BenchmarkMatMul measures the time to queue a product; it waits for the GPU after every 100.
func BenchmarkMatMul(b *testing.B) {
	d, m, s := openProducts(b)
	_, _, p := floats(b, d, 1<<21)
	workspace, err := m.MatMulWorkspace()
	require.NoError(b, err)
	w, err := d.Alloc(workspace)
	require.NoError(b, err)
	defer func() { require.NoError(b, d.Free(w)) }()
	for _, batch := range []int{0, 2} { // batches use cuBLAS
		g := device.Gemm{M: 128, N: 512, K: 784, TransB: true, LDA: 784, LDB: 784, LDC: 512, A: p, B: p + 1<<20, C: p + 3<<20, Alpha: 1,
			Workspace: device.Range{Ptr: w, Bytes: workspace}, Batch: batch, StrideC: 128 * 512}
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				if err := m.MatMul(s, &g); err != nil {
					b.Fatal(err)
				}
				if i%100 == 99 {
					b.StopTimer()
					require.NoError(b, s.Synchronize(context.Background()))
					b.StartTimer()
				}
			}
		})
	}
}
