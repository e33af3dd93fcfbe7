package nn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

type hidden struct{ Fc *nn.Linear }

// hiddenLayer is an unexported type with a method.
type hiddenLayer struct{ Fc *nn.Linear }

func (h hiddenLayer) Parameters() autograd.Parameters { return h.Fc.Parameters() }

type (
	nestedSlices    []nestedSlices
	nestedMaps      map[string]nestedMaps
	nestedPointers  *nestedPointers
	nestedArrays    [2]*nestedArrays
	nestedFunctions func() nestedFunctions
)

type couple[T any] struct{ A, B T }

// withoutLayer promotes the methods of a layer that is nil.
type withoutLayer struct {
	nn.Layer
	Fc *nn.Linear
}

// outer promotes those of withoutLayer.
type outer struct{ *withoutLayer }

// fickle removes the layers after it when its method is called.
type fickle struct {
	list *[]any
	fc   *nn.Linear `param:"-"`
}

func (f *fickle) Parameters() autograd.Parameters {
	*f.list = nil
	return f.fc.Parameters()
}

// uses returns the error of an optimiser or a tape that uses a model's parameters.
func uses(model any) error {
	nn.BuffersOf(model)
	nn.LayerOf(nil).Parameters()
	optimiser := optim.NewSGD(nn.ParametersOf(model), optim.SGDConfig{}).Err()
	_, state := nn.StateDict(model)
	if optimiser != nil {
		return optimiser
	}
	return state
}

type nilWrapper struct{ *nn.Wrapped }

// TestModelsThatAttack: no model makes the walk panic or hang, and a parameter that would be lost
// is an error.
func TestModelsThatAttack(t *testing.T) {
	in := initializer(t)
	fc := in.Linear(1, 1)
	param := in.Ones(1)
	mean := in.Tensor([]float64{1}, 1)
	list := []any{nil, in.Linear(1, 1), in.Linear(1, 1)}
	list[0] = &fickle{list: &list, fc: fc}
	selfish := new(nestedPointers)
	*selfish = nestedPointers(selfish)
	ring := &nestedArrays{}
	ring[0], ring[1] = ring, ring
	for name, tt := range map[string]struct {
		model any
		want  []string
		err   string
	}{
		"an embedded struct with a tag": {model: struct {
			hidden `param:"in"`
		}{hidden{fc}}, want: []string{"in.fc.weight", "in.fc.bias"}},
		"an embedded layer": {model: struct{ hiddenLayer }{hiddenLayer{fc}}, want: []string{"fc.weight", "fc.bias"}},
		"an embedded layer with a tag": {model: &struct {
			hiddenLayer `param:"in"`
		}{hiddenLayer{fc}}, want: []string{"in.fc.weight", "in.fc.bias"}},
		"an embedded pointer": {model: struct{ *hidden }{&hidden{fc}}, want: []string{"fc.weight", "fc.bias"}},
		"an embedded pointer with a tag": {model: struct {
			*hidden `param:"in"`
		}{&hidden{fc}}, want: []string{"in.fc.weight", "in.fc.bias"}},
		"an embedded nil pointer":                     {model: struct{ *hidden }{}},
		"slices of slices":                            {model: struct{ S nestedSlices }{nestedSlices{nil, {}}}},
		"slices of slices that are not exported":      {model: struct{ s nestedSlices }{nestedSlices{nil}}},
		"maps of maps":                                {model: struct{ m nestedMaps }{nestedMaps{"a": nil}}},
		"pointers to pointers":                        {model: struct{ P nestedPointers }{*selfish}},
		"pointers to pointers that are not exported":  {model: struct{ p nestedPointers }{*selfish}},
		"arrays of arrays":                            {model: struct{ A, b *nestedArrays }{ring, ring}},
		"functions of functions":                      {model: struct{ F, g nestedFunctions }{}},
		"a generic type":                              {model: couple[couple[*nn.Linear]]{B: couple[*nn.Linear]{A: fc}}, want: []string{"b.a.weight", "b.a.bias"}},
		"a nil layer that is embedded":                {model: struct{ W withoutLayer }{withoutLayer{Fc: fc}}, err: "embeds a nil"},
		"a nil layer that is embedded in a pointer":   {model: struct{ W *withoutLayer }{&withoutLayer{Fc: fc}}, err: "embeds a nil"},
		"a nil layer that is embedded in another one": {model: struct{ O any }{outer{&withoutLayer{Fc: fc}}}, err: "embeds a nil"},
		"a nil pointer that promotes":                 {model: struct{ O outer }{}, err: "embeds a nil"},
		"a nil wrapper that is embedded":              {model: struct{ W nilWrapper }{}, err: "embeds a nil"},
		"a list that changes":                         {model: &list, want: []string{"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}},
		"a parameter by value":                        {model: struct{ P autograd.Parameter }{}, err: "want a *Parameter"},
		"a buffer that is not exported": {model: struct {
			Fc   *nn.Linear
			mean *tensor.Tensor `buffer:"mean"`
		}{fc, mean}, err: "the field mean is not exported"},
		"pointers to a parameter": {model: struct{ P ***autograd.Parameter }{pointer(pointer(param))}, want: []string{"p"}},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.err != "" {
				require.ErrorIs(t, uses(tt.model), autograd.ErrInvalid)
				require.ErrorContains(t, uses(tt.model), tt.err)
				return
			}
			require.Equal(t, tt.want, parameterNames(nn.ParametersOf(tt.model)))
			require.NotPanics(t, func() { _ = uses(tt.model) })
		})
	}
	require.NoError(t, mean.Release())
}

