package tensor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
)

// TestPlans: the plan that is found for a key was made for it, once, however many keys there are.
func TestPlans(t *testing.T) {
	rt := new(Runtime)
	type made struct{ words []int }
	ask := func(k planKey, words []int) (p *made, calls int) {
		p, err := remembered(rt, &k, func() (*made, error) { calls++; return &made{slices.Clone(words)}, nil })
		require.NoError(t, err)
		return p, calls
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		k, words := planKey{kind: planKind(random.IntN(3))}, []int{}
		for range 1 + random.IntN(3) {
			list := make([]int, random.IntN(3))
			for i := range list {
				list[i] = random.IntN(4) - 1
			}
			k.lists(list)
			words = append(append(words, len(list)), list...)
		}
		words = append(words, int(k.kind))
		p, _ := ask(k, words)
		require.Equal(t, words, p.words)
		_, calls := ask(k, words)
		require.Equal(t, race.Enabled, calls == 1)
	}

	long := planKey{}
	long.add(make([]int, len(long.words))...)
	longer := long
	longer.add(1)
	for _, words := range [][]int{{1}, {2}} {
		p, calls := ask(longer, words)
		assert.Equal(t, words, p.words, "a key that is too long")
		assert.Equal(t, 1, calls)
		other := long
		other.lists(words)
		p, _ = ask(other, words)
		assert.Equal(t, words, p.words)
	}

	failed := planKey{kind: planSum}
	for range 2 {
		calls := 0
		_, err := remembered(rt, &failed, func() (*made, error) { calls++; return &made{}, ErrShape })
		assert.ErrorIs(t, err, ErrShape)
		assert.Equal(t, 1, calls)
	}

	var a, b, none, empty planKey
	a.lists([]int{1, 2})
	a.lists([]int{3})
	b.lists([]int{1})
	b.lists([]int{2, 3})
	none.lists(nil)
	empty.lists([]int{})
	assert.NotEqual(t, a, b)
	assert.NotEqual(t, none, empty)
}

