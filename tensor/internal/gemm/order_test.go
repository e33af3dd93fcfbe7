package gemm

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// TestAnyNumberOfGoroutinesGivesTheSame compares products on few and many goroutines, and on only
// the calling goroutine, which uses smaller blocks.
func TestAnyNumberOfGoroutinesGivesTheSame(t *testing.T) {
	atEveryLevel(t, testGoroutines[float32], testGoroutines[float64])
}

func testGoroutines[T Float](t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	r := seeded(t)
	sizes := [][3]int{{128, 96, 784}, {33, 500, 1000}, {700, 65, 300}, {60, 65, 550}, {1, 300, 5000}, {300, 1, 5000}, {900, 1, 1200}, {7, 90, 7000}, {150, 5, 3000}}
	if testing.Short() || simd.Active() == simd.Generic {
		sizes = sizes[3:]
	}
	for _, s := range sizes {
		c := &trial[T]{m: s[0], n: s[1], k: s[2]}
		c.fill(r)
		before := slices.Clone(c.c)
		c.product().RunAlone()
		want := slices.Clone(c.c)
		for _, procs := range []int{1, 2, 3, 8} {
			runtime.GOMAXPROCS(procs)
			copy(c.c, before)
			p := c.product()
			mc := machineOf[T]()
			if procs > 1 && c.m != 60 {
				require.Positive(t, p.helpers(mc), "%v is for several goroutines", c)
			}
			scratch, free := guarded[T](p.Scratch(), true)
			p.Run(scratch)
			free()
			require.True(t, same(want, c.c), "%v with %d", c, procs)
		}
		copy(c.c, before)
		c.check(t, func(p *Product[T]) { p.Run(nil) })
		c.free()
	}
}

// same compares the bits.
func same[T Float](a, b []T) bool {
	return slices.EqualFunc(a, b, func(x, y T) bool {
		return x == y && math.Signbit(float64(x)) == math.Signbit(float64(y)) || x != x && y != y
	})
}

// TestBlocksGiveTheSame: an element is bit-identical for all sizes of blocks, and with and without
// packed or copied factors.
func TestBlocksGiveTheSame(t *testing.T) { atEveryLevel(t, testBlocks[float32], testBlocks[float64]) }

func testBlocks[T Float](t *testing.T) {
	r := seeded(t)
	mc := machineOf[T]()
	for range trials(30) {
		c := &trial[T]{m: 2 + r.IntN(90), n: 2 + r.IntN(150), k: 2 + r.IntN(1200)}
		c.fill(r)
		before := slices.Clone(c.c)
		c.product().RunAlone()
		want := slices.Clone(c.c)
		for range 3 {
			elements := mc.depth * (mc.rows + mc.columns + r.IntN(200))
			coin := func() bool { return r.IntN(2) == 0 }
			f := factors{directA: coin(), collideA: coin(), directB: !c.tb && mc.masks() && coin(), collideB: coin()}
			blocks := cut(mc, c.m, c.n, c.k, f, elements, 1+r.IntN(9))
			require.LessOrEqual(t, blocks.scratch(), elements, "%v: %+v", c, blocks)
			scratch, free := guarded[T](blocks.scratch(), true)
			copy(c.c, before)
			run := &run[T]{product: *c.product(), machine: mc, blocks: blocks, panelsA: scratch}
			for phase := range run.phases() {
				for unit := range run.Units(phase) {
					run.Run(phase, unit)
				}
			}
			free()
			require.True(t, same(want, c.c), "%v: %+v", c, blocks)
		}
		c.free()
	}
}

// TestRowsThatCollideAreCopied: rows of A that are multiples of 4 KiB apart are copied if a tile has
// more than 8 of them, if a unit reads them for several panels of B, and if they are not packed.
func TestRowsThatCollideAreCopied(t *testing.T) {
	for _, c := range []struct {
		m, n, bytes int // bytes is the distance of rows
		transposed  bool
		goroutines  int
		want        bool
	}{
		{100, 100, 4096, false, 1, true},
		{100, 100, 20480, false, 2, true},
		{9, 100, 4096, false, 1, true},
		{128, 512, 4096, false, 2, true},
		{17, 100, 4096, false, 1, true},
		{8, 100, 4096, false, 1, false},
		{16, 100, 4096, false, 1, false},
		{100, 100, 4160, false, 1, false},
		{100, 100, 2048, false, 1, false},
		{100, 10, 4096, false, 1, false},
		{100, 100, 4096, true, 1, false},
	} {
		single := Product[float32]{M: c.m, N: c.n, K: 500, A: A[float32](nil, c.bytes/4, c.transposed)}
		double := Product[float64]{M: c.m, N: c.n, K: 500, A: A[float64](nil, c.bytes/8, c.transposed)}
		mc := &machines[simd.AVX512]
		for _, b := range []blocks{
			single.plan(&mc[0], scratchBytes, c.goroutines),
			double.plan(&mc[1], scratchBytes, c.goroutines),
		} {
			require.Equal(t, c.want, b.copyA, "%+v: %+v", c, b)
		}
	}
	p := Product[float32]{M: 100, N: 100, K: 500, A: A[float32](nil, 1024, false)}
	require.False(t, p.plan(&machines[simd.AVX2][0], scratchBytes, 1).copyA, "a tile of AVX2 has 6 rows")
}

