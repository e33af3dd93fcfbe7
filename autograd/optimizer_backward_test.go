package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// minimizePlan is a random training.
type minimizePlan struct {
	seed              uint64
	kind              string
	optimizer         string
	half, checkpoints bool
	offload, parked   bool // activations, and the optimiser's state, are in pinned memory
	accumulate        bool // an earlier tape leaves gradients
	frozen            bool // a parameter, in some steps
	graph             bool
	schedule          Schedule
	piece             int64
}

func newMinimizePlan(r *rand.Rand, i int) minimizePlan {
	models := []string{"mlp", "cnn", "resnet", "gpt"}
	names := []string{"SGD", "momentum", "Adam", "AdamW", "RMSprop", "Adagrad"}
	p := minimizePlan{seed: r.Uint64(), kind: models[i%len(models)], optimizer: names[i%len(names)], half: r.IntN(3) == 0, checkpoints: r.IntN(2) == 0,
		offload: r.IntN(4) == 0, parked: r.IntN(4) == 0, accumulate: r.IntN(4) == 0}
	p.graph = !p.offload && !p.parked && r.IntN(2) == 0
	p.frozen = !p.graph && r.IntN(3) == 0
	if r.IntN(2) == 0 {
		p.schedule = StepLR{Size: 2}
	}
	p.piece = []int64{1, 300, 2000, 8000, 0}[r.IntN(5)]
	return p
}

// minimized is a training by such a plan.
type minimized struct {
	captured
	minimizePlan
	extra  *Parameter // which no tape reads
	rows   int
	input  []int
	tokens bool
	labels int // of a row
	class  int
}

func (p minimizePlan) begin(b *bench, off *tensor.Offloader) *minimized {
	m := &minimized{minimizePlan: p, rows: 4}
	dtype := tensor.Float32
	if p.half {
		dtype = tensor.BFloat16
	}
	in := Init(b.ctx, b.rt, Seed(p.seed), ComputeDtype(dtype))
	apart := func(l Layer) Layer {
		if p.checkpoints {
			l = Checkpointed(l)
		}
		if p.offload {
			l = Offloaded(l, off)
		}
		return l
	}
	var model Layer
	m.labels, m.class = 1, 5
	switch p.kind {
	case "mlp":
		m.input = []int{12}
		model = Sequential{apart(Sequential{in.Linear(12, 30), ReLU{}, in.LayerNorm(30)}), apart(Sequential{in.Linear(30, 20), Dropout{P: 0.3}, Tanh{}}), in.Linear(20, 5)}
	case "cnn":
		m.input = []int{1, 8, 8}
		model = Sequential{apart(Sequential{in.Conv2d(1, 4, 3), ReLU{}}), apart(Sequential{in.Conv2d(4, 6, 3), ReLU{}, MaxPool2d{Kernel: []int{2}}}), Flatten{}, in.Linear(24, 5)}
	case "resnet":
		m.input = []int{2, 6, 6}
		sizes := map[string][]int{"c0.weight": {4, 2, 3, 3}, "c1.weight": {4, 4, 3, 3}, "c2.weight": {4, 4, 3, 3}, "b0.weight": {4}, "b1.weight": {4}, "b2.weight": {4}, "fc.weight": {5, 4}}
		model = apart(newRunResNet(in, func(name string) []int { return sizes[name] }).(*runResNet).layer())
	default:
		size := gptSize{layers: 2, heads: 2, width: 8, steps: 6, vocabulary: 11}
		m.input, m.tokens, m.labels, m.class = []int{6}, true, 6, 11
		var o *tensor.Offloader
		if p.offload {
			o = off
		}
		model = LayerOf(size.model(in, gptRun{checkpointed: p.checkpoints}, o))
	}
	m.captured = captured{b: b, in: in, model: model}
	m.extra = b.parameter(3)
	params := append(ParametersOf(model), Named{"extra", m.extra})
	var first, second Parameters // groups
	for i, p := range params {
		if i%3 == 1 {
			second = append(second, p)
		} else {
			first = append(first, p)
		}
	}
	var err error
	switch p.optimizer {
	case "SGD", "momentum":
		cfg := SGDConfig{LR: new(0.1)}
		if p.optimizer == "momentum" {
			cfg.Momentum, cfg.Dampening = 0.9, 0.2
		}
		o := in.SGD(first, cfg)
		cfg.LR, cfg.WeightDecay = new(0.03), 0.1
		m.opt, err = o, o.AddGroup(second, cfg)
	case "Adam", "AdamW":
		make := in.Adam
		if p.optimizer == "AdamW" {
			make = in.AdamW
		}
		o := make(first, AdamConfig{LR: new(0.01), AMSGrad: true})
		m.opt, err = o, o.AddGroup(second, AdamConfig{LR: new(0.02), WeightDecay: new(0.1), Maximize: true})
	case "RMSprop":
		var o *RMSprop
		o, err = NewRMSprop(first, RMSpropConfig{Centered: true})
		require.NoError(b.t, err)
		m.opt, err = o, o.AddGroup(second, RMSpropConfig{Momentum: 0.5})
	default:
		var o *Adagrad
		o, err = NewAdagrad(first, AdagradConfig{LRDecay: 0.1})
		require.NoError(b.t, err)
		m.opt, err = o, o.AddGroup(second, AdagradConfig{InitialAccumulatorValue: 0.1})
	}
	require.NoError(b.t, errors.Join(err, in.Err()))
	if p.schedule != nil {
		m.scheduler, err = NewScheduler(m.opt, p.schedule)
		require.NoError(b.t, err)
	}
	if p.parked {
		require.NoError(b.t, m.opt.(offloadingOptimizer).OffloadState(b.ctx, off, 700))
	}
	return m
}

