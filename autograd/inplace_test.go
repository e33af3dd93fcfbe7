package autograd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// bitsOf are a tensor's elements, to compare NaN too.
func bitsOf(b *tapetest.Bench, x *tensor.Tensor) (bits []uint64) {
	b.T.Helper()
	bits = make([]uint64, 0, x.Elements())
	switch x.Dtype() {
	case tensor.Float64:
		for _, v := range tapetest.Read[float64](b, x) {
			bits = append(bits, math.Float64bits(v))
		}
	case tensor.Float32:
		for _, v := range tapetest.Read[float32](b, x) {
			bits = append(bits, uint64(math.Float32bits(v)))
		}
	default:
		for _, v := range tapetest.Read[tensor.BF16](b, x) {
			bits = append(bits, uint64(v))
		}
	}
	return bits
}

// allocations are those that the cache has served.
func allocations(b *tapetest.Bench) int64 { return b.Cache.Stats().Allocation.All.Allocated }

// TestInPlaceOfRandomPrograms: values and gradients of operations that compute in their arguments'
// memory are bit-identical to those in new memory, on tapes that record and that don't, in float64
// and in bfloat16. Once is called on each value before its last reader.
func TestInPlaceOfRandomPrograms(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	graphs := tapetest.Rounds(400, 80)
	random := rand.New(rand.NewPCG(20, 26))
	saved := map[string]int64{}
	for i := range graphs {
		g := newGraph(random, 1+random.IntN(14))
		for _, record := range []bool{true, false} {
			for _, half := range []bool{false, true} {
				run := func(outOfPlace bool) (bits [][]uint64, made int64) {
					g.once = record || i%2 == 0
					var ts []*tensor.Tensor
					var ps []*autograd.Parameter
					var err error
					if half {
						ts, ps = g.floatTensors(b)
					} else {
						ts, err = g.tensors(b)
						require.NoError(t, err)
						ps, err = g.parameters(ts)
						require.NoError(t, err)
					}
					tape := tapetest.NewTape(b.Ctx, b.RT, record)
					autograd.SetOutOfPlace(tape, outOfPlace)
					if half {
						tape.SetComputeDtype(tensor.BFloat16)
					}
					before := allocations(b)
					vs, loss := g.forward(tape, ts, ps)
					require.NoError(t, tape.Err(), "graph %d:\n%v", i, g)
					made = allocations(b) - before
					for _, v := range vs {
						if !v.Value().Released() {
							bits = append(bits, bitsOf(b, v.Value()))
						}
					}
					if record && g.lossNeeds() != 0 {
						_, err = tape.Backward(loss)
						require.NoError(t, err, "graph %d:\n%v", i, g)
						for _, v := range vs[:len(g.leaves)] {
							if v.Grad() != nil {
								bits = append(bits, bitsOf(b, v.Grad()))
							}
						}
					}
					bits = append(bits, bitsOf(b, loss.Value()))
					require.NoError(t, tape.Close())
					require.NoError(t, releaseAll(ts, ps))
					return bits, made
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

// unnamed is a layer without parameters, of a type that is not special to a Sequential.
type unnamed struct{}

func (unnamed) Parameters() autograd.Parameters { return nil }
