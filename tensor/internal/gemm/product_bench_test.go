package gemm

import (
	"fmt"
	"testing"

	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

func BenchmarkProduct(b *testing.B) {
	for _, l := range simd.Available() {
		for _, s := range [][3]int{{64, 784, 512}, {128, 784, 512}, {512, 512, 512}, {2048, 2048, 2048}, {32, 16, 32}, {32, 32, 16}} {
			for _, form := range []string{"NN", "NT", "TN", "TT"} {
				b.Run(fmt.Sprintf("%v/%s/%dx%dx%d", l, form, s[0], s[1], s[2]), func(b *testing.B) {
					defer simd.Use(l)()
					x, y, z := make([]float32, s[0]*s[2]), make([]float32, s[1]*s[2]), make([]float32, s[0]*s[1])
					ta, tb := form[0] == 'T', form[1] == 'T'
					lda, ldb := s[2], s[1]
					if ta {
						lda = s[0]
					}
					if tb {
						ldb = s[2]
					}
					p := &Product[float32]{M: s[0], N: s[1], K: s[2], A: A(x, lda, ta), B: B(y, ldb, tb), C: z, CRow: s[1]}
					scratch := make([]float32, p.Scratch())
					b.ReportAllocs()
					for b.Loop() {
						p.Run(scratch)
					}
					b.ReportMetric(2*float64(s[0]*s[1]*s[2])*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
				})
			}
		}
	}
}