func (m *runResNet) layer() Layer { return LayerOf(m) }

// data is a batch.
func (m *minimized) data(r *rand.Rand) (x, y *tensor.Tensor) {
	n := m.rows * elements(m.input)
	labels := make([]int32, m.rows*m.labels)
	for i := range labels {
		labels[i] = int32(r.IntN(m.class))
	}
	y = upload(m.b, labels)
	shape := append([]int{m.rows}, m.input...)
	if m.tokens {
		tokens := make([]int32, n)
		for i := range tokens {
			tokens[i] = int32(r.IntN(m.class))
		}
		return upload(m.b, tokens, shape...), y
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(r.NormFloat64())
	}
	return upload(m.b, values, shape...), y
}

// step is one step, of Minimize or in the backward pass. The loss is the caller's.
func (m *minimized) step(ctx context.Context, x, y *tensor.Tensor, inBackward bool) (loss *tensor.Tensor, err error) {
	forward := func(tape *Tape) *Variable {
		tape.SetContext(ctx)
		logits := m.model.Forward(tape, tape.Input(x))
		return tape.CrossEntropy(tape.Reshape(logits, -1, m.class), y)
	}
	if m.accumulate {
		for _, tape := range m.in.Steps(1) {
			_, err = tape.Backward(tape.MulScalar(forward(tape), 0.5))
		}
	}
	for _, tape := range m.in.Steps(1) {
		l := forward(tape)
		if inBackward {
			tape.MinimizeInBackward(l, m.opt, m.piece)
		} else {
			tape.Minimize(l, m.opt)
		}
		if err = errors.Join(err, tape.Err()); err == nil {
			loss, err = m.b.rt.Copy(ctx, l.Value())
		}
	}
	if m.scheduler != nil {
		err = errors.Join(err, m.scheduler.Step())
	}
	return loss, errors.Join(err, m.in.Err())
}

// bits is all that the steps change, to the bit; offloaded state is brought in to be read.
func (m *minimized) bits() []uint32 {
	s, err := optimizerStateOf(m.opt)
	require.NoError(m.b.t, err)
	all := make([]int, len(s.params))
	for i := range all {
		all[i] = i
	}
	if m.parked {
		require.NoError(m.b.t, s.fetch(m.b.ctx, all))
	}
	bits := m.state()
	require.NoError(m.b.t, s.park(m.b.ctx, all))
	for _, g := range ParametersOf(m.model) {
		require.Nil(m.b.t, g.Grad(), g.Name)
	}
	return bits
}

