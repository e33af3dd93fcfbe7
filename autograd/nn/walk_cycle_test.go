package nn_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/tensor"
)

// These models are outside of package nn, like those of programs, because a walk begins with the
// method only for layers of package nn.

// initializer makes an initialiser on a host device, and closes it at the end of the test.
func initializer(t testing.TB, options ...nn.InitOption) *nn.Initializer {
	t.Helper()
	rt, err := tensor.Open("host")
	require.NoError(t, err)
	in := nn.Init(context.Background(), rt, options...)
	t.Cleanup(func() {
		assert.NoError(t, in.Close())
		assert.NoError(t, rt.Close())
	})
	return in
}

// selfWalked has methods that the documentation of ParametersOf allows.
type selfWalked struct {
	Fc   *nn.Linear
	Norm *nn.BatchNorm
	Next *selfWalked
	Tied *nn.Linear
}

func (b *selfWalked) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return b.Fc.Forward(t, x)
}
func (b *selfWalked) Parameters() autograd.Parameters { return nn.ParametersOf(b) }
func (b *selfWalked) Buffers() []nn.NamedTensor       { return nn.BuffersOf(b) }

func parameterNames(ps autograd.Parameters) (names []string) {
	for _, p := range ps {
		names = append(names, p.Name)
	}
	return names
}

func tensorNames(ts []nn.NamedTensor) (names []string) {
	for _, t := range ts {
		names = append(names, t.Name)
	}
	return names
}

// TestMethodsThatWalkTheirOwnStruct: names and order are those of a struct without methods,
// wherever it is in a model, and a weight that is used twice has both names in a state dict.
func TestMethodsThatWalkTheirOwnStruct(t *testing.T) {
	in := initializer(t)
	made := func() *selfWalked {
		b := &selfWalked{Fc: in.Linear(2, 2), Norm: in.BatchNorm(2)}
		b.Tied = b.Fc
		return b
	}
	b := made()
	b.Next = made()
	one := []string{"fc.weight", "fc.bias", "norm.weight", "norm.bias"}
	want := append(one[:4:4], "next.fc.weight", "next.fc.bias", "next.norm.weight", "next.norm.bias")
	require.Equal(t, want, parameterNames(nn.ParametersOf(b)))
	require.Equal(t, want, parameterNames(b.Parameters()))
	require.Len(t, nn.BuffersOf(b), 6)
	require.Len(t, b.Buffers(), 6)

	b.Next = b
	require.Equal(t, one, parameterNames(b.Parameters()), "a struct that holds itself")
	require.Equal(t, []string{"0.fc.weight", "0.fc.bias", "0.norm.weight", "0.norm.bias"}, parameterNames(nn.Sequential{b, b}.Parameters()))
	require.Len(t, nn.Sequential{b, b}.Buffers(), 6, "a state dict has all names")
	require.Equal(t, one, parameterNames(nn.LayerOf(b).Parameters()))
	require.Equal(t, one, parameterNames(remat.Layer(b).Parameters()))

	b.Next = nil
	for prefix, model := range map[string]any{"": b, "inner.": struct{ Inner *selfWalked }{b}, "0.": nn.Sequential{b}, "by_name.a.": struct{ ByName map[string]any }{map[string]any{"a": b}}} {
		state, err := nn.StateDict(model)
		require.NoError(t, err)
		want := []string{}
		for _, name := range append(one[:4:4], "tied.weight", "tied.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked") {
			want = append(want, prefix+name)
		}
		require.Equal(t, want, tensorNames(state))
	}
}

// parent and offspring point to each other, and only the latter has a method.
type parent struct {
	Body nn.Sequential
	Gain *autograd.Parameter
}

type offspring struct {
	Fc     *nn.Linear
	Parent *parent
}

func (c *offspring) Forward(_ *autograd.Tape, x *autograd.Variable) *autograd.Variable { return x }
func (c *offspring) Parameters() autograd.Parameters                                   { return nn.ParametersOf(c) }

// left and right point to each other, and both have methods.
type left struct {
	Fc    *nn.Linear
	Right *right
}

type right struct {
	Fc, Other *nn.Linear
	A, B      *left
}

func (l *left) Parameters() autograd.Parameters { return nn.ParametersOf(l) }
func (l *left) Buffers() []nn.NamedTensor       { return nn.BuffersOf(l) }

// Parameters takes two ways back, so that each level has two below it.
func (r *right) Parameters() autograd.Parameters {
	return append(nn.ParametersOf(r), nn.ParametersOf(struct{ B *left }{r.B})...)
}
func (r *right) Buffers() []nn.NamedTensor { return nn.BuffersOf(r) }

// embedding has the methods of its embedded layer, which may be itself.
type embedding struct{ nn.Layer }

type list []any

