package kernel

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// convolution is a convolution whose arrays are next to pages that can't be accessed. Its scratch
// memory has the size that the kernels request, and is filled with NaN.
type convolution[T Float] struct {
	plan.Conv
	t            *testing.T
	rand         *rand.Rand
	atEnd        bool
	x, w, dy, y  []T
	dx, dw       []T
	biasY, biasX []T
	scratch      func(n int) []T
}

// eachLevel runs a test for both element types at every level.
func eachLevel(t *testing.T, test32, test64 func(t *testing.T)) {
	defer simd.Use(simd.Active())()
	for _, l := range simd.Available() {
		simd.Use(l)
		t.Run(l.String()+"/float32", test32)
		t.Run(l.String()+"/float64", test64)
	}
}

func newConvolution[T Float](t *testing.T, r *rand.Rand, p plan.Conv, special bool) *convolution[T] {
	c := &convolution[T]{Conv: p, t: t, rand: r, atEnd: r.IntN(2) == 0}
	array := func(n int, kind float64) []T {
		s, free := guarded[T](n, c.atEnd)
		t.Cleanup(free)
		for i := range s {
			s[i] = T(r.NormFloat64())
			switch v := r.Float64(); {
			case !special:
			case v < 0.3:
				s[i] = 0
			case v < 0.3+kind:
				s[i] = T([]float64{math.NaN(), math.Inf(1), math.Inf(-1)}[r.IntN(3)])
			}
		}
		return s
	}
	c.scratch = func(n int) []T {
		s := array(n, 0)
		for i := range s {
			s[i] = T(math.NaN())
		}
		return s
	}
	places, pixels := p.N*p.Groups*p.K*p.Places(), p.N*p.Groups*p.C*p.Pixels()
	c.x, c.dx, c.w, c.dw = array(pixels, 0.02), array(pixels, 0), array(p.Weights(), 0), array(p.Weights(), 0)
	c.y, c.dy = array(places, 0), array(places, 0.02)
	if r.IntN(2) == 0 {
		c.biasY, c.biasX = array(p.Groups*p.K, 0.02), array(p.Groups*p.C, 0.02)
	}
	return c
}

// run computes everything.
func (c *convolution[T]) run() {
	Convolve(&c.Conv, c.y, c.x, c.w, c.biasY, c.scratch(ConvolveScratch[T](&c.Conv, c.biasY != nil)))
	ConvolveInputGrad(&c.Conv, c.dx, c.dy, c.w, c.biasX, c.scratch(InputGradScratch[T](&c.Conv, c.biasX != nil)))
	ConvolveWeightGrad(&c.Conv, c.dw, c.dy, c.x, c.scratch(WeightGradScratch[T](&c.Conv, false)))
}

func arrayOf[T Float](s []T) reference.Array {
	a := reference.Array{Shape: []int{len(s)}}
	for _, v := range s {
		a.Data = append(a.Data, float64(v))
	}
	return a
}

// near compares with the expected result of a kernel, for sums of that many terms.
func near[T Float](t *testing.T, name string, got []T, want reference.Result, terms int) {
	var v T
	unit := 0x1p-53
	if unsafe.Sizeof(v) == 4 {
		unit = 0x1p-24
	}
	require.Len(t, got, len(want.Data))
	for i, g := range got {
		w, g := want.Data[i], float64(g)
		right := math.Abs(w-g) <= float64(terms+4)*unit*want.Size[i]
		if math.IsNaN(w) || math.IsInf(w, 0) {
			right = w == g || math.IsNaN(w) && math.IsNaN(g)
		}
		if !right {
			require.Failf(t, "wrong", "%s: element %d is %v, want %v", name, i, g, w)
		}
	}
}

// wanted holds the results of plain loops for a convolution.
type wanted struct{ y, dx, dw reference.Result }

func (c *convolution[T]) wanted() *wanted {
	ref := reference.Conv{N: c.N, Groups: c.Groups, C: c.C, K: c.K, In: c.In, Out: c.Out, Window: c.Window, Stride: c.Stride, Pad: c.Pad, Dilation: c.Dilation}
	x, w, dy := arrayOf(c.x), arrayOf(c.w), arrayOf(c.dy)
	return &wanted{
		y:  ref.Forward(x, w, arrayOf(c.biasY), []int{len(c.y)}),
		dx: ref.InputGrad(dy, w, arrayOf(c.biasX), []int{len(c.dx)}),
		dw: ref.WeightGrad(dy, x, []int{len(c.dw)}),
	}
}

