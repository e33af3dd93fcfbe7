package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/autograd/safetensors"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// nilCheck is one call.
type nilCheck struct {
	*tapetest.Bench
	in     *nn.Initializer
	tape   *autograd.Tape
	path   string
	opened []func() error
}

func (c *nilCheck) variable() *autograd.Variable {
	return c.tape.Leaf(c.in.Tensor([]float64{1, 2, 3, 4}, 2, 2))
}

// testStage moves nothing.
type testStage struct{}

func (testStage) Bring(context.Context, *tensor.Tensor) error { return nil }
func (testStage) Ahead(context.Context, *tensor.Tensor) error { return nil }
func (testStage) Leave(context.Context, *tensor.Tensor) error { return nil }

// updates returns the arguments of an optimiser's update in a step of one parameter.
func (c *nilCheck) updates() (us []optim.Update) {
	p := c.in.Ones(2, 2)
	p.SetGrad(c.in.Tensor(make([]float64, 4), 2, 2))
	o := new(testOptimizer)
	o.Init(o, "Test", func(_ context.Context, all []optim.Update) error { us = slices.Clone(all); return nil })
	o.Fail(o.AddGroup(autograd.Parameters{{Name: "p", Parameter: p}}, optim.Options{LR: 1}))
	require.NoError(c.T, nn.Own(c.in, o).Step(c.Ctx))
	p.SetGrad(nil)
	return us
}

type testOptimizer struct{ optim.Base }

// valid returns a valid argument of a type.
func (c *nilCheck) valid(typ reflect.Type) reflect.Value {
	var v any
	switch typ {
	case reflect.TypeFor[context.Context]():
		v = c.Ctx
	case reflect.TypeFor[*tensor.Runtime]():
		v = c.RT
	case reflect.TypeFor[*autograd.Tape]():
		v = c.tape
	case reflect.TypeFor[*nn.Initializer]():
		v = c.in
	case reflect.TypeFor[*autograd.Variable]():
		v = c.variable()
	case reflect.TypeFor[[]*autograd.Variable]():
		v = []*autograd.Variable{c.variable()}
	case reflect.TypeFor[*autograd.Parameter]():
		v = c.in.Ones(2, 2)
	case reflect.TypeFor[autograd.Parameters]():
		v = autograd.Parameters{{Name: "p", Parameter: c.in.Ones(2, 2)}}
	case reflect.TypeFor[*tensor.Tensor](), reflect.TypeFor[autograd.Target]():
		v = c.in.Tensor([]float64{1, 2, 3, 4}, 2, 2)
	case reflect.TypeFor[optim.Optimizer]():
		v = nn.Own(c.in, optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: c.in.Ones(2, 2)}}, optim.SGDConfig{}))
	case reflect.TypeFor[io.Closer]():
		v = nn.Own(c.in, optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: c.in.Ones(2, 2)}}, optim.SGDConfig{}))
	case reflect.TypeFor[[]optim.Update]():
		v = c.updates()
	case reflect.TypeFor[func(context.Context, []optim.Update) error]():
		v = func(context.Context, []optim.Update) error { return nil }
	case reflect.TypeFor[func(*optim.Update) (tensor.SGD, [3]*tensor.Tensor)]():
		v = func(u *optim.Update) (tensor.SGD, [3]*tensor.Tensor) {
			return tensor.SGD{LR: u.LR}, [3]*tensor.Tensor{}
		}
	case reflect.TypeFor[optim.Stage]():
		v = testStage{}
	case reflect.TypeFor[optim.Schedule]():
		v = optim.ConstantLR{}
	case reflect.TypeFor[nn.Layer](), reflect.TypeFor[nn.Forwarder](), reflect.TypeFor[any]():
		v = nn.Sequential{nn.ReLU{}}
	case reflect.TypeFor[func() *autograd.Variable]():
		v = c.variable
	case reflect.TypeFor[func() uint64]():
		v = func() uint64 { return 1 }
	case reflect.TypeFor[func() error]():
		v = func() error { return nil }
	case reflect.TypeFor[func(*autograd.Call) (*tensor.Tensor, error)]():
		v = func(call *autograd.Call) (*tensor.Tensor, error) { return c.RT.Share(call.Context(), call.Input(0)) }
	case reflect.TypeFor[func(*autograd.Call, *tensor.Tensor) ([]*tensor.Tensor, error)]():
		v = func(call *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) { return call.Grads(g, nil) }
	case reflect.TypeFor[*tensor.Offloader]():
		o, err := tensor.NewOffloader(c.RT, tensor.OffloadConfig{})
		require.NoError(c.T, err)
		c.opened = append(c.opened, o.Close)
		v = o
	case reflect.TypeFor[nn.Source]():
		f, err := safetensors.Open(c.path)
		require.NoError(c.T, err)
		c.opened = append(c.opened, f.Close)
		v = f
	case reflect.TypeFor[device.Communicator]():
		v = struct{ device.Communicator }{}
	case reflect.TypeFor[*nn.KVCache]():
		v = c.receiver("nn.KVCache")
	case reflect.TypeFor[*nn.Lengths]():
		v = c.lengths()
	case reflect.TypeFor[nn.Initial]():
		v = nn.InitConstant(1)
	case reflect.TypeFor[autograd.Hooks]():
		v = new(testHook)
	case reflect.TypeFor[autograd.Attachment]():
		v = new(testAttachment)
	case reflect.TypeFor[error]():
		v = errors.New("an error")
	case reflect.TypeFor[string]():
		v = c.path
	case reflect.TypeFor[int]():
		v = 1
	case reflect.TypeFor[float64]():
		v = 0.5
	default:
		return reflect.Zero(typ)
	}
	of := reflect.New(typ).Elem()
	of.Set(reflect.ValueOf(v))
	return of
}

