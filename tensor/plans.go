package tensor

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Plans, such as how shapes broadcast, how a window moves or what a sum runs over, depend only on
// shapes and options, and a training needs the same ones in each step. So a runtime caches its
// plans: an operation that was planned before allocates nothing on the Go heap for its plan, on any
// device. A plan never changes after it was made, because other goroutines and queued kernels read
// it.
//
// Race builds cache nothing: a cached plan would order the goroutine that finds it after the
// goroutine that made it.

// plans holds the plans that a runtime caches: planSets sets of planWays slots. A key belongs to
// one set. A plan replaces another one only if its set is full.
type plans [planSets * planWays]atomic.Pointer[planned]

const (
	planSets = 64
	planWays = 8
)

type planned struct {
	key  planKey
	plan any
}

// planKind is the kind of a plan; keys of two kinds differ.
type planKind int

const (
	planBroadcast planKind = iota
	planReduction
	planProduct
	planPlace
	planConvolution
	planPooling
	planNorm
	planAttended
	planSelfAttended
	planSum
	planInterpolation
	planEdges
)

// planKey holds the words that a plan depends on.
type planKey struct {
	kind  planKind
	n     int // added words; if words can't hold them, the plan is not cached
	words [40]int
}

func (k *planKey) add(words ...int) {
	if k.n+len(words) <= len(k.words) {
		copy(k.words[k.n:], words)
	}
	k.n += len(words)
}

// lists adds lists, which may be nil.
func (k *planKey) lists(all ...[]int) {
	for _, words := range all {
		if words == nil {
			k.add(-1)
			continue
		}
		k.add(len(words))
		k.add(words...)
	}
}

// flags adds up to as many flags as a word has bits.
func (k *planKey) flags(all ...bool) {
	word := 0
	for i, f := range all {
		if f {
			word |= 1 << i
		}
	}
	k.add(word)
}

// number adds a number by its bits.
func (k *planKey) number(f uint64) { k.add(int(uint32(f)), int(uint32(f>>32))) }

func (k *planKey) is(o *planKey) bool {
	return k.kind == o.kind && slices.Equal(k.words[:k.n], o.words[:o.n])
}

// hash mixes each word into all that came before (the multiplication of wyhash).
func (k *planKey) hash() uint64 {
	h := uint64(k.kind) + 0x9e3779b97f4a7c15
	for _, w := range k.words[:k.n] {
		hi, lo := bits.Mul64(h^uint64(w), 0xe7037ed1a0b428db)
		h = hi ^ lo + 0x8ebc6af09c88c6e3
	}
	return h
}

// remembered returns the cached plan of the key, or caches the result of make. Errors are not
// cached.
func remembered[P any](rt *Runtime, k *planKey, make func() (P, error)) (P, error) {
	if race.Enabled || k.n > len(k.words) {
		return make()
	}
	h := k.hash()
	set := rt.plans[h%planSets*planWays:][:planWays]
	free := int(h >> 32 % planWays)
	for i := range set {
		switch p := set[i].Load(); {
		case p == nil:
			free = i
		case p.key.is(k):
			return p.plan.(P), nil
		}
	}
	p, err := make()
	if err == nil {
		set[free].Store(&planned{*k, p})
	}
	return p, err
}

// shaped is a plan with the shape that follows from it.
type shaped[P any] struct {
	plan  P
	shape Shape
}

// shapedBy is remembered for a plan with a shape.
func shapedBy[P any](rt *Runtime, k *planKey, make func() (P, Shape, error)) (plan P, shape Shape, err error) {
	s, err := remembered(rt, k, func() (*shaped[P], error) {
		p, shape, err := make()
		return &shaped[P]{p, shape}, err
	})
	if err != nil {
		return plan, nil, err
	}
	return s.plan, s.shape, nil
}

// broadcast plans an operation on two operands. The plan for equal shapes depends only on the
// number of their elements.
func (rt *Runtime) broadcast(out, a, b Shape) *plan.Broadcast {
	k := planKey{kind: planBroadcast}
	if slices.Equal(out, a) && slices.Equal(out, b) {
		line := [1]int{elements(out)}
		k.add(line[0])
		p, _ := remembered(rt, &k, func() (*plan.Broadcast, error) { return plan.NewBroadcast(line[:], line[:], line[:]), nil })
		return p
	}
	k.lists(out, a, b)
	p, _ := remembered(rt, &k, func() (*plan.Broadcast, error) { return plan.NewBroadcast(out, a, b), nil })
	return p
}

// reduction plans a sum of x to kept, a shape in which the summed dimensions are 1.
func (rt *Runtime) reduction(x, kept Shape) *plan.Reduction {
	k := planKey{kind: planReduction}
	k.lists(x, kept)
	p, _ := remembered(rt, &k, func() (*plan.Reduction, error) { return plan.NewReduction(x, kept), nil })
	return p
}

// planSum caches reducedShape.
func (rt *Runtime) planSum(op string, shape Shape, axes []int) (kept, without Shape, err error) {
	k := planKey{kind: planSum}
	k.lists(shape)
	k.add(axes...)
	return shapedBy(rt, &k, func() (kept, without Shape, err error) { return reducedShape(op, shape, axes) })
}