func (c *convolution[T]) check(want *wanted) {
	near(c.t, "y", c.y, want.y, c.Inner())
	near(c.t, "dx", c.dx, want.dx, c.K*c.Taps())
	near(c.t, "dw", c.dw, want.dw, c.N*c.Places())
}

// randomConv returns windows larger than the image, strides larger than the window, and padding
// larger than both.
func randomConv(r *rand.Rand) plan.Conv {
	n := func(least, most int) int { return least + r.IntN(most-least+1) }
	for {
		p := plan.Conv{N: n(1, 4), Groups: 1, C: n(1, 4), K: n(1, 5)}
		side := 9
		switch r.IntN(8) {
		case 0:
			p.Groups = n(2, 4)
		case 1:
			p.C = n(30, 70) // more than a panel
		case 2:
			p.K = n(13, 60)
		case 3:
			side, p.N = 40, 2
		case 4:
			p.N, side = n(5, 40), 4 // images of few positions
		}
		fits := true
		for d := range 2 {
			p.In[d], p.Window[d], p.Stride[d], p.Pad[d], p.Dilation[d] = n(1, side), n(1, 4), n(1, 2), n(0, 2), 1
			switch r.IntN(6) {
			case 0:
				p.Stride[d] = n(1, 6)
			case 1:
				p.Dilation[d] = n(1, 4)
			case 2:
				p.Pad[d] = n(0, 12)
			case 3:
				p.In[d] = n(0, 2)
			case 4:
				p.Window[d], p.Pad[d] = 1, 0
			}
			span := p.Dilation[d]*(p.Window[d]-1) + 1
			p.Out[d] = (p.In[d]+2*p.Pad[d]-span)/p.Stride[d] + 1
			fits = fits && p.In[d]+2*p.Pad[d] >= span
		}
		if fits {
			return p
		}
	}
}

// Every plan equals plain loops, which also multiply the padding with weights, in a convolution and
// in the weights' gradient. It reads and writes nothing outside of its arrays.
func TestConvolutions(t *testing.T) {
	eachLevel(t, testConvolutions[float32], testConvolutions[float64])
}

func testConvolutions[T Float](t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 30 {
		p := randomConv(r)
		t.Logf("seed %d, plan %d: %+v", seed, i, p)
		c := newConvolution[T](t, r, p, i%4 == 3)
		c.run()
		c.check(c.wanted())
	}
}

// Large convolutions have several blocks of the inner dimension and parts of the weights' gradient.
func TestLargeConvolutions(t *testing.T) {
	// Every level has the same numbers, so that plain loops run only once.
	var want32, want64 [len(largeConvs)]*wanted
	eachLevel(t,
		func(t *testing.T) { testLargeConvolutions[float32](t, &want32) },
		func(t *testing.T) { testLargeConvolutions[float64](t, &want64) })
}

var largeConvs = [...]plan.Conv{
	{N: 1, Groups: 1, C: 190, K: 40, In: [2]int{3, 2}, Window: [2]int{3, 3}, Stride: [2]int{2, 1}, Pad: [2]int{1, 1}},
	{N: 2, Groups: 2, C: 10, K: 20, In: [2]int{9, 31}, Window: [2]int{3, 2}, Stride: [2]int{1, 1}, Pad: [2]int{0, 1}},
	{N: 2, Groups: 1, C: 2, K: 3, In: [2]int{70, 60}, Window: [2]int{5, 5}, Stride: [2]int{3, 2}, Pad: [2]int{2, 0}},
	// Rows are transposed once.
	{N: 2, Groups: 2, C: 64, K: 5, In: [2]int{15, 14}, Window: [2]int{3, 2}, Stride: [2]int{2, 1}, Pad: [2]int{1, 3}},
	{N: 1, Groups: 1, C: 3, K: 5, In: [2]int{1, 1000}, Window: [2]int{1, 500}, Stride: [2]int{1, 7}, Pad: [2]int{0, 40}},
}

func largeConv(i int) plan.Conv {
	p := largeConvs[i]
	p.Dilation = [2]int{1, 1}
	for d := range 2 {
		p.Out[d] = (p.In[d]+2*p.Pad[d]-p.Window[d])/p.Stride[d] + 1
	}
	return p
}

func testLargeConvolutions[T Float](t *testing.T, want *[len(largeConvs)]*wanted) {
	for i := range largeConvs {
		p := largeConv(i)
		if testing.Short() {
			// K is a panel and more. Only the other sizes are large.
			p.K = min(p.K, 9)
		}
		c := newConvolution[T](t, rand.New(rand.NewPCG(uint64(i), 2)), p, false)
		c.run()
		if want[i] == nil {
			want[i] = c.wanted()
		}
		c.check(want[i])
	}
}

