package autograd_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
)

// watched is a layer that sets the account's module.
type watched struct {
	nn.Layer
	a    *account
	name string
}

func (w watched) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return w.a.in(t, w.name, func() *autograd.Variable { return w.Layer.Forward(t, x) })
}

// accounted is a model, with the input and target of a step.
type accounted struct {
	model  nn.Layer
	input  func(t *autograd.Tape) *autograd.Variable
	labels []int
	class  int
}

func watchAll(a *account, layers ...nn.Layer) nn.Sequential {
	s := make(nn.Sequential, len(layers))
	for i, l := range layers {
		s[i] = watched{l, a, fmt.Sprint(i)}
	}
	return s
}

// accountedGPT has two blocks, and the embedding's weights as its last layer.
type accountedGPT struct {
	runGPT
	a *account `param:"-"`
}

func (m *accountedGPT) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	layer := func(name string, l nn.Layer, x *autograd.Variable) *autograd.Variable {
		return m.a.in(t, name, func() *autograd.Variable { return l.Forward(t, x) })
	}
	return t.Frame(func() *autograd.Variable {
		h := t.Add(layer("tok", m.Tok, x), layer("pos", m.Pos, autograd.Upload(t, []int32{0, 1, 2, 3, 4, 5, 6, 7})))
		for i, b := range m.Blocks {
			name := fmt.Sprint("blocks.", i)
			h = m.a.in(t, name, func() *autograd.Variable {
				return t.Module(name, func() *autograd.Variable {
					return t.Frame(func() *autograd.Variable {
						attended := t.SelfAttention(layer(name+".qkv", b.Qkv, layer(name+".ln1", b.Ln1, h)), 2, true, autograd.AttentionConfig{Causal: true})
						h := t.Add(h, layer(name+".proj", b.Proj, attended))
						wide := t.GELUTanh(layer(name+".fc", b.Fc, layer(name+".ln2", b.Ln2, h)))
						return t.Add(h, layer(name+".out", b.Out, wide))
					})
				})
			})
		}
		h = layer("ln", m.Ln, h)
		return m.a.in(t, "head", func() *autograd.Variable {
			return t.Module("head", func() *autograd.Variable { return t.Linear(h, t.Param(m.Tok.Weight), nil) })
		})
	})
}

func accountedModels(in *nn.Initializer, a *account) map[string]accounted {
	pictures := func(t *autograd.Tape) *autograd.Variable {
		return autograd.Upload(t, make([]float32, 8*1*12*12), 8, 1, 12, 12)
	}
	gpt := &accountedGPT{runGPT{Tok: in.Embedding(50, 16), Pos: in.Embedding(8, 16), Blocks: []*runBlock{newRunBlock(in, 16), newRunBlock(in, 16)}, Ln: in.LayerNorm(16)}, a}
	return map[string]accounted{
		"mlp": {watchAll(a, nn.Flatten{}, in.Linear(144, 300), nn.ReLU{}, in.Linear(300, 200), nn.ReLU{}, in.Linear(200, 10)), pictures, make([]int, 8), 10},
		"cnn": {watchAll(a, in.Conv2d(1, 8, 3), in.BatchNorm(8), nn.ReLU{}, in.Conv2d(8, 4, 3), nn.MaxPool2d{Kernel: []int{2}}, nn.Flatten{}, nn.Dropout{P: 0.5}, in.Linear(64, 10)),
			pictures, make([]int, 8), 10},
		"gpt": {nn.LayerOf(gpt), func(t *autograd.Tape) *autograd.Variable { return autograd.Upload(t, make([]int32, 3*8), 3, 8) }, make([]int, 24), 50},
	}
}