// TestPlansOfManyGoroutines: each finds its own.
func TestPlansOfManyGoroutines(t *testing.T) {
	rt := new(Runtime)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 5000 {
				k := planKey{}
				k.add(i*7%(1000+g), 3)
				p, err := remembered(rt, &k, func() (*int, error) { n := k.words[0]; return &n, nil })
				if err != nil || *p != k.words[0] {
					t.Errorf("%v: %v, %v", k.words[0], *p, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestPlansOfOneOption: operations that differ in one option run one after the other, each twice,
// on one runtime. Their results are those without a cache of plans.
func TestPlansOfOneOption(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	seed := rand.New(rand.NewPCG(3, 4))
	x := func(shape ...int) *Tensor {
		data := make([]float32, elements(shape))
		for i := range data {
			data[i] = seed.Float32() - 0.5
		}
		return put(r, data, shape...)
	}
	type op struct {
		name string
		run  func() (*Tensor, error)
	}
	var ops []op
	add := func(name string, run func() (*Tensor, error)) {
		ops = append(ops, op{fmt.Sprint(len(ops), " ", name), run})
	}

	picture, window, square := x(2, 4, 6, 6), x(4, 2, 3, 3), x(4, 4, 3, 3)
	for _, c := range []ConvConfig{{}, {Stride: []int{2}}, {Stride: []int{2, 1}}, {Padding: []int{1}}, {Padding: []int{0}}, {Dilation: []int{2}}, {Dilation: []int{2}, Padding: []int{1}}, {Same: true}} {
		add("Conv2d", func() (*Tensor, error) { return r.Conv2d(r.ctx, picture, square, nil, c) })
		if !c.Same {
			add("ConvTranspose2d", func() (*Tensor, error) { return r.ConvTranspose2d(r.ctx, picture, square, nil, c) })
		}
		grouped := c
		grouped.Groups = 2
		add("Conv2d", func() (*Tensor, error) { return r.Conv2d(r.ctx, picture, window, nil, grouped) })
	}
	add("ConvTranspose2d", func() (*Tensor, error) {
		return r.ConvTranspose2d(r.ctx, picture, square, nil, ConvConfig{Stride: []int{2}, OutputPadding: []int{1}})
	})
	for _, c := range []PoolingConfig{{Kernel: []int{2}}, {Kernel: []int{3}}, {Kernel: []int{3, 2}}, {Kernel: []int{4}, Stride: []int{3}}, {Kernel: []int{4}, Stride: []int{3}, Ceil: true},
		{Kernel: []int{3}, Padding: []int{1}}} {
		add("MaxPool2d", func() (*Tensor, error) {
			y, indices, err := r.MaxPool2d(r.ctx, picture, c)
			return y, errors.Join(err, indices.Release())
		})
		add("AvgPool2d", func() (*Tensor, error) { return r.AvgPool2d(r.ctx, picture, c) })
		inside := c
		inside.ExcludePadding = true
		add("AvgPool2d", func() (*Tensor, error) { return r.AvgPool2d(r.ctx, picture, inside) })
		fifth := c
		fifth.Divisor = 5
		add("AvgPool2d", func() (*Tensor, error) { return r.AvgPool2d(r.ctx, picture, fifth) })
	}
	add("MaxPool2d", func() (*Tensor, error) {
		y, indices, err := r.MaxPool2d(r.ctx, picture, PoolingConfig{Kernel: []int{2}, Dilation: []int{2}})
		return y, errors.Join(err, indices.Release())
	})

	for _, c := range []InterpolateConfig{{Size: []int{5}}, {Size: []int{5, 7}}, {Size: []int{5}, Bilinear: true}, {Size: []int{5}, Bilinear: true, AlignCorners: true}, {ScaleFactor: []float64{2}},
		{ScaleFactor: []float64{2.1}}, {ScaleFactor: []float64{2, 2.1}}, {ScaleFactor: []float64{2.1}, Bilinear: true}} {
		add("Interpolate", func() (*Tensor, error) { return r.Interpolate(r.ctx, picture, c) })
	}
	for _, pads := range [][2][]int{{{0, 0, 1, 2}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 1, 2}}, {{0, 0, 2, 1}, {0, 0, 0, 0}}, {{0, 0, 1, 2}, {0, 0, 1, 0}}} {
		add("ReflectionPad", func() (*Tensor, error) { return r.ReflectionPad(r.ctx, picture, pads[0], pads[1]) })
		add("ReplicationPad", func() (*Tensor, error) { return r.ReplicationPad(r.ctx, picture, pads[0], pads[1]) })
	}

	for _, c := range []NormConfig{{Shape: []int{6}}, {Shape: []int{6}, Eps: 0.5}, {Shape: []int{6}, Eps: 1}, {Shape: []int{6, 6}}, {Shape: []int{6}, RMS: true}, {Groups: 1}, {Groups: 2}} {
		add("Normalize", func() (*Tensor, error) {
			y, stats, err := r.Normalize(r.ctx, picture, nil, nil, c)
			return y, errors.Join(err, stats.Release())
		})
	}

	q, qkv := x(2, 2, 4, 4), x(4, 4, 12)
	mask, some := x(4, 4), put(r, []uint8{1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 1}, 4, 4)
	column := x(4, 1)
	for _, m := range []*Tensor{nil, mask, some, column} {
		for _, c := range []AttentionConfig{{}, {Scale: 0.25}, {Scale: 2}, {Causal: m == nil}} {
			add("ScaledDotProductAttention", func() (*Tensor, error) {
				y, sums, err := r.ScaledDotProductAttention(r.ctx, q, q, q, m, c)
				return y, errors.Join(err, sums.Release())
			})
			for _, heads := range []int{1, 2} {
				for _, first := range []bool{false, true} {
					add("SelfAttention", func() (*Tensor, error) {
						y, sums, err := r.SelfAttention(r.ctx, qkv, m, heads, first, c)
						return y, errors.Join(err, sums.Release())
					})
				}
			}
		}
	}

	for _, axes := range [][]int{nil, {0}, {1}, {0, 1}, {1, 2, 3}, {-1}} {
		add("Sum", func() (*Tensor, error) { return r.Sum(r.ctx, picture, axes...) })
	}
	cube := x(3, 3, 3)
	for _, dims := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}, {0, 2, 1}, {1, 2, 0}} {
		add("Permute", func() (*Tensor, error) { return r.Permute(r.ctx, cube, dims...) })
	}
	for _, axis := range []int{0, 1, 2} {
		add("Narrow", func() (*Tensor, error) { return r.Narrow(r.ctx, cube, axis, 1, 2) })
	}
	batch, one, few := x(2, 3, 4, 4), x(1, 3, 4, 4), x(3, 4, 4)
	for _, pair := range [][2]*Tensor{{batch, batch}, {batch, one}, {one, batch}, {batch, few}, {few, batch}} {
		add("MatMul", func() (*Tensor, error) { return r.MatMul(r.ctx, pair[0], pair[1]) })
		add("MatMul", func() (*Tensor, error) { return r.MatMul(r.ctx, pair[0], pair[1], TransA) })
		add("Add", func() (*Tensor, error) { return r.Add(r.ctx, pair[0], pair[1]) })
	}

	result := func(o op) (Shape, []float32) {
		y, err := o.run()
		require.NoError(t, err, o.name)
		defer func() { require.NoError(t, y.Release()) }()
		return y.Shape(), get[float32](r, y, nil)
	}
	shapes, results := make([]Shape, len(ops)), make([][]float32, len(ops))
	for i, o := range ops {
		for at := range r.plans {
			r.plans[at].Store(nil)
		}
		shapes[i], results[i] = result(o)
	}
	for range 2 {
		for _, i := range seed.Perm(len(ops)) {
			shape, got := result(ops[i])
			require.Equal(t, shapes[i], shape, ops[i].name)
			require.Equal(t, results[i], got, ops[i].name)
		}
	}
}

// TestPlanKeysHashApart: each word affects the hash, and so does each of its bits.
func TestPlanKeysHashApart(t *testing.T) {
	seen := map[uint64]planKey{}
	for word := range 4 {
		for bit := range 31 {
			k := planKey{kind: planSum}
			k.add(2, 3, 5, 7)
			k.words[word] ^= 1 << bit
			h := k.hash()
			require.NotContains(t, seen, h, "the hash of %v", k.words[:k.n])
			seen[h] = k
		}
	}
}