// Weights that are too large for a cache meet several panels at once, which does not change a bit
// compared with a third of the weights, which are not too large.
func TestConvolutionsOfManyWeights(t *testing.T) {
	eachLevel(t, testConvolutionsOfManyWeights[float32], testConvolutionsOfManyWeights[float64])
}

func testConvolutionsOfManyWeights[T Float](t *testing.T) {
	p := plan.Conv{N: 1, Groups: 1, C: 100, K: 300, In: [2]int{17, 9}, Out: [2]int{17, 9}, Window: [2]int{3, 3}, Stride: [2]int{1, 1}, Pad: [2]int{1, 1}, Dilation: [2]int{1, 1}}
	c := newConvolution[T](t, rand.New(rand.NewPCG(7, 8)), p, false)
	Convolve(&c.Conv, c.y, c.x, c.w, nil, c.scratch(ConvolveScratch[T](&c.Conv, false)))
	want := append([]T(nil), c.y...)
	part := p
	part.K = p.K / 3
	for i := range 3 {
		w, y := c.w[i*part.Weights():][:part.Weights()], c.y[i*part.K*p.Places():][:part.K*p.Places()]
		Convolve(&part, y, c.x, w, nil, c.scratch(ConvolveScratch[T](&part, false)))
	}
	require.True(t, slices.Equal(want, c.y))
}

// The number of goroutines does not change a bit, nor does scratch memory for another number of
// goroutines.
func TestConvolutionsOnAnyNumberOfProcessors(t *testing.T) {
	eachLevel(t, testConvolutionsOnProcessors[float32], testConvolutionsOnProcessors[float64])
}

func testConvolutionsOnProcessors[T Float](t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := rand.New(rand.NewPCG(3, 4))
	for _, p := range []plan.Conv{largeConv(1), largeConv(2), {N: 9, Groups: 1, C: 40, K: 30, In: [2]int{7, 7}, Out: [2]int{7, 7}, Window: [2]int{3, 3}, Stride: [2]int{1, 1},
		Pad: [2]int{1, 1}, Dilation: [2]int{1, 1}}} {
		c := newConvolution[T](t, r, p, false)
		runtime.GOMAXPROCS(1)
		c.run()
		want := [][]T{append([]T(nil), c.y...), append([]T(nil), c.dx...), append([]T(nil), c.dw...)}
		same := func() bool { return slices.EqualFunc(want, [][]T{c.y, c.dx, c.dw}, slices.Equal) }
		for _, procs := range []int{2, 3, 16} {
			runtime.GOMAXPROCS(procs)
			c.run()
			require.True(t, same(), "%d processors", procs)
		}
		taken := c.scratch
		for _, procs := range []int{1, 4} {
			c.scratch = func(int) []T { return nil }
			runtime.GOMAXPROCS(procs)
			c.run()
			require.True(t, same(), "without scratch memory")
		}
		c.scratch = taken
	}
}

// Scratch memory does not grow with the number of images or positions. A copy of what the positions
// see would be larger.
func TestScratchOfConvolutions(t *testing.T) {
	p := plan.Conv{N: 1, Groups: 1, C: 32, K: 64, In: [2]int{26, 26}, Out: [2]int{24, 24}, Window: [2]int{3, 3}, Stride: [2]int{1, 1}, Dilation: [2]int{1, 1}}
	large := p
	large.N = 1000
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for _, scratch := range []func(p *plan.Conv) int{
		func(p *plan.Conv) int { return ConvolveScratch[float32](p, true) },
		func(p *plan.Conv) int { return InputGradScratch[float32](p, true) },
		func(p *plan.Conv) int { return WeightGradScratch[float32](p, false) },
	} {
		require.Less(t, scratch(&large), 1<<18)
		large.In, large.Out = [2]int{202, 202}, [2]int{200, 200}
		require.Less(t, scratch(&large), 1<<18)
	}
}

// In a steady state, convolutions allocate nothing on the Go heap.
func TestConvolutionsAllocateNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector workers are new goroutines, so that they order nothing")
	}
	p := largeConv(2)
	c := newConvolution[float32](t, rand.New(rand.NewPCG(5, 6)), p, false)
	scratch := make([]float32, 1<<20)
	c.scratch = func(n int) []float32 { return scratch[:n] }
	require.Zero(t, testing.AllocsPerRun(20, c.run))
}