// TestProfileOfATraining compares the holders of memory, now and at the peak, to the byte with the
// test's own account.
func TestProfileOfATraining(t *testing.T) {
	for _, name := range []string{"mlp", "cnn", "gpt"} {
		t.Run(name, func(t *testing.T) {
			a := newAccount()
			b := tapetest.OpenObserved(t, 64<<20, a)
			in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
			model := accountedModels(in, a)[name]
			adam := nn.Own(in, optim.NewAdam(model.model.Parameters(), optim.AdamConfig{}))
			require.NoError(t, in.Err())
			defer in.Close()
			for _, p := range model.model.Parameters() {
				a.named(p.Name, p.Value())
			}
			for step, tape := range in.Steps(3) {
				a.step = int64(step + 1)
				require.Equal(t, a.step, memcache.LabelOf(tape.Context()).Step)
				a.begin(b.Cache)
				ctx, scope := b.Cache.Scope(b.Ctx, "step")
				tape.SetContext(memcache.WithStep(ctx, a.step))
				y := autograd.Upload(tape, make([]int32, len(model.labels)), len(model.labels))
				logits := model.model.Forward(tape, model.input(tape))
				if name == "gpt" {
					logits = tape.Reshape(logits, 24, 50)
				}
				loss := tape.CrossEntropy(logits, y.Value())
				if step == 0 {
					for _, buffer := range nn.BuffersOf(unwatched(model.model)) {
						a.named(buffer.Name, buffer.Tensor)
					}
				}
				a.agrees(t, b.Cache.Profile(), a.now(), "after the forward pass")
				a.backward(tape)
				_, err := tape.Backward(loss)
				require.NoError(t, err)
				a.agrees(t, b.Cache.Profile(), a.now(), "after the backward pass")
				require.NoError(t, adam.Step(tape.Context()))
				if step == 0 {
					for i, p := range adam.Parameters() {
						a.named(p.Name, adam.State(i)[0])
						a.named(p.Name, adam.State(i)[1])
					}
				}
				a.agrees(t, b.Cache.Profile(), a.now(), "after the optimiser's step")
				require.NoError(t, adam.ZeroGrad(tape.Context()))

				p := b.Cache.PeakProfile()
				require.Equal(t, b.Cache.MaxMemoryAllocated(), p.Allocated)
				require.Equal(t, a.peak, p.Allocated)
				if step > 0 { // at the first peak buffers and states had no names yet
					a.agrees(t, p, a.atPeak, "at the peak")
					a.agrees(t, scope.PeakProfile(), a.atPeak, "at the scope's peak")
				}
				scope.End()
			}
			require.NoError(t, in.Close())
			require.Equal(t, map[owner]int64{}, workless(a.now()), "what is left")
		})
	}
}

// unwatched returns the model without the layers of the account.
func unwatched(l nn.Layer) any {
	s, ok := l.(nn.Sequential)
	if !ok {
		return l
	}
	bare := make(nn.Sequential, len(s))
	for i, l := range s {
		bare[i] = l.(watched).Layer
	}
	return bare
}

// workless returns an account without the runtime's own memory.
func workless(sums map[owner]int64) map[owner]int64 {
	delete(sums, owner{category: memcache.CategoryWorkspace})
	return sums
}

// nested is a model that names a module only where its tied weights are used.
type nested struct {
	Emb    *nn.Embedding
	Blocks []nn.Sequential
	Head   *nn.Linear // Emb's weights
	Norm   *nn.BatchNorm
}

func (m *nested) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := m.Emb.Forward(t, x)
		for _, b := range m.Blocks {
			h = b.Forward(t, h)
		}
		return t.Module("head", func() *autograd.Variable { return m.Head.Forward(t, m.Norm.Forward(t, h)) })
	})
}