func (c *nilCheck) lengths() *nn.Lengths {
	l, err := nn.NewLengths(c.Ctx, c.RT, 2, 2, 1)
	require.NoError(c.T, err)
	c.opened = append(c.opened, l.Release)
	return l
}

// mayBeNil reports whether an argument of the type can be nil, or have elements that are.
func mayBeNil(typ reflect.Type) bool {
	if typ == reflect.TypeFor[*nn.Initializer]() { // Init never returns nil
		return false
	}
	switch typ.Kind() {
	case reflect.Slice:
		return typ == reflect.TypeFor[autograd.Parameters]() || mayBeNil(typ.Elem()) && typ.Elem().Kind() != reflect.Slice
	case reflect.Pointer, reflect.Interface, reflect.Func:
		return true
	}
	return false
}

// nilOf is nil, or a list of it.
func nilOf(typ reflect.Type) reflect.Value {
	if typ.Kind() == reflect.Slice {
		return reflect.MakeSlice(typ, 1, 1)
	}
	return reflect.Zero(typ)
}

// receiver returns a value of a type with methods, by the type's name.
func (c *nilCheck) receiver(name string) any {
	in := c.in
	ps := autograd.Parameters{{Name: "p", Parameter: in.Ones(2, 2)}}
	switch name {
	case "optim.Adagrad":
		return nn.Own(in, optim.NewAdagrad(ps, optim.AdagradConfig{}))
	case "optim.Adam":
		return nn.Own(in, optim.NewAdam(ps, optim.AdamConfig{}))
	case "optim.RMSprop":
		return nn.Own(in, optim.NewRMSprop(ps, optim.RMSpropConfig{}))
	case "optim.SGD":
		return nn.Own(in, optim.NewSGD(ps, optim.SGDConfig{}))
	case "optim.Base":
		return nn.Own(in, optim.NewSGD(ps, optim.SGDConfig{})).Core()
	case "optim.Group":
		return nn.Own(in, optim.NewSGD(ps, optim.SGDConfig{})).Groups()[0]
	case "optim.Scheduler":
		s, err := optim.NewScheduler(nn.Own(in, optim.NewSGD(ps, optim.SGDConfig{})), optim.ConstantLR{})
		require.NoError(c.T, err)
		return s
	case "optim.ReduceLROnPlateau":
		s, err := optim.NewReduceLROnPlateau(nn.Own(in, optim.NewSGD(ps, optim.SGDConfig{})), optim.PlateauConfig{})
		require.NoError(c.T, err)
		return s
	case "optim.Loop":
		return &optim.Loop{Optimizer: nn.Own(in, optim.NewSGD(ps, optim.SGDConfig{}))}
	case "nn.StateCopy":
		return nn.Own(in, nn.NewStateCopy(c.Ctx, in.Linear(2, 2)))
	case "AnomalyError":
		return new(autograd.AnomalyError)
	case "checkpoint.Checkpoint":
		return checkpoint.Checkpoint{Model: nn.Sequential{nn.ReLU{}}}
	case "remat.Plan":
		return new(remat.Plan)
	case "nn.Initializer":
		return in
	case "Tape":
		return c.tape
	case "Variable":
		return c.variable()
	case "Hold":
		return c.variable().Hold()
	case "nn.Wrapped":
		return nn.Wrapped{Layer: nn.ReLU{}}
	case "Lent":
		return c.variable().Lend(true)
	case "Entered":
		return c.tape.Enter(ps[0].Parameter, "p")
	case "Parameter":
		return ps[0].Parameter
	case "Parameters":
		return ps
	case "Named":
		return ps[0]
	case "parallel.Parallel":
		r := tapetest.NewCrew(c.T, 1, 64<<20, 0).Ranks[0] // a call with nil may end the communicator
		model := nn.Sequential{nn.Init(r.Ctx, r.RT).Linear(1, 1)}
		dp, err := parallel.New(r.Ctx, r.Comm, model, parallel.Config{})
		require.NoError(c.T, err)
		c.opened = append(c.opened, dp.Close, model.Parameters().Release)
		return dp
	case "nn.Linear":
		return in.Linear(2, 2)
	case "nn.Convolution":
		return in.Conv2d(1, 1, 1)
	case "nn.BatchNorm":
		return in.BatchNorm(2)
	case "nn.LayerNorm":
		return in.LayerNorm(2)
	case "nn.GroupNorm":
		return in.GroupNorm(1, 2)
	case "nn.InstanceNorm":
		return in.InstanceNorm(2)
	case "nn.PReLU":
		return in.PReLU(2)
	case "nn.Upsample":
		return nn.Upsample{Size: []int{3}}
	case "nn.Func":
		return nn.Func(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Exp(x) })
	case "nn.RMSNorm":
		return in.RMSNorm(2)
	case "nn.Embedding":
		return in.Embedding(2, 2)
	case "nn.Recurrent":
		return (*nn.Recurrent)(in.RNN(2, 2))
	case "nn.RNN":
		return in.RNN(2, 2)
	case "nn.LSTM":
		return in.LSTM(2, 2)
	case "nn.GRU":
		return in.GRU(2, 2)
	case "nn.MultiHeadAttention":
		return in.MultiHeadAttention(2, 1)
	case "nn.KVCache":
		cache, err := nn.NewKVCache(c.Ctx, c.RT, nn.KVCacheConfig{Layers: 1, Batch: 1, Heads: 1, Length: 2, HeadSize: 2})
		require.NoError(c.T, err)
		c.opened = append(c.opened, cache.Release)
		return cache
	case "nn.Lengths":
		return c.lengths()
	case "nn.Sequential":
		return nn.Sequential{nn.ReLU{}, in.Linear(2, 2)}
	case "optim.LambdaLR":
		return optim.LambdaLR(func(int) float64 { return 1 })
	case "optim.SequentialLR":
		return optim.SequentialLR{Schedules: []optim.Schedule{optim.ConstantLR{}}}
	case "nn.AdaptiveAvgPool2d":
		return nn.AdaptiveAvgPool2d{Size: []int{1}}
	}
	for _, v := range []any{nn.MaxPool2d{}, nn.AvgPool2d{}, nn.Dropout{}, nn.Dropout2d{}, nn.ReflectionPad1d{}, nn.ReflectionPad2d{}, nn.ReplicationPad1d{}, nn.ReplicationPad2d{}, nn.ELU{}, nn.Flatten{}, nn.GELU{}, nn.Hardtanh{}, nn.Identity{}, nn.LeakyReLU{}, nn.LoadReport{}, nn.LoadedWeight{}, nn.LogSigmoid{}, nn.LogSoftmax{}, nn.ReLU{}, nn.SiLU{}, nn.Sigmoid{},
		nn.Softmax{}, nn.Softplus{}, nn.Tanh{}, optim.ConstantLR{}, optim.CosineAnnealingLR{}, optim.CosineAnnealingWarmRestarts{}, optim.ExponentialLR{}, optim.LinearLR{}, optim.MultiStepLR{}, optim.OneCycleLR{}, optim.StepLR{}} {
		if reflect.TypeOf(v).String() == name {
			return v
		}
	}
	return nil
}

