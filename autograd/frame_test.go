package autograd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// framed is a random program of operations on matrices (2, 2), some of them in frames in frames. Its values are read several
// times, kept and released; what a frame made is read outside only if it is the result.
type framed struct {
	steps  []framedStep
	result int
}

type framedStep struct {
	value   int // its number
	op      int // of framedOps, unless there is a body
	args    [2]int
	body    *framed
	keep    bool
	release []int
}

var framedOps = []func(t *Tape, a, b *Variable) *Variable{
	(*Tape).Add, (*Tape).Sub, (*Tape).Mul,
	func(t *Tape, a, b *Variable) *Variable { return t.MatMul(a, b, tensor.TransB) },
	func(t *Tape, a, _ *Variable) *Variable { return t.Tanh(a) },
	func(t *Tape, a, _ *Variable) *Variable { return t.Sigmoid(a) },
	func(t *Tape, a, _ *Variable) *Variable { return t.Softmax(a) },
	func(t *Tape, a, _ *Variable) *Variable { return t.MulScalar(a, 0.5) },
	func(t *Tape, a, _ *Variable) *Variable { return t.Reshape(a, 2, 2) },
	func(t *Tape, a, _ *Variable) *Variable { return t.Input(a.Value()) },
	func(t *Tape, a, b *Variable) *Variable {
		return Sequential{ReLU{}, twice{b}, ReLU{}}.Forward(t, a)
	},
}

// twice is a layer that reads its argument, and a value of outside, twice.
type twice struct{ v *Variable }

func (l twice) Forward(t *Tape, x *Variable) *Variable {
	return t.Frame(func() *Variable { return t.Add(t.Mul(x, l.v), t.Mul(t.Tanh(x), l.v)) })
}

func (twice) Parameters() Parameters { return nil }

func newFramed(random *rand.Rand, scope []int, next *int, depth int) *framed {
	f := &framed{}
	var own []int
	for range 1 + random.IntN(6) {
		s := framedStep{value: *next, op: random.IntN(len(framedOps)), keep: random.IntN(12) == 0}
		*next++
		for i := range s.args {
			s.args[i] = scope[random.IntN(len(scope))]
		}
		if depth > 0 && random.IntN(3) == 0 {
			s.body = newFramed(random, append([]int(nil), scope...), next, depth-1)
		}
		scope, own = append(scope, s.value), append(own, s.value)
		if len(own) > 1 && random.IntN(6) == 0 {
			i := random.IntN(len(own) - 1)
			gone := own[i]
			own = append(own[:i], own[i+1:]...)
			for j, v := range scope {
				if v == gone {
					scope = append(scope[:j:j], scope[j+1:]...)
					break
				}
			}
			s.release = append(s.release, gone)
		}
		f.steps = append(f.steps, s)
	}
	f.result = own[len(own)-1]
	return f
}

// run gives the result. Without frames its bodies are run as they are.
func (f *framed) run(t *Tape, values map[int]*Variable, frames bool) *Variable {
	for _, s := range f.steps {
		var v *Variable
		switch {
		case s.body == nil:
			v = framedOps[s.op](t, values[s.args[0]], values[s.args[1]])
		case frames:
			v = t.Frame(func() *Variable { return s.body.run(t, values, frames) })
		default:
			v = s.body.run(t, values, frames)
		}
		if s.keep {
			v.Keep()
		}
		values[s.value] = v
		for _, r := range s.release {
			values[r].Release()
		}
	}
	return values[f.result]
}

// TestFramesOfRandomPrograms: with frames and without, a program has the same result and the same gradients; a frame
// leaves nothing but its result, what was kept and what the backward pass needs, and the tape leaves nothing at all.
func TestFramesOfRandomPrograms(t *testing.T) {
	b := open(t, 64<<20)
	x, y := upload(b, []float64{1, -0.5, 0.25, 2}, 2, 2), upload(b, []float64{0.5, 1, -1, 0.75}, 2, 2)
	n := rounds(2000, 150)
	frames := 0
	for seed := range uint64(n) {
		random := rand.New(rand.NewPCG(seed, 7))
		next := 2
		program := newFramed(random, []int{0, 1}, &next, 3)
		name := fmt.Sprintf("program %d", seed)
		for _, s := range program.steps {
			if s.body != nil {
				frames++
			}
		}
		before, bytes := b.live(), b.bytes()
		var results [3][]float64
		var gradients [2][][]float64
		for i, framed := range []bool{false, true} {
			tape := NewTape(b.ctx, b.rt)
			values := map[int]*Variable{0: tape.Leaf(x), 1: tape.Leaf(y)}
			out := program.under(tape, values, framed)
			require.NoError(t, tape.Err(), name)
			if framed {
				require.Equal(t, needs(tape, values, out), b.live()-before, name)
			}
			results[i] = read[float64](b, out.Value())
			_, err := tape.Backward(tape.Sum(out))
			if !errors.Is(err, ErrNoGrad) { // it had read values alone
				require.NoError(t, err, name)
				for v := range 2 {
					var g []float64
					if values[v].Grad() != nil {
						g = read[float64](b, values[v].Grad())
					}
					gradients[i] = append(gradients[i], g)
				}
				require.NoError(t, tape.Close(), name)
			} else {
				require.Error(t, tape.Close())
			}
			require.Equal(t, bytes, b.bytes(), name)
		}
		tape := NoGrad(b.ctx, b.rt)
		values := map[int]*Variable{0: tape.Leaf(x), 1: tape.Leaf(y)}
		out := program.under(tape, values, true)
		require.NoError(t, tape.Err(), name)
		require.Equal(t, needs(tape, values, out), b.live()-before, name)
		require.Empty(t, tape.values, name)
		results[2] = read[float64](b, out.Value())
		require.NoError(t, tape.Close(), name)
		require.Equal(t, bytes, b.bytes(), name)
		require.Equal(t, results[0], results[1], name)
		require.Equal(t, results[0], results[2], name)
		require.Equal(t, gradients[0], gradients[1], name)
	}
	require.Greater(t, frames, n/4)
}

