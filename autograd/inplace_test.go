package autograd

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/tensor"
)

// bitsOf are a tensor's elements, to compare NaN too.
func (b *bench) bitsOf(x *tensor.Tensor) (bits []uint64) {
	b.t.Helper()
	bits = make([]uint64, 0, x.Elements())
	switch x.Dtype() {
	case tensor.Float64:
		for _, v := range read[float64](b, x) {
			bits = append(bits, math.Float64bits(v))
		}
	case tensor.Float32:
		for _, v := range read[float32](b, x) {
			bits = append(bits, uint64(math.Float32bits(v)))
		}
	default:
		for _, v := range read[tensor.BF16](b, x) {
			bits = append(bits, uint64(v))
		}
	}
	return bits
}

// allocations are those that the cache has served.
func (b *bench) allocations() int64 { return b.cache.Stats().Allocation.All.Allocated }

// TestInPlaceOfRandomPrograms: what operations compute in their arguments' memory is to the bit what they compute in memory of their own, values and
// gradients, on tapes that record and that don't, in float64 and in bfloat16, with every value that is read for the last time read once.
func TestInPlaceOfRandomPrograms(t *testing.T) {
	b := open(t, 64<<20)
	graphs := rounds(400, 80)
	random := rand.New(rand.NewPCG(20, 26))
	saved := map[string]int64{}
	for i := range graphs {
		g := newGraph(random, 1+random.IntN(14))
		for _, record := range []bool{true, false} {
			for _, half := range []bool{false, true} {
				run := func(outOfPlace bool) (bits [][]uint64, allocations int64) {
					g.once = record || i%2 == 0
					var ts []*tensor.Tensor
					var ps []*Parameter
					var err error
					if half {
						ts, ps = g.floatTensors(b)
					} else {
						ts, err = g.tensors(b)
						require.NoError(t, err)
						ps, err = g.parameters(ts)
						require.NoError(t, err)
					}
					tape := newTape(b.ctx, b.rt, record)
					tape.outOfPlace = outOfPlace
					if half {
						tape.SetComputeDtype(tensor.BFloat16)
					}
					before := b.allocations()
					vs, loss := g.forward(tape, ts, ps)
					require.NoError(t, tape.Err(), "graph %d:\n%v", i, g)
					allocations = b.allocations() - before
					for _, v := range vs {
						if !v.Value().Released() {
							bits = append(bits, b.bitsOf(v.Value()))
						}
					}
					if record && g.lossNeeds() != 0 {
						_, err = tape.Backward(loss)
						require.NoError(t, err, "graph %d:\n%v", i, g)
						for _, v := range vs[:len(g.leaves)] {
							if v.Grad() != nil {
								bits = append(bits, b.bitsOf(v.Grad()))
							}
						}
					}
					bits = append(bits, b.bitsOf(loss.Value()))
					require.NoError(t, tape.Close())
					require.NoError(t, releaseAll(ts, ps))
					return bits, allocations
				}
				want, apart := run(true)
				got, inPlace := run(false)
				require.Equal(t, want, got, "graph %d, recorded %v, bfloat16 %v:\n%v", i, record, half, g)
				require.LessOrEqual(t, inPlace, apart)
				saved[fmt.Sprintf("recorded %v, bfloat16 %v", record, half)] += apart - inPlace
			}
		}
	}
	t.Logf("allocations saved in %d programs: %v", graphs, saved)
	require.Len(t, saved, 4)
	for how, n := range saved {
		assert.Greater(t, n, int64(graphs/4), how)
	}
}

// readsTwice is a layer that reads its argument twice.
type readsTwice struct{ unnamed }

// unnamed is a layer without parameters that a Sequential knows nothing of.
type unnamed struct{}

func (unnamed) Parameters() Parameters { return nil }

func (readsTwice) Forward(t *Tape, x *Variable) *Variable {
	defer x.spare()()
	return t.Frame(func() *Variable { return t.Add(x, t.ReLU(x)) })
}

// same returns its argument.
type same struct{ unnamed }

func (same) Forward(_ *Tape, x *Variable) *Variable { return x }