// checkNil makes the arguments of calls, calls use with them, and frees them.
func checkNil(b *tapetest.Bench, path string, use func(c *nilCheck)) {
	c := &nilCheck{Bench: b, in: nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64)), tape: autograd.NewTape(b.Ctx, b.RT), path: path}
	use(c)
	_, _ = c.tape.Close(), c.in.Close() // the errors that stick
	for _, end := range slices.Backward(c.opened) {
		require.NoError(b.T, end())
	}
}

// run calls a function with some of its arguments nil. It returns the value of a panic, and the
// errors that were returned or stick.
func (c *nilCheck) run(f reflect.Value, receiver any, isNil func(i int) bool) (panicked any, errs []error) {
	var args []reflect.Value
	noTape := false
	for i := range f.Type().NumIn() {
		typ := f.Type().In(i)
		switch {
		case isNil(i):
			args = append(args, nilOf(typ))
			noTape = noTape || typ == reflect.TypeFor[*autograd.Tape]()
		case i == 0 && receiver != nil:
			args = append(args, reflect.ValueOf(receiver))
		default:
			args = append(args, c.valid(typ))
		}
	}
	defer func() { panicked = recover() }()
	call := f.Call
	if f.Type().IsVariadic() {
		call = f.CallSlice
	}
	for _, r := range call(args) {
		switch v := r.Interface().(type) {
		case error:
			errs = append(errs, v)
		case optim.Optimizer:
			if !reflect.ValueOf(v).IsNil() {
				errs = append(errs, v.Core().Err())
			}
		case *autograd.Tape:
			errs = append(errs, v.Err(), v.Close())
		case *nn.StateCopy:
			errs = append(errs, v.Err(), v.Close())
		case *nn.Initializer:
			errs = append(errs, v.Err(), v.Close())
		case *autograd.Variable:
			if v == nil {
				errs = append(errs, errors.New("there is no result"))
				continue
			}
			errs = append(errs, autograd.TapeOf(v).Err())
			_, _, _, _, _ = v.Value(), v.Grad(), v.Shape(), v.Rank(), v.Keep().Once()
			if v.Value().Elements() <= 1 {
				v.Item()
			}
			v.Release()
			if noTape {
				other := autograd.NewTape(c.Ctx, c.RT)
				other.Neg(v)
				errs = append(errs, other.Close())
			}
		}
	}
	if o, ok := receiver.(optim.Optimizer); ok {
		errs = append(errs, o.Core().Err())
	}
	return nil, append(errs, c.tape.Err(), c.in.Err())
}

