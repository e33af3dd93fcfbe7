package kernel

import (
	"fmt"
	"testing"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// BenchmarkMatMul measures the shapes of a dense layer at batch 128: forward (NT), and backward for
// its argument (NN) and its weights (TN).
func BenchmarkMatMul(b *testing.B) {
	b.Run("float32", benchMatMul[float32])
	b.Run("float64", benchMatMul[float64])
}

func benchMatMul[T Float](b *testing.B) {
	for _, s := range [][3]int{{128, 512, 784}, {128, 512, 512}, {512, 784, 128}, {128, 10, 512}, {128, 512, 10}, {10, 512, 128}, {512, 512, 512}} {
		for _, form := range []struct {
			name           string
			transA, transB bool
		}{{"NN", false, false}, {"NT", false, true}, {"TN", true, false}, {"TT", true, true}} {
			b.Run(fmt.Sprintf("%s/%dx%dx%d", form.name, s[0], s[1], s[2]), func(b *testing.B) {
				p := &plan.Product{M: s[0], N: s[1], K: s[2], TransA: form.transA, TransB: form.transB}
				x, y := make([]T, p.M*p.K), make([]T, p.K*p.N)
				c, scratch := make([]T, p.M*p.N), make([]T, MatMulScratch[T](p, nil))
				for i := range x {
					x[i] = T(i%7) + 0.5
				}
				for i := range y {
					y[i] = T(i%5) + 0.5
				}
				for b.Loop() {
					Multiply(p, nil, c, x, y, scratch)
				}
				b.ReportMetric(2*float64(p.M*p.N*p.K)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
			})
		}
	}
}

func BenchmarkTranspose(b *testing.B) {
	for _, s := range [][2]int{{512, 512}, {128, 784}, {512, 784}} {
		b.Run(fmt.Sprintf("float32/%dx%d", s[0], s[1]), func(b *testing.B) {
			x, y := make([]float32, s[0]*s[1]), make([]float32, s[0]*s[1])
			b.SetBytes(int64(8 * len(x)))
			for b.Loop() {
				Transpose(y, x, s[0], s[1])
			}
		})
	}
}