// TestColliding: a product whose rows of A are copied is right, on one goroutine and on several.
func TestColliding(t *testing.T) { atEveryLevel(t, testColliding[float32], testColliding[float64]) }

func testColliding[T Float](t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	r := seeded(t)
	for range trials(5) {
		c := &trial[T]{m: 100 + r.IntN(100), n: 100 + r.IntN(100), k: 1024}
		for c.fill(r); c.ta || c.lda != c.k; {
			c.fill(r)
		}
		c.check(t, (*Product[T]).RunAlone)
		c.check(t, func(p *Product[T]) { p.Run(make([]T, p.Scratch())) })
		c.free()
	}
}

// TestUnits: units are wider if A is copied, and become smaller with more goroutines. B is read in
// place if that is possible and a unit has few panels of A: fewer than 7 if rows of B collide, or
// than 20 if they do not.
func TestUnits(t *testing.T) {
	mc := &machines[simd.AVX512][0]
	collide := factors{collideA: true, directB: true, collideB: true}
	for _, c := range []struct {
		m, n, k    int
		factors    factors
		goroutines int
		rows, cols int
		packB      bool
	}{
		{2048, 2048, 2048, collide, 1, 147, 8, true},
		{2048, 2048, 2048, collide, 2, 37, 8, true},
		{2048, 2048, 2048, factors{collideA: true}, 16, 10, 4, true},
		{512, 512, 512, factors{}, 2, 19, 2, true},
		{512, 512, 512, factors{}, 16, 5, 1, true},
		{512, 512, 512, factors{directB: true}, 16, 3, 1, false},
		{128, 512, 784, factors{}, 2, 10, 1, true},
		{128, 512, 784, factors{}, 16, 5, 1, true},
		{128, 512, 784, factors{directB: true}, 16, 2, 1, false},
		{1400, 32, 5000, factors{}, 16, 4, 1, true},
		{14, 3200, 512, factors{directB: true}, 2, 1, 2, false},
		{28, 4096, 1024, factors{directB: true, collideB: true}, 2, 2, 2, false},
		{28, 4096, 4096, factors{directB: true, collideB: true}, 16, 2, 1, false},
		{84, 512, 512, factors{directB: true, collideB: true}, 1, 6, 12, false},
		{98, 512, 512, factors{directB: true, collideB: true}, 1, 7, 12, true},
		{266, 512, 512, factors{directB: true}, 1, 19, 12, false},
		{280, 512, 512, factors{directB: true}, 1, 20, 12, true},
		{14, 512, 512, factors{}, 1, 1, 12, true},
	} {
		c.factors.directA = true
		b := cut(mc, c.m, c.n, c.k, c.factors, 1<<20, c.goroutines)
		require.Equal(t, [3]any{c.rows, c.cols, c.packB}, [3]any{b.unitRows, b.unitCols, b.packB}, "%+v", c)
	}
}

// TestReadInPlace: B is read in place only if its columns are adjacent and the level has masks, and
// its rows collide if they are multiples of 4 KiB apart.
func TestReadInPlace(t *testing.T) {
	for _, c := range []struct {
		level      simd.Level
		m, n       int
		transposed bool
		packB      bool
	}{
		{simd.AVX512, 98, 512, false, false},
		{simd.AVX512, 98, 1000, false, false},
		{simd.AVX512, 98, 1024, false, true},
		{simd.AVX512, 84, 1024, false, false},
		{simd.AVX512, 84, 1024, true, true},
		{simd.NEON, 8, 512, false, true},
	} {
		p := Product[float32]{M: c.m, N: c.n, K: 500, A: A[float32](nil, 500, false), B: B[float32](nil, c.n, c.transposed)}
		require.Equal(t, c.packB, p.plan(&machines[c.level][0], ownBytes, 1).packB, "%+v", c)
	}
}