// nilAllowedAt reports whether an argument may be nil, and records the question in needed.
func nilAllowedAt(name string, i int, typ reflect.Type, needed map[string]bool) bool {
	for typ.Kind() == reflect.Slice && typ.Name() == "" {
		typ = typ.Elem()
	}
	for _, key := range []string{fmt.Sprint(name, " ", i), typ.Name()} {
		if nilAllowed[key] != "" {
			needed[key] = true
			return true
		}
	}
	return false
}

// TestNilArguments: no exported function or method of the package, or of those below it, panics for
// a nil argument, or for a list with a nil element. It returns an error that wraps
// device.ErrInvalid, or the error sticks to the tape or the initialiser, unless nil is allowed.
// Methods of nil tapes, variables, parameters and layers don't panic either.
func TestNilArguments(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	path := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, nn.SaveModel(b.Ctx, nn.Sequential{nn.ReLU{}}, path))
	needed, calls := map[string]bool{}, 0
	// check calls a function, or the method of that name of a type.
	check := func(name, typ, method string) {
		of := func(c *nilCheck) (f reflect.Value, receiver any, first int) {
			if typ == "" {
				return reflect.ValueOf(exportedFunctions[name]), nil, 0
			}
			receiver = c.receiver(typ)
			m, ok := reflect.TypeOf(receiver).MethodByName(method)
			require.True(t, ok)
			return m.Func, receiver, 1
		}
		var candidates []int
		var first int
		checkNil(b, path, func(c *nilCheck) {
			var f reflect.Value
			f, _, first = of(c)
			for i := range f.Type().NumIn() {
				if i >= first && mayBeNil(f.Type().In(i)) || i < first && noNilReceiver[typ] == "" && f.Type().In(i).Kind() == reflect.Pointer {
					candidates = append(candidates, i)
				}
			}
		})
		sets := [][]int{candidates}
		for _, i := range candidates {
			sets = append(sets, []int{i})
		}
		for _, set := range sets {
			if len(set) == 0 {
				continue
			}
			checkNil(b, path, func(c *nilCheck) {
				f, receiver, _ := of(c)
				mustFail := false
				for _, i := range set {
					mustFail = mustFail || i >= first && !nilAllowedAt(name, i+1-first, f.Type().In(i), needed)
				}
				calls++
				panicked, errs := c.run(f, receiver, func(i int) bool { return slices.Contains(set, i) })
				err := errors.Join(errs...)
				switch {
				case panicked != nil:
					assert.Fail(t, "panic", "%s with arguments %v nil: %v", name, set, panicked)
				// A nil tape has its own error, and other nil receivers can't keep one.
				case f.Type().NumOut() == 0 && slices.Contains(set, 1) && f.Type().In(1) == reflect.TypeFor[*autograd.Tape]():
				case slices.Contains(set, 0) && (first == 1 || f.Type().NumOut() == 0):
				case mustFail:
					assert.ErrorIs(t, err, device.ErrInvalid, "%s with arguments %v nil", name, set)
				case err != nil: // the other arguments may be of no use
					assert.NotContains(t, err.Error(), "nil", "%s with arguments %v nil, which is allowed", name, set)
				}
			})
		}
	}
	api := surface.Exported(t, "checkpoint", "nn", "offload", "optim", "parallel", "remat")
	for _, name := range api.Functions {
		require.Contains(t, exportedFunctions, name)
		check(name, "", "")
	}
	for typ, methods := range api.Methods {
		// The tape makes Calls and Nodes, and calls NoHooks.
		if len(methods) == 0 || typ == "Call" || typ == "Node" || typ == "NoHooks" {
			continue
		}
		var all []string
		checkNil(b, path, func(c *nilCheck) {
			receiver := c.receiver(typ)
			require.NotNil(t, receiver, "the test has no value of %s", typ)
			for i := range reflect.TypeOf(receiver).NumMethod() {
				all = append(all, reflect.TypeOf(receiver).Method(i).Name)
			}
		})
		for _, method := range all {
			check(typ+"."+method, typ, method)
		}
	}
	for key := range nilAllowed {
		assert.True(t, needed[key], "nothing has %q", key)
	}
	for typ := range noNilReceiver {
		assert.NotEmpty(t, api.Methods[typ], typ)
	}
	require.Greater(t, len(api.Functions), 50)
	require.Greater(t, len(api.Methods), 60)
	require.Greater(t, calls, 500)
	zero := new(autograd.Variable)
	require.Same(t, zero, zero.Once().Keep())
	require.Nil(t, zero.Value())
	zero.Release()
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.Neg(zero)
	require.ErrorIs(t, tape.Close(), device.ErrInvalid)
	require.ErrorIs(t, (*autograd.Tape)(nil).Err(), device.ErrInvalid)
	require.ErrorIs(t, new(autograd.Tape).Close(), device.ErrInvalid)
}