// TestCyclesOfModels: a walk ends for each model with a cycle, with each parameter once, or with an
// error of the optimiser or tape.
func TestCyclesOfModels(t *testing.T) {
	in := initializer(t)
	p := in.Ones(1)
	c := &offspring{Fc: in.Linear(1, 1)}
	c.Parent = &parent{Body: nn.Sequential{c, nn.ReLU{}}, Gain: p}
	own := nn.Sequential{in.Linear(1, 1), nil}
	own[1] = own
	self := &embedding{}
	self.Layer = self
	wrapped := &embedding{}
	wrapped.Layer = remat.Layer(wrapped)
	slice := list{p, nil}
	slice[1] = slice
	table := map[string]any{"p": p}
	table["self"] = table
	type pointer *pointer
	var loop pointer
	loop = &loop
	var face any
	face = &face
	for name, tt := range map[string]struct {
		model any
		want  []string
	}{
		"a parent":         {c.Parent, []string{"body.0.fc.weight", "body.0.fc.bias", "body.0.parent.gain"}},
		"a child":          {c, []string{"fc.weight", "fc.bias", "parent.gain"}},
		"a Sequential":     {own, []string{"0.weight", "0.bias"}},
		"an embedded self": {self, nil},
		"a checkpointed":   {wrapped, nil},
		"a slice":          {slice, []string{"0"}},
		"a map":            {table, []string{"p"}},
		"a pointer":        {loop, nil},
		"an interface":     {&face, nil},
	} {
		require.Equal(t, tt.want, parameterNames(nn.ParametersOf(tt.model)), name)
		require.Empty(t, nn.BuffersOf(tt.model), name)
	}
	_, err := nn.StateDict(c.Parent)
	require.NoError(t, err)

	l := &left{Fc: in.Linear(1, 1)}
	l.Right = &right{Fc: in.Linear(1, 1), A: l, B: l}
	for name, model := range map[string]any{"left": l, "right": l.Right, "both": struct{ Left, Right any }{l, l.Right}} {
		ps := nn.ParametersOf(model)
		require.Len(t, ps, 1, name)
		err := optim.NewSGD(ps, optim.SGDConfig{}).Err()
		require.ErrorIs(t, err, autograd.ErrInvalid, name)
		require.ErrorContains(t, err, "call each other without end", name)
		_, err = nn.StateDict(model)
		require.ErrorContains(t, err, "call each other without end", name)
	}
	err = optim.NewSGD(wrapped.Parameters(), optim.SGDConfig{}).Err()
	require.ErrorContains(t, err, "call each other without end", "a promoted method")
	require.Empty(t, nn.BuffersOf(l))
}

// diamond reaches the next one in two ways.
type diamond struct {
	Fc          *nn.Linear
	Left, Right *diamond
}

func (d *diamond) Parameters() autograd.Parameters { return nn.ParametersOf(d) }
func (d *diamond) Buffers() []nn.NamedTensor       { return nn.BuffersOf(d) }

// TestDeepModelsAreWalkedOnce: the method of a value that a walk reaches in two ways is called
// once, so that each level of a deep model does not double the time.
func TestDeepModelsAreWalkedOnce(t *testing.T) {
	in := initializer(t)
	top := &diamond{Fc: in.Linear(1, 1)}
	for range 40 {
		top = &diamond{Fc: in.Linear(1, 1), Left: top, Right: top}
	}
	require.Len(t, top.Parameters(), 2*41)
	require.Empty(t, top.Buffers())
}

// panicking fails in its method.
type panicking struct{ Fc *nn.Linear }

func (*panicking) Parameters() autograd.Parameters { panic("mine") }

// TestWalksOfOneModel: walks in several goroutines are independent, and a panic of a method reaches
// the caller.
func TestWalksOfOneModel(t *testing.T) {
	in := initializer(t)
	b := &selfWalked{Fc: in.Linear(2, 2), Norm: in.BatchNorm(2)}
	b.Next = &selfWalked{Fc: in.Linear(2, 2), Norm: in.BatchNorm(2)}
	model := struct{ Blocks []*selfWalked }{[]*selfWalked{b, b.Next}}
	want := nn.ParametersOf(model)
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for range cap(errs) {
		wg.Go(func() {
			for range 100 {
				if got := nn.ParametersOf(model); len(got) != len(want) || got[0] != want[0] {
					errs <- fmt.Errorf("%v", parameterNames(got))
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	require.NoError(t, <-errs)
	require.PanicsWithValue(t, "mine", func() { nn.ParametersOf(struct{ P *panicking }{&panicking{}}) })
}

// selfTrained holds its own optimiser.
type selfTrained struct {
	Fc        *nn.Linear
	Adam      *optim.Adam
	Any       optim.Optimizer
	Group     *optim.Group
	Groups    []*optim.Group
	Scheduler *optim.Scheduler
	In        *nn.Initializer
	State     *autograd.Variable
	Saved     checkpoint.Checkpoint
	Plan      *remat.Plan
	Tape      *autograd.Tape
	opt       *optim.SGD
	groups    []*optim.Group
	hidden    *autograd.Variable
}

// TestAModelHoldsItsOptimizer, its schedule, its tape or a variable, which are not part of it.
func TestAModelHoldsItsOptimizer(t *testing.T) {
	in := initializer(t)
	m := &selfTrained{Fc: in.Linear(1, 1), In: in, Plan: new(remat.Plan)}
	m.Adam = nn.Own(in, optim.NewAdam(m.Fc.Parameters(), optim.AdamConfig{}))
	m.opt = nn.Own(in, optim.NewSGD(m.Fc.Parameters(), optim.SGDConfig{}))
	m.Any, m.Groups, m.Group, m.groups = m.opt, m.Adam.Groups(), m.Adam.Groups()[0], m.opt.Groups()
	scheduler, err := optim.NewScheduler(m.opt, optim.ConstantLR{})
	require.NoError(t, err)
	m.Scheduler = scheduler
	m.Saved = checkpoint.Checkpoint{Model: m, Optimizer: m.Adam}
	m.Plan.Layer("fc", m.Fc)
	for _, tape := range in.Steps(1) {
		m.Tape = tape
		m.State = tape.Param(m.Fc.Weight)
		m.hidden = m.State
		state, err := nn.StateDict(m)
		require.NoError(t, err)
		require.Equal(t, []string{"fc.weight", "fc.bias"}, tensorNames(state))
	}
	require.Equal(t, []string{"fc.weight", "fc.bias"}, parameterNames(nn.ParametersOf(m)))
}