func pointer[T any](v T) *T { return &v }

type chain struct {
	P    *autograd.Parameter
	Next *chain
	Any  any
}

// TestDeepModels: a chain is walked to the limit of depth. A deeper one is an error, and not a
// stack overflow.
func TestDeepModels(t *testing.T) {
	in := initializer(t)
	made := func(depth int, link func(c, next *chain)) *chain {
		top := &chain{P: in.Ones(1)}
		for range depth - 1 {
			c := &chain{}
			link(c, top)
			top = c
		}
		return top
	}
	pointers := func(c, next *chain) { c.Next = next }
	interfaces := func(c, next *chain) { c.Any = []any{next} }
	require.NoError(t, uses(made(200, pointers)))
	require.NoError(t, uses(made(200, interfaces)))
	for _, link := range []func(c, next *chain){pointers, interfaces} {
		err := uses(made(1_000_000, link))
		require.ErrorIs(t, err, autograd.ErrInvalid)
		require.ErrorContains(t, err, "deep")
		require.Less(t, len(err.Error()), 1000)
	}
	var pointer any = 1
	for range 1_000_000 {
		inner := pointer
		pointer = &inner
	}
	require.ErrorContains(t, uses(pointer), "deep")
}

// fork has two ways to the next value, and no method.
type fork struct {
	Fc          *nn.Linear
	Left, Right *fork
	Other       any
}

// TestModelsOfManyWays: a state dict has a name for each way to a parameter, up to a limit, and a
// graph without parameters is walked once.
func TestModelsOfManyWays(t *testing.T) {
	in := initializer(t)
	made := func(depth int, fc *nn.Linear) *fork {
		top := &fork{Fc: fc}
		for range depth {
			top = &fork{Left: top, Right: top}
		}
		return top
	}
	fc := in.Linear(1, 1)
	state, err := nn.StateDict(made(6, fc))
	require.NoError(t, err)
	require.Len(t, state, 2*1<<6)
	require.Len(t, nn.ParametersOf(made(60, fc)), 2)
	_, err = nn.StateDict(made(20, fc)) // a million ways, with short names
	require.ErrorIs(t, err, autograd.ErrInvalid)
	require.ErrorContains(t, err, "ways")

	state, err = nn.StateDict(&fork{Fc: fc, Other: made(60, nil)})
	require.NoError(t, err, "a graph without parameters")
	require.Len(t, state, 2)

	top := &diamond{Fc: fc}
	for range 20 {
		top = &diamond{Left: top, Right: top}
	}
	_, err = nn.StateDict(top)
	require.ErrorContains(t, err, "ways")
	require.True(t, strings.HasPrefix(fmt.Sprint(err), "nn: "))
}
