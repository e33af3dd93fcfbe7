package nn_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestNamesThatChange: a layer is one module, whichever part of the model was named first.
func TestNamesThatChange(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(memcache.WithModule(b.Ctx, "net"), b.RT, nn.Seed(1))
	defer in.Close()
	norm := in.BatchNorm(4)
	backbone := nn.Sequential{in.Linear(4, 4), norm}
	model := nn.Sequential{nn.ReLU{}, backbone, in.Linear(4, 2)}
	all := []*tensor.Tensor{norm.Weight.Value(), norm.Bias.Value(), norm.Mean, norm.Var, norm.Batches}
	is := func(module string) {
		for _, one := range all {
			require.Equal(t, memcache.Label{Module: module, Category: memcache.CategoryParameter}, one.Label())
		}
	}
	require.NoError(t, in.Err())
	require.NoError(t, nn.NameModules(backbone))
	is("net.1 (BatchNorm)")
	require.NoError(t, nn.NameModules(model))
	is("net.1.1 (BatchNorm)")
	require.NoError(t, nn.NameModules(backbone))
	is("net.1 (BatchNorm)")
	nn.Own(in, optim.NewSGD(model.Parameters(), optim.SGDConfig{}))
	require.NoError(t, in.Err())
	tape := autograd.NoGrad(memcache.WithModule(b.Ctx, "net"), b.RT)
	y := model.Forward(tape, autograd.Upload(tape, make([]float32, 8), 2, 4))
	require.Equal(t, "net.2 (Linear)", y.Value().Label().Module)
	is("net.1.1 (BatchNorm)")
	nn.Own(in, optim.NewSGD(backbone.Parameters(), optim.SGDConfig{}))
	require.NoError(t, in.Err())
	backbone.Forward(tape, autograd.Upload(tape, make([]float32, 8), 2, 4))
	require.NoError(t, tape.Err())
	is("net.1 (BatchNorm)")
	require.NoError(t, tape.Close())

	lone, err := b.RT.Zeros(b.Ctx, tensor.Float32, 1)
	require.NoError(t, err)
	require.NoError(t, nn.NameBuffer(lone, "part.count", "Part"))
	require.Equal(t, memcache.Label{Module: "part (Part)", Category: memcache.CategoryParameter}, lone.Label())
	require.NoError(t, nn.NameBuffer(lone, "count", ""))
	require.Equal(t, memcache.Label{Category: memcache.CategoryParameter}, lone.Label())
	require.NoError(t, lone.Release())
	require.NoError(t, nn.NameBuffer(lone, "part.count", "Part"), "what was released has no name")
}

// TestForgottenBuffers: the record of a buffer's module is deleted with the buffer.
func TestForgottenBuffers(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	remembered := func() (n int) {
		nn.ModulesBefore.Range(func(any, any) bool { n++; return true })
		return n
	}
	var most int
	func() {
		for range 100 {
			x, err := b.RT.Zeros(b.Ctx, tensor.Float32, 1)
			require.NoError(t, err)
			require.NoError(t, nn.NameBuffer(x, "part.count", "Part"))
			require.NoError(t, x.Release())
		}
		most = remembered()
	}()
	require.GreaterOrEqual(t, most, 1)
	for remembered() > most/2 {
		runtime.GC()
		runtime.Gosched()
	}
}

// TestModulesOfTiedWeights tests layers with another layer's weights, which the program calls
// outside of any module.
func TestModulesOfTiedWeights(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	defer in.Close()
	m := &struct {
		Emb  *nn.Embedding
		A, B nn.Sequential
		Head *nn.Linear
	}{Emb: in.Embedding(8, 8), A: nn.Sequential{in.Linear(8, 8)}, Head: in.Linear(8, 8)}
	tied := &nn.Linear{Weight: m.A[0].(*nn.Linear).Weight}
	m.B = nn.Sequential{nn.ReLU{}, nn.Sequential{tied, in.Linear(8, 8)}}
	own := m.Head.Weight
	m.Head.Weight = m.Emb.Weight
	require.NoError(t, own.Release())
	require.NoError(t, in.Err())
	require.NoError(t, nn.NameModules(m))

	tape := autograd.NoGrad(b.Ctx, b.RT)
	x := func() *autograd.Variable { return autograd.Upload(tape, make([]float32, 16), 2, 8) }
	module := func(y *autograd.Variable) string {
		require.NoError(t, tape.Err())
		return y.Value().Label().Module
	}
	require.Equal(t, "a.0 (Linear)", module(m.A.Forward(tape, x())))
	require.Equal(t, "b.1.1 (Linear)", module(m.B.Forward(tape, x())), "by the first parameter of its own")
	require.Equal(t, "head (Linear)", module(m.Head.Forward(tape, x())), "by its bias")
	require.Equal(t, "", module(nn.Sequential{m.Head, nn.Softmax{}}.Forward(tape, x())), "a chain that has no place in the model")
	require.NoError(t, tape.Close())
}

// TestModuleOfAWholeModel: a model's own allocations have its type as module, and its layers have
// their paths.
func TestModuleOfAWholeModel(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	defer in.Close()
	net := &branches{t: t, module: "run (branches)", List: []nn.Layer{in.Linear(4, 4)}, listed: []string{"run.list.0 (Linear)"},
		Map: map[string]nn.Layer{"x": in.Linear(4, 4)}, mapped: "run.map.x (Linear)", Last: in.Linear(4, 4), last: "run.last (Linear)"}
	chain := nn.Sequential{in.Linear(4, 4), nn.GELU{}}
	require.NoError(t, in.Err())
	require.NoError(t, nn.NameModules(net))
	require.NoError(t, nn.NameModules(chain))
	tape := autograd.NewTape(memcache.WithModule(b.Ctx, "run"), b.RT)
	x := autograd.Upload(tape, make([]float32, 8), 2, 4)
	requireModule(t, tape, nn.LayerOf(net).Forward(tape, x), "run (branches)")
	requireModule(t, tape, chain.Forward(tape, x), "run.1 (GELU)")
	require.NoError(t, tape.Close())
	require.Equal(t, "0 (Linear)", chain[0].(*nn.Linear).Weight.Value().Label().Module)
}