// TestModules tests the names of the modules of results, gradients, parameters, states and buffers.
func TestModules(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(memcache.WithModule(b.Ctx, "net"), b.RT, nn.Seed(1))
	defer in.Close()
	m := &nested{Emb: in.Embedding(30, 8), Norm: in.BatchNorm(8)}
	for range 2 {
		m.Blocks = append(m.Blocks, nn.Sequential{nn.Sequential{nn.Tanh{}, in.Linear(8, 8)}, nn.Dropout{P: 0.5}, nn.ReLU{}})
	}
	m.Head = &nn.Linear{Weight: m.Emb.Weight}

	modules := func(c memcache.Category) map[string]int64 {
		sums := map[string]int64{}
		for _, h := range b.Cache.Profile().Holdings {
			if h.Category == c {
				sums[memcache.ModulePath(h.Module)] += int64(h.Blocks)
			}
		}
		return sums
	}
	require.Equal(t, map[string]int64{"net": 10}, modules(memcache.CategoryParameter), "nobody has told them their names")
	sgd := nn.Own(in, optim.NewSGD(nn.ParametersOf(m), optim.SGDConfig{Momentum: 0.9}))
	require.NoError(t, in.Err())
	require.Equal(t, map[string]int64{"net": 3, "net.emb": 1, "net.blocks.0.0.1": 2, "net.blocks.1.0.1": 2, "net.norm": 2}, modules(memcache.CategoryParameter))
	require.NoError(t, nn.NameModules(m))
	require.Equal(t, map[string]int64{"net.emb": 1, "net.blocks.0.0.1": 2, "net.blocks.1.0.1": 2, "net.norm": 5}, modules(memcache.CategoryParameter))
	require.NoError(t, nn.NameModules(m), "again")

	for _, tape := range in.Steps(2) {
		y := m.Forward(tape, autograd.Upload(tape, []int32{1, 2, 3, 4}, 4))
		require.NoError(t, tape.Err())
		_, err := tape.Backward(tape.Sum(y))
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"net.blocks.0.0.1": 2, "net.blocks.1.0.1": 2, "net.head": 3}, modules(memcache.CategoryGradient),
			"where the program says a module, names from elsewhere don't count; tied weights have one gradient")
		require.NoError(t, sgd.Step(b.Ctx))
		require.NoError(t, sgd.ZeroGrad(b.Ctx))
	}
	require.Equal(t, map[string]int64{"emb": 1, "blocks.0.0.1": 2, "blocks.1.0.1": 2, "norm": 2}, modules(memcache.CategoryOptimizerState))

	again := nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "other.name", Parameter: m.Norm.Weight}}, optim.SGDConfig{}))
	require.NoError(t, in.Err())
	require.Equal(t, "other.name", autograd.NameOf(again.Parameters()[0].Parameter))
	require.Equal(t, map[string]int64{"net.emb": 1, "net.blocks.0.0.1": 2, "net.blocks.1.0.1": 2, "net.norm": 4, "net.other": 1},
		modules(memcache.CategoryParameter), "the last name counts")

	tape := autograd.NoGrad(memcache.WithStep(memcache.WithModule(b.Ctx, "eval"), 9), b.RT)
	y := tape.Module("", func() *autograd.Variable { return m.Forward(tape, autograd.Upload(tape, []int32{1, 2, 3, 4}, 4)) })
	require.Equal(t, memcache.Label{Module: "eval.head", Category: memcache.CategoryActivation, Step: 9}, y.Value().Label())
	other := memcache.WithTag(b.Ctx, "phase", "second")
	z := tape.Module("a", func() *autograd.Variable {
		return tape.Module("b", func() *autograd.Variable {
			tape.SetContext(other)
			return tape.Softmax(y)
		})
	})
	require.Equal(t, memcache.Label{Module: "a.b", Category: memcache.CategoryActivation, Step: 9, Tags: "phase=second"}, z.Value().Label(),
		"the step goes on where the context has none")
	require.Equal(t, memcache.Label{Category: memcache.CategoryActivation, Step: 9, Tags: "phase=second"}, tape.Softmax(z).Value().Label())
	require.Panics(t, func() { tape.Module("panics", func() *autograd.Variable { panic("at the program") }) })
	require.Empty(t, autograd.ModuleOf(tape))
	attention := in.MultiHeadAttention(4, 2)
	out := attention.Forward(tape, autograd.Upload(tape, make([]float32, 8), 2, 1, 4))
	require.Equal(t, "out_proj", out.Value().Label().Module, "a layer that was told no names has those inside of it")
	tape.Module("x", nil)
	require.ErrorIs(t, tape.Err(), autograd.ErrInvalid)
	require.ErrorIs(t, tape.Close(), autograd.ErrInvalid)
	require.Zero(t, memcache.LabelOf(other).Step)
}
