package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// atEveryLevel runs a test at each level of this processor, for each element type.
func atEveryLevel(t *testing.T, test32, test64 func(t *testing.T)) {
	for _, l := range simd.Available() {
		t.Run(l.String(), func(t *testing.T) {
			defer simd.Use(l)()
			t.Run("float32", test32)
			t.Run("float64", test64)
		})
	}
}

// trials returns the number of random trials. With -short it is just large enough that every size
// of tile is likely to occur. With the race detector it is smaller.
func trials(n int) int {
	switch {
	case race.Enabled:
		return max(1, n/20)
	case testing.Short():
		return n / 4
	}
	return n
}

func unit[T Float]() float64 {
	var v T
	if _, ok := any(v).(float32); ok {
		return 0x1p-24
	}
	return 0x1p-53
}

func TestProduct(t *testing.T) { atEveryLevel(t, testProduct[float32], testProduct[float64]) }

func testProduct[T Float](t *testing.T) {
	r := seeded(t)
	for range trials(400) {
		c := randomTrial[T](r)
		c.check(t, (*Product[T]).RunAlone)
		c.free()
	}
}

func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// trial is a product of matrices in guarded memory.
type trial[T Float] struct {
	m, n, k       int
	ta, tb        bool
	a, b, c       []T
	lda, ldb, ldc int
	add           bool
	finish        Finish[T]
	frees         []func()
}

func (c *trial[T]) free() {
	for _, f := range c.frees {
		f()
	}
}

func randomSize(r *rand.Rand) int {
	switch r.IntN(20) {
	case 0:
		return 0
	case 1, 2, 3:
		return 1
	case 4, 5:
		return 41 + r.IntN(600)
	}
	return 1 + r.IntN(40)
}

func randomTrial[T Float](r *rand.Rand) *trial[T] {
	c := &trial[T]{m: randomSize(r), n: randomSize(r), k: randomSize(r)}
	c.fill(r)
	return c
}

// fill allocates the matrices of a trial's sizes, in random layouts.
func (c *trial[T]) fill(r *rand.Rand) {
	c.ta, c.tb, c.add = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
	matrix := func(rows, cols int, swap bool) ([]T, int) {
		if swap {
			rows, cols = cols, rows
		}
		ld := cols + r.IntN(2)*r.IntN(9)
		n := 0
		if rows > 0 && cols > 0 {
			n = (rows-1)*ld + cols
		}
		x, free := guarded[T](n, r.IntN(2) == 0)
		c.frees = append(c.frees, free)
		for i := range x {
			x[i] = T(r.Float64()*4 - 2)
		}
		return x, ld
	}
	c.a, c.lda = matrix(c.m, c.k, c.ta)
	c.b, c.ldb = matrix(c.k, c.n, c.tb)
	c.c, c.ldc = matrix(c.m, c.n, false)
	if r.IntN(3) == 0 {
		c.finish.RowBias, _ = matrix(1, c.m, false)
	}
	if r.IntN(3) == 0 {
		c.finish.ColumnBias, _ = matrix(1, c.n, false)
	}
	c.finish.ReLU = r.IntN(3) == 0
}

func (c *trial[T]) String() string {
	return fmt.Sprintf("%dx%dx%d, transposed %v %v, rows %d %d %d apart, add %v, bias %v %v, relu %v", c.m, c.n, c.k, c.ta, c.tb,
		c.lda, c.ldb, c.ldc, c.add, c.finish.RowBias != nil, c.finish.ColumnBias != nil, c.finish.ReLU)
}

func (c *trial[T]) product() *Product[T] {
	return &Product[T]{M: c.m, N: c.n, K: c.k, A: A(c.a, c.lda, c.ta), B: B(c.b, c.ldb, c.tb), C: c.c, CRow: c.ldc, Add: c.add, Finish: c.finish}
}

// check compares with plain sums in float64.
func (c *trial[T]) check(t testing.TB, run func(*Product[T])) {
	before := append([]T(nil), c.c...)
	run(c.product())
	got := append([]T(nil), c.c...)
	for i := range c.m {
		for j := range c.n {
			var sum, size float64
			for k := range c.k {
				x, y := i*c.lda+k, k*c.ldb+j
				if c.ta {
					x = k*c.lda + i
				}
				if c.tb {
					y = j*c.ldb + k
				}
				v := float64(c.a[x]) * float64(c.b[y])
				sum, size = sum+v, size+math.Abs(v)
			}
			at := i*c.ldc + j
			terms := float64(c.k) + 3
			if c.add {
				sum, size = sum+float64(before[at]), size+math.Abs(float64(before[at]))
			}
			if b := c.finish.RowBias; b != nil {
				sum, size = sum+float64(b[i]), size+math.Abs(float64(b[i]))
			}
			if b := c.finish.ColumnBias; b != nil {
				sum, size = sum+float64(b[j]), size+math.Abs(float64(b[j]))
			}
			if c.finish.ReLU {
				sum = max(sum, 0)
			}
			if diff := math.Abs(float64(got[at]) - sum); !(diff <= terms*unit[T]()*size) {
				require.Failf(t, "wrong", "%v: element %d, %d is %v, want %v", c, i, j, got[at], sum)
			}
			got[at] = before[at]
		}
	}
	require.Equal(t, before, got, "%v: elements between rows", c)
}
