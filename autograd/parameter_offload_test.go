package autograd

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// offloadedModel is a model of random widths whose layers, but for what is tied, are groups of offloaded parameters.
type offloadedModel struct {
	Embed  *Embedding
	Blocks []Layer
	Tied   *Linear // the embedding's weight, and a bias of its own
	groups []Parameters
}

type modelShape struct {
	words, width, hidden, blocks, batch int
	reset                               bool // all steps are on one tape
}

func randomShape(r *rand.Rand) modelShape {
	return modelShape{9 + r.IntN(30), 4 + 4*r.IntN(8), 5 + r.IntN(40), 2 + r.IntN(4), 3 + r.IntN(20), false}
}

func (s modelShape) make(in *Initializer, wrap func(Layer) Layer) *offloadedModel {
	m := &offloadedModel{Embed: in.Embedding(s.words, s.width)}
	m.groups = append(m.groups, m.Embed.Parameters())
	for range s.blocks {
		l := Sequential{in.LayerNorm(s.width), in.Linear(s.width, s.hidden), GELU{}, in.Linear(s.hidden, s.width), &Dropout{P: 0.1}}
		m.groups = append(m.groups, l.Parameters())
		m.Blocks = append(m.Blocks, wrap(l))
	}
	head := in.Linear(s.width, s.words)
	if in.Err() == nil {
		in.fail("Linear", head.Weight.Release())
	}
	m.Tied = &Linear{Weight: m.Embed.Weight, Bias: head.Bias}
	m.groups = append(m.groups, Parameters{{"bias", head.Bias}})
	return m
}

func (m *offloadedModel) Forward(t *Tape, x *Variable) *Variable {
	x = m.Embed.Forward(t, x)
	for _, b := range m.Blocks {
		y := t.Add(x, b.Forward(t, x))
		x.Release()
		x = y
	}
	return m.Tied.Forward(t, x)
}

// trainOffloaded trains the model, and returns losses, parameters, and what it infers at last. offload moves its groups; between runs after each step.
func (b *bench) trainOffloaded(s modelShape, half bool, make func(Parameters) (offloadingOptimizer, error), wrap func(Layer) Layer, offload func(Parameters), between func(*offloadedModel, offloadingOptimizer)) (got [][]float32) {
	b.t.Helper()
	in := Init(b.ctx, b.rt, Seed(5))
	if half {
		in = Init(b.ctx, b.rt, Seed(5), ComputeDtype(tensor.BFloat16))
	}
	m := s.make(in, wrap)
	require.NoError(b.t, in.Err())
	for _, g := range m.groups {
		offload(g)
	}
	ps := ParametersOf(m)
	opt, err := make(ps)
	require.NoError(b.t, err)
	ids, labels := upload(b, ramp32(s.batch, s.words, 5)), upload(b, ramp32(s.batch, s.words, 7))
	end := (*Tape).Close
	n := rounds(4, 2)
	steps := in.Steps(n)
	if s.reset {
		kept := NewTape(b.ctx, b.rt)
		end = func(*Tape) error { return kept.Reset(b.ctx) }
		steps = func(yield func(int, *Tape) bool) {
			for i := range n {
				kept.SetSeed(in.rand.Uint64())
				kept.SetComputeDtype(in.compute)
				if !yield(i, kept) {
					break
				}
			}
			require.NoError(b.t, kept.Close())
		}
	}
	for _, tape := range steps {
		loss := tape.CrossEntropy(m.Forward(tape, tape.Input(ids)), labels)
		_, err := tape.Backward(loss)
		require.NoError(b.t, err)
		norm, err := ps.ClipGradNorm(b.ctx, 0.5)
		require.NoError(b.t, err)
		require.NoError(b.t, norm.Release())
		require.NoError(b.t, opt.Step(b.ctx))
		require.NoError(b.t, opt.ZeroGrad(b.ctx))
		got = append(got, []float32{float32(loss.Item())})
		require.NoError(b.t, end(tape))
		between(m, opt)
	}
	for _, p := range ps {
		got = append(got, b.wherever(p.Value()))
	}
	got = append(got, b.infer(m, ids, half))
	require.NoError(b.t, opt.Close())
	require.NoError(b.t, in.Close())
	return got
}