// TestMinimizeInBackwardIsMinimize, to the bit: losses, parameters, buffers, the optimiser's state, step counts and rates of random trainings, called and replayed, and
// nothing is left that Minimize does not leave.
func TestMinimizeInBackwardIsMinimize(t *testing.T) {
	plans := rounds(72, 12) // 12 have every model with optimisers, and every option
	b := open(t, 256<<20)
	b.needsHost("the models' sums are compared between eager steps and graphs of other pieces")
	for i := range plans {
		r := rand.New(rand.NewPCG(uint64(i), 24))
		p := newMinimizePlan(r, i)
		off := b.offloader(tensor.OffloadConfig{Ahead: 2 * r.IntN(2)})
		plain, early := p.begin(b, off), p.begin(b, off)
		trainings := []*minimized{plain, early}
		what := fmt.Sprintf("plan %d %+v", i, p)
		var graph *tensor.Graph
		var replayed *minimized
		var x, y, loss *tensor.Tensor
		if p.graph {
			replayed = p.begin(b, off)
			trainings = append(trainings, replayed)
			require.NoError(t, replayed.opt.Prepare(b.ctx))
			x, y = replayed.data(r)
			var err error
			graph, err = b.rt.Capture(b.ctx, func(ctx context.Context) (err error) {
				loss, err = replayed.step(ctx, x, y, true)
				return err
			})
			require.NoError(t, err, what)
		}
		for step := range rounds(5, 3) {
			seed := r.Uint64()
			batch := func() *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }
			if p.frozen {
				for _, m := range trainings {
					ps := ParametersOf(m.model)
					ps[len(ps)/2].SetRequiresGrad(step%2 == 0)
				}
			}
			run := func(m *minimized, inBackward bool) uint32 {
				x, y := m.data(batch())
				loss, err := m.step(b.ctx, x, y, inBackward)
				require.NoError(t, err, "%s, step %d, in backward: %v", what, step, inBackward)
				v, err := tensor.Item[float32](b.ctx, loss)
				require.NoError(t, errors.Join(err, loss.Release()))
				return math.Float32bits(v)
			}
			want := run(plain, false)
			state := plain.bits()
			live := b.live()
			require.Equal(t, want, run(early, true), "%s, step %d", what, step)
			require.Equal(t, state, early.bits(), "%s, step %d", what, step)
			if step > 0 {
				require.Equal(t, live, b.live()-2, "%s, step %d: two tensors of the batch", what, step)
			}
			if graph == nil {
				continue
			}
			newX, newY := replayed.data(batch())
			require.NoError(t, errors.Join(b.rt.CopyInPlace(b.ctx, x, newX), b.rt.CopyInPlace(b.ctx, y, newY), graph.Replay(b.ctx)))
			v, err := tensor.Item[float32](b.ctx, loss)
			require.NoError(t, err)
			require.Equal(t, want, math.Float32bits(v), "%s, step %d, replayed", what, step)
			require.Equal(t, state, replayed.bits(), "%s, step %d, replayed", what, step)
		}
		require.NoError(t, errors.Join(graph.Close(), loss.Release()))
		for _, m := range trainings {
			require.NoError(t, errors.Join(m.opt.Close(), m.in.Close()))
		}
	}
}