// randomChain is layers of 4 numbers, and chains, checkpoints and offloads of such.
func randomChain(random *rand.Rand, in *Initializer, o *tensor.Offloader, depth int) (s Sequential) {
	for range random.IntN(6) {
		n := random.IntN(20)
		if depth == 0 && n > 14 {
			n -= 15
		}
		var l Layer
		switch {
		case n < 4:
			l = in.Linear(4, 4)
		case n < 11:
			l = []Layer{ReLU{}, LeakyReLU{}, Tanh{}, Sigmoid{}, GELU{}, Hardtanh{}, SiLU{}}[n-4]
		case n == 11:
			l = Dropout{P: 0.25}
		case n == 12:
			l = readsTwice{}
		case n == 13:
			l = same{}
		case n == 14:
			l = Flatten{}
		case n < 18:
			l = randomChain(random, in, o, depth-1)
		case n == 18:
			l = Checkpointed(randomChain(random, in, o, depth-1))
		case o == nil:
			l = Identity{}
		default:
			l = Offloaded(randomChain(random, in, o, depth-1), o)
		}
		s = append(s, l)
	}
	return s
}

// TestInPlaceOfRandomLayers: chains of layers in chains, checkpoints and offloads compute in place what they compute out of place, called and captured, in
// float32 and bfloat16, trained and used, and leave their argument as it was.
func TestInPlaceOfRandomLayers(t *testing.T) {
	b := open(t, 64<<20)
	o := b.offloader(tensor.OffloadConfig{})
	chains := 150
	if testing.Short() {
		chains = 30
	}
	random := rand.New(rand.NewPCG(20, 27))
	x := upload(b, []float32{1, -2, 3, -0.5, 0.25, 2, -3, 0}, 2, 4)
	saved := map[string]int64{}
	for k := range chains {
		in := Init(b.ctx, b.rt, Seed(uint64(k)))
		half, captured, with := k%3 == 0, k%4 == 0, o
		if captured {
			with = nil // memory stays where it is
		}
		model := randomChain(random, in, with, 3)
		params := ParametersOf(model)
		require.NoError(t, in.Err())
		run := func(outOfPlace, record bool) (bits [][]uint64, allocations int64) {
			step := func(ctx context.Context) error {
				tape := newTape(ctx, b.rt, record)
				tape.outOfPlace = outOfPlace
				tape.SetSeed(7)
				if half {
					tape.SetComputeDtype(tensor.BFloat16)
				}
				leaf := tape.Leaf(x)
				from := tape.MulScalar(leaf, 2).Keep() // an argument of an operation's making
				before := b.allocations()
				y := model.Forward(tape, from)
				allocations = b.allocations() - before
				if err := tape.Err(); err != nil {
					return err
				}
				out, argument := y.Keep().Value(), from.Value()
				if b.rt.Capturing() == nil {
					bits = append(bits, b.bitsOf(out), b.bitsOf(argument))
				}
				if record {
					if _, err := tape.Backward(tape.Sum(tape.Square(tape.Cast(y, tensor.Float32)))); err != nil {
						return err
					}
					if b.rt.Capturing() == nil {
						bits = append(bits, b.bitsOf(leaf.Grad()))
					}
				}
				return tape.Close()
			}
			if captured && record {
				graph, err := b.rt.Capture(b.ctx, step)
				require.NoError(t, err, "chain %d: %v", k, model)
				for range 2 {
					for _, p := range params {
						if p.Grad() != nil {
							require.NoError(t, b.rt.Zero(b.ctx, p.Grad()))
						}
					}
					require.NoError(t, graph.Replay(b.ctx))
				}
				for _, p := range params {
					if p.Grad() != nil {
						bits = append(bits, b.bitsOf(p.Grad()))
						require.NoError(t, p.ZeroGrad(b.ctx))
					}
				}
				require.NoError(t, graph.Close())
				return bits, allocations
			}
			require.NoError(t, step(b.ctx), "chain %d: %v", k, model)
			for _, p := range params {
				if p.Grad() != nil {
					bits = append(bits, b.bitsOf(p.Grad()))
					require.NoError(t, p.ZeroGrad(b.ctx))
				}
			}
			return bits, allocations
		}
		for _, record := range []bool{true, false} {
			want, apart := run(true, record)
			got, inPlace := run(false, record)
			require.Equal(t, want, got, "chain %d, recorded %v, bfloat16 %v, captured %v: %#v", k, record, half, captured, model)
			saved[fmt.Sprintf("recorded %v, bfloat16 %v", record, half)] += apart - inPlace
		}
		require.NoError(t, in.Close())
	}
	t.Logf("allocations saved in %d chains: %v", chains, saved)
	require.Len(t, saved, 4)
	least := int64(chains / 10)
	if cisterntest.Named() != "" { // in bfloat16 a GPU's kernels have copies of fewer operands to write into
		least = int64(chains / 15)
	}
	for how, n := range saved {
		assert.Greater(t, n, least, how)
	}
}
