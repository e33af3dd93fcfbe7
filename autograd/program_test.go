package autograd

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// program is a random expression: every step applies an operation to earlier results.
type program struct {
	steps []struct{ op, a, b int }
}

func randomProgram(random *rand.Rand, leaves, steps int) (p program) {
	for i := range steps {
		p.steps = append(p.steps, struct{ op, a, b int }{random.IntN(9), random.IntN(leaves + i), random.IntN(leaves + i)})
	}
	return p
}

// run evaluates the program on n leaves of shape (2, 2), and returns the sum of all results. If early, it
// releases each variable after its last use. A tape that records nothing frees what was read, so it keeps what is
// read again.
func (p program) run(t *Tape, vs []*Variable, early bool) *Variable {
	leaves := len(vs)
	last := make([]int, leaves+len(p.steps))
	for i, s := range p.steps {
		last[s.a], last[s.b] = i, i
	}
	sum := t.Sum(vs[0])
	for i, s := range p.steps {
		a, b := vs[s.a], vs[s.b]
		var v *Variable
		switch s.op {
		case 0:
			v = t.Add(a, b)
		case 1:
			v = t.Sub(a, b)
		case 2:
			v = t.Mul(t.Tanh(a), t.Sigmoid(b))
		case 3:
			v = t.Tanh(t.MatMul(a, b, transpose(i%2 == 0, i%3 == 0)))
		case 4:
			v = t.ReLU(a)
		case 5:
			v = t.MulScalar(a, 0.5)
		case 6:
			v = t.Reshape(t.Transpose(t.Reshape(a, 2, 2)), 2, 2)
		case 7:
			v = t.Softmax(a)
		default:
			v = t.LinearReLU(a, b, t.Sum(a, 0))
		}
		if vs = append(vs, v); !t.record && last[leaves+i] > 0 {
			v.Keep()
		}
		sum = t.Add(sum, t.Mean(v))
		for j := leaves; early && j < len(vs); j++ {
			if last[j] <= i {
				vs[j].Release()
			}
		}
	}
	return sum
}

// TestReleasingEarlyChangesNothingButMemory runs random programs with and without the program's help, and
// without recording.
func TestReleasingEarlyChangesNothingButMemory(t *testing.T) {
	b := open(t, 64<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for range rounds(60, 25) {
		p := randomProgram(random, 3, 12)
		data := make([]float64, 12)
		for i := range data {
			data[i] = random.NormFloat64()
		}
		run := func(early, record bool) (loss float64, grads [][]float64, peak int64) {
			b.cache.ResetPeakStats()
			tape := NewTape(b.ctx, b.rt)
			if !record {
				tape = NoGrad(b.ctx, b.rt)
			}
			var leaves []*Variable
			for i := range 3 {
				x, err := tensor.FromSlice(b.ctx, b.rt, data[4*i:4*i+4], 2, 2)
				require.NoError(t, err)
				leaves = append(leaves, tape.Leaf(x))
				require.NoError(t, x.Release())
			}
			sum := p.run(tape, leaves, early)
			require.NoError(t, tape.Err())
			if record {
				_, err := tape.Backward(sum)
				require.NoError(t, err)
				for _, l := range leaves {
					if l.Grad() != nil {
						grads = append(grads, read[float64](b, l.Grad()))
					}
				}
			}
			loss, err := tensor.Item[float64](b.ctx, sum.Value())
			require.NoError(t, err)
			require.NoError(t, tape.Close())
			require.Zero(t, b.bytes())
			return loss, grads, b.cache.MaxMemoryAllocated() - b.ownBytes
		}
		loss, grads, peak := run(false, true)
		earlyLoss, earlyGrads, earlyPeak := run(true, true)
		plainLoss, _, plainPeak := run(true, false)
		require.Equal(t, loss, earlyLoss)
		require.Equal(t, loss, plainLoss)
		require.Equal(t, grads, earlyGrads)
		assert.LessOrEqual(t, earlyPeak, peak)
		assert.LessOrEqual(t, plainPeak, peak)
	}
}