// TestMinimizeInBackwardWaitsForReaders: a parameter whose value is read by a step to come, in whatever way, is updated behind it.
func TestMinimizeInBackwardWaitsForReaders(t *testing.T) {
	b := open(t, 64<<20)
	labels := upload(b, []int32{1, 0})
	// The last operation is the only one that gives p a gradient; q's comes last, and takes p's value.
	late := func(first func(tape *Tape, p *Parameter, q *Variable) *Variable) func(tape *Tape, p, q *Parameter) *Variable {
		return func(tape *Tape, p, q *Parameter) *Variable {
			h := tape.Square(first(tape, p, tape.Square(tape.Param(q))))
			return tape.Sum(tape.Mul(h, tape.Param(p)))
		}
	}
	for name, f := range map[string]func(tape *Tape, p, q *Parameter) *Variable{
		"used twice": late(func(tape *Tape, p *Parameter, q *Variable) *Variable { return tape.Mul(q, tape.Param(p)) }),
		"times itself": func(tape *Tape, p, q *Parameter) *Variable {
			h := tape.Tanh(tape.Param(q))
			return tape.Sum(tape.Add(h, tape.Mul(tape.Param(p), tape.Param(p))))
		},
		"by its own step": func(tape *Tape, p, q *Parameter) *Variable {
			return tape.Sum(tape.Linear(tape.Square(tape.Param(q)), tape.Param(p), nil))
		},
		"detached": late(func(tape *Tape, p *Parameter, q *Variable) *Variable { return tape.Mul(q, tape.Detach(tape.Param(p))) }),
		"an input": late(func(tape *Tape, p *Parameter, q *Variable) *Variable { return tape.Mul(q, tape.Input(p.Value())) }),
		"a view": late(func(tape *Tape, p *Parameter, q *Variable) *Variable {
			return tape.Mul(q, tape.Reshape(tape.Param(p), 2, 2))
		}),
		"in a checkpoint": late(func(tape *Tape, p *Parameter, q *Variable) *Variable {
			return tape.Checkpoint(func() *Variable { return tape.Mul(q, tape.Param(p)) })
		}),
		"detached in a checkpoint": late(func(tape *Tape, p *Parameter, q *Variable) *Variable {
			return tape.Checkpoint(func() *Variable { return tape.Mul(q, tape.Detach(tape.Param(p))) })
		}),
		"an input in a checkpoint": late(func(tape *Tape, p *Parameter, q *Variable) *Variable {
			return tape.Checkpoint(func() *Variable { return tape.Mul(q, tape.Input(p.Value())) })
		}),
		"an input in checkpoints": late(func(tape *Tape, p *Parameter, q *Variable) *Variable {
			return tape.Checkpoint(func() *Variable {
				return tape.Mul(q, tape.Checkpoint(func() *Variable { return tape.Mul(q, tape.Input(p.Value())) }))
			})
		}),
		"weights of a loss": late(func(tape *Tape, p *Parameter, q *Variable) *Variable {
			return tape.BCEWithLogits(q, tape.Detach(q), tensor.Weight(p.Value()), tensor.ReduceNone)
		}),
		"weights of a loss in a checkpoint": late(func(tape *Tape, p *Parameter, q *Variable) *Variable {
			return tape.Checkpoint(func() *Variable {
				return tape.BCEWithLogits(q, tape.Detach(q), tensor.Weight(p.Value()), tensor.ReduceNone)
			})
		}),
		"weights of classes in a checkpoint": func(tape *Tape, p, q *Parameter) *Variable {
			h := tape.Checkpoint(func() *Variable {
				row, err := b.rt.Rows(b.ctx, p.Value(), 0, 1)
				require.NoError(t, err)
				defer row.Release()
				weights, err := b.rt.Reshape(b.ctx, row, 2)
				require.NoError(t, err)
				defer weights.Release()
				return tape.CrossEntropy(tape.Square(tape.Param(q)), labels, tensor.Weight(weights))
			})
			return tape.Sum(tape.Mul(tape.Square(h), tape.Param(p)))
		},
		"as a gradient": func(tape *Tape, p, q *Parameter) *Variable {
			u := tape.Square(tape.Param(q))
			s := tape.Square(tape.Param(p))
			z := tape.Func("Weighted", []*Variable{u}, func(c *Call) (*tensor.Tensor, error) {
				own, err := c.Runtime().Share(c.Context(), p.Value())
				if err != nil {
					return nil, err
				}
				c.Save(own)
				return c.Runtime().Mul(c.Context(), c.Input(0), own)
			}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
				return c.Grads(c.Runtime().Share(c.Context(), c.Saved()[0]))
			})
			return tape.Sum(tape.Add(z, s))
		},
	} {
		for _, half := range []bool{false, true} {
			train := func(piece int64) (values [][]float64) {
				p, q := b.matrix(half, 1), b.matrix(half, 3)
				defer func() { require.NoError(t, errors.Join(p.Release(), q.Release())) }()
				opt, err := NewSGD(Parameters{{"p", p}, {"q", q}}, SGDConfig{LR: new(0.125)})
				require.NoError(t, err)
				for range 2 {
					tape := NewTape(b.ctx, b.rt)
					if half {
						tape.SetComputeDtype(tensor.BFloat16)
					}
					loss := f(tape, p, q)
					if piece > 0 {
						tape.MinimizeInBackward(loss, opt, piece)
					} else {
						tape.Minimize(loss, opt)
					}
					require.NoError(t, tape.Close(), "%s, in pieces of %d bytes", name, piece)
				}
				require.NoError(t, opt.Close())
				return [][]float64{b.widened(p.Value()), b.widened(q.Value())}
			}
			if half && slices.Contains([]string{"as a gradient", "weights of a loss", "weights of a loss in a checkpoint", "weights of classes in a checkpoint"}, name) {
				continue // dtypes that these don't mix
			}
			want := train(0)
			for _, piece := range []int64{1, 12, 40} { // less and more than a parameter
				require.Equal(t, want, train(piece), "%s, in pieces of %d bytes, bfloat16: %v", name, piece, half)
			}
		}
	}
}

// matrix is a parameter of (2, 2), of float64 or, for half, float32.
func (b *bench) matrix(half bool, from float64) *Parameter {
	b.t.Helper()
	dtype := tensor.Float64
	if half {
		dtype = tensor.Float32
	}
	x, err := b.rt.Full(b.ctx, from, dtype, 2, 2)
	require.NoError(b.t, err)
	p, err := NewParameter(x)
	require.NoError(b.t, err)
	return p
}

// widened is what a tensor of float32 or float64 holds.
func (b *bench) widened(x *tensor.Tensor) (all []float64) {
	if x.Dtype() == tensor.Float64 {
		return read[float64](b, x)
	}
	for _, v := range read[float32](b, x) {
		all = append(all, float64(v))
	}
	return all
}