func ramp32(n, below, step int) []int32 {
	data := make([]int32, n)
	for i := range data {
		data[i] = int32(i * step % below)
	}
	return data
}

// infer is the model's result on a tape of NoGrad.
func (b *bench) infer(model Forwarder, x *tensor.Tensor, half bool) []float32 {
	b.t.Helper()
	tape := NoGrad(b.ctx, b.rt)
	if half {
		tape.SetComputeDtype(tensor.BFloat16)
	}
	y := tape.Cast(model.Forward(tape, tape.Input(x)), tensor.Float32).Keep()
	require.NoError(b.t, tape.Err())
	got := read[float32](b, y.Value())
	require.NoError(b.t, tape.Close())
	return got
}

// wherever is the elements of a float32, on the device or not.
func (b *bench) wherever(x *tensor.Tensor) []float32 {
	b.t.Helper()
	var w bytes.Buffer
	require.NoError(b.t, tensor.WriteBytes(b.ctx, x, &w))
	xs := make([]float32, x.Elements())
	require.NoError(b.t, binary.Read(&w, binary.NativeEndian, xs))
	return xs
}

// TestOffloadOfParameters: losses and parameters are those without, to the bit, with every optimiser, of random shapes, in float32 and bfloat16, with
// checkpoints around the layers and with offloaded activations, with tied weights; between the steps no parameter is on the device.
func TestOffloadOfParameters(t *testing.T) {
	b := open(t, 256<<20)
	random := rand.New(rand.NewPCG(7, 8))
	optimizers := map[string]func(Parameters) (offloadingOptimizer, error){
		"SGD": func(ps Parameters) (offloadingOptimizer, error) { return NewSGD(ps, SGDConfig{LR: new(0.1)}) },
		"frozen": func(ps Parameters) (offloadingOptimizer, error) {
			ps[2:6].SetRequiresGrad(false)
			return NewAdam(ps, AdamConfig{LR: new(0.01)})
		},
	}
	maps.Copy(optimizers, stateful)
	wraps := map[string]func(*tensor.Offloader, Layer) Layer{
		"plain":        func(_ *tensor.Offloader, l Layer) Layer { return l },
		"checkpointed": func(_ *tensor.Offloader, l Layer) Layer { return Checkpointed(l) },
		"offloaded":    func(o *tensor.Offloader, l Layer) Layer { return Offloaded(l, o) },
	}
	for name, make := range optimizers {
		shape := randomShape(random)
		for _, half := range []bool{false, true} {
			want := b.trainOffloaded(shape, half, make, func(l Layer) Layer { return l }, func(Parameters) {}, func(*offloadedModel, offloadingOptimizer) {})
			for kind, wrap := range wraps {
				if name != "AdamW" && kind != "plain" {
					continue
				}
				for _, ahead := range []int{-1, 1} {
					if testing.Short() && name != "AdamW" && half != (ahead > 0) { // AdamW has all
						continue
					}
					shape := shape
					shape.reset = ahead > 0 != half
					what := fmt.Sprintf("%s, %+v, bfloat16 %v, ahead %d, %s", name, shape, half, ahead, kind)
					o := b.offloader(tensor.OffloadConfig{Ahead: ahead})
					got := b.trainOffloaded(shape, half, make, func(l Layer) Layer { return wrap(o, l) }, func(ps Parameters) {
						require.NoError(t, ps.Offload(b.ctx, o))
					}, func(m *offloadedModel, opt offloadingOptimizer) {
						for _, p := range ParametersOf(m) {
							require.True(t, p.Value().Offloaded(), "%s: %s", what, p.Name)
						}
					})
					require.Equal(t, want, got, what)
					require.Equal(t, ahead > 0, o.Stats().Prefetched > 0, what)
					require.Positive(t, o.Stats().Unchanged, what)
				}
			}
		}
	}
}