// under runs the program in a frame, or as it is.
func (f *framed) under(t *Tape, values map[int]*Variable, frame bool) *Variable {
	if !frame {
		return f.run(t, values, false)
	}
	return t.Frame(func() *Variable { return f.run(t, values, true) })
}

// needs counts the blocks beyond those of the leaves that a tape may hold: of out, of what was kept, and of what the backward
// pass reads.
func needs(t *Tape, values map[int]*Variable, out *Variable) int64 {
	blocks := make(map[memcache.Block]bool)
	blocks[out.Value().Block()] = true
	for _, v := range values {
		if v.kept {
			blocks[v.Value().Block()] = true
		}
	}
	for _, n := range t.nodes {
		for _, s := range n.saved {
			blocks[s.Value().Block()] = true
		}
	}
	delete(blocks, values[0].Value().Block())
	delete(blocks, values[1].Value().Block())
	return int64(len(blocks))
}

// TestFrame has what a program can do wrong, and the ends of frames.
func TestFrame(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2})
	for _, record := range []bool{true, false} {
		tape := newTape(b.ctx, b.rt, record)
		h := tape.AddScalar(tape.Input(x), 1)
		assert.Same(t, h, tape.Frame(func() *Variable { return h }), "made outside")
		var inner, kept *Variable
		y := tape.Frame(func() *Variable {
			inner = tape.Exp(h)
			kept = tape.Neg(inner).Keep()
			kept.Release()
			return tape.Frame(func() *Variable { return tape.Add(tape.Mul(h, inner), inner) })
		})
		require.NoError(t, tape.Err(), "read again inside, without a gradient too")
		assert.True(t, inner.Value().Released())
		assert.False(t, kept.Value().Released(), "Keep wins")
		assert.False(t, h.Value().Released(), "made outside")
		assert.InDeltaSlice(t, []float64{3 * 7.3890561, 4 * 20.0855369}, read[float64](b, y.Value()), 1e-6)
		assert.Equal(t, record, len(tape.values) > 0, "what Backward has to free")

		assert.PanicsWithValue(t, "inside", func() {
			tape.Frame(func() *Variable {
				inner = tape.Exp(h)
				panic("inside")
			})
		})
		assert.True(t, inner.Value().Released(), "after a panic")
		assert.Zero(t, tape.frames)
		tape.Exp(h)
		assert.Equal(t, !record, h.Value().Released(), "after its frames a tape of NoGrad frees as before")
		tape.Tanh(inner)
		require.ErrorIs(t, tape.Err(), tensor.ErrReleased)
		assert.NotNil(t, tape.Frame(func() *Variable { return tape.Exp(tape.inert()) }), "after an error")
		require.Error(t, tape.Close())
		require.NotNil(t, tape.Frame(func() *Variable { return nil }))

		tape = newTape(b.ctx, b.rt, record)
		require.NotNil(t, tape.Frame(func() *Variable { return nil }))
		require.EqualError(t, tape.Close(), "autograd: Frame: invalid argument: the function returned nil")
		tape = newTape(b.ctx, b.rt, record)
		require.NotNil(t, tape.Frame(nil))
		require.EqualError(t, tape.Close(), "autograd: Frame: invalid argument: the function is nil")
	}
}

// TestBackwardInAFrame has freed everything by then.
func TestBackwardInAFrame(t *testing.T) {
	b := open(t, 64<<20)
	p := b.parameter(2)
	tape := NewTape(b.ctx, b.rt)
	tape.Square(tape.Param(p))
	loss := tape.Frame(func() *Variable {
		loss := tape.Sum(tape.Square(tape.Param(p)))
		_, err := tape.Backward(loss)
		require.NoError(t, err)
		return loss
	})
	require.NoError(t, tape.Err())
	assert.InDelta(t, 5, loss.Item(), 0)
	require.NoError(t, errors.Join(tape.Close(), p.ZeroGrad(b.ctx)))
}