// TestNotNumbers: 0 times an infinity is NaN, and NaN stays NaN through bias and ReLU. Elements
// without such a term are not NaN.
func TestNotNumbers(t *testing.T) { atEveryLevel(t, testNotNumbers[float32], testNotNumbers[float64]) }

func testNotNumbers[T Float](t *testing.T) {
	r := seeded(t)
	for range trials(100) {
		c := &trial[T]{m: 1 + r.IntN(40), n: 1 + r.IntN(70), k: 1 + r.IntN(40)}
		c.fill(r)
		clear(c.a)
		row, col, k := r.IntN(c.m), r.IntN(c.n), r.IntN(c.k)
		bad := []T{T(math.Inf(1)), T(math.Inf(-1)), T(math.NaN())}[r.IntN(3)]
		x, y := k*c.ldb+col, row*c.lda+k
		if c.tb {
			x = col*c.ldb + k
		}
		if c.ta {
			y = k*c.lda + row
		}
		inB := r.IntN(2) == 0
		if inB {
			c.b[x] = bad
		} else {
			clear(c.b)
			c.a[y] = bad
		}
		c.product().RunAlone()
		for i := range c.m {
			for j := range c.n {
				v := c.c[i*c.ldc+j]
				require.Equal(t, inB && j == col || !inB && i == row, v != v, "%v: %v at %d of %d, %d: element %d, %d is %v", c, bad, k, row, col, i, j, v)
			}
		}
		c.free()
	}
}

// TestPanel: packing reads and writes only its elements, for every number of them.
func TestPanel(t *testing.T) { atEveryLevel(t, testPanel[float32], testPanel[float64]) }

func testPanel[T Float](t *testing.T) {
	r := seeded(t)
	for items := 1; items <= 40; items++ {
		for range trials(20) {
			depth := 1 + r.IntN(40)
			item, k := 1, items+r.IntN(3)
			if r.IntN(2) == 0 {
				item, k = depth+r.IntN(3), 1
			}
			stride := items + r.IntN(2)*r.IntN(20)
			src, freeSrc := guarded[T]((items-1)*item+(depth-1)*k+1, r.IntN(2) == 0)
			dst, freeDst := guarded[T]((depth-1)*stride+items, r.IntN(2) == 0)
			for i := range src {
				src[i] = T(i + 1)
			}
			Panel(simd.Active(), dst, stride, src, item, k, depth, items)
			for i := range depth {
				for j := range stride {
					switch at := i*stride + j; {
					case at >= len(dst):
					case j < items && dst[at] != src[j*item+i*k], j >= items && dst[at] != 0:
						require.Failf(t, "wrong", "%d items of %d, strides %d %d %d: %d, %d is %v", items, depth, item, k, stride, j, i, dst[at])
					}
				}
			}
			freeSrc()
			freeDst()
		}
	}
}

func TestScratchIsBounded(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		size := func() int { return 1 + int(math.Exp(r.Float64()*12)) }
		p := Product[float32]{M: size(), N: size(), K: size()}
		p.A, p.B = A[float32](nil, p.M, true), B[float32](nil, p.K, true)
		if unsafe.Sizeof(0) == 4 && float64(p.M)*float64(p.N)*float64(p.K) > math.MaxInt32 {
			continue
		}
		require.LessOrEqual(t, p.Scratch()*4, scratchBytes)
	}
}

func TestNoAllocation(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	c := &trial[float32]{m: 200, n: 300, k: 100}
	c.fill(seeded(t))
	defer c.free()
	p := c.product()
	scratch := make([]float32, p.Scratch())
	for name, f := range map[string]func(){"alone": p.RunAlone, "several": func() { p.Run(scratch) }} {
		const runs = 200
		var before, after runtime.MemStats // not testing.AllocsPerRun, which sets GOMAXPROCS to 1
		for range 10 {
			f()
		}
		runtime.ReadMemStats(&before)
		for range runs {
			f()
		}
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n > runs/4 && !race.Enabled {
			t.Errorf("%s: %d allocations in %d runs", name, n, runs)
		}
	}
}

func FuzzProduct(f *testing.F) {
	f.Add(uint16(13), uint16(32), uint16(5), uint64(1))
	f.Fuzz(func(t *testing.T, m, n, k uint16, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := &trial[float32]{m: int(m % 200), n: int(n % 200), k: int(k % 900)}
		c.fill(r)
		defer c.free()
		all := simd.Available()
		defer simd.Use(all[r.IntN(len(all))])()
		c.check(t, (*Product[float32]).RunAlone)
	})
}
