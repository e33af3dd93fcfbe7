package gorgonia_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// The device engine is compared with StdEng on the same random operations. Only the differences
// that its documentation lists are allowed, and they are listed here.

func TestDeviceEngineAgainstStdEng(t *testing.T) {
	e := newDeviceEngine(t)
	for i := range engineCases() {
		t.Run(fmt.Sprint(i), func(t *testing.T) { runEngineTrial(t, e, rand.New(rand.NewPCG(uint64(i), 2))) })
	}
}

// FuzzDeviceEngine makes the fuzzer choose the operations.
func FuzzDeviceEngine(f *testing.F) {
	for i := range 16 {
		f.Add([]byte{byte(i * 16), 3, byte(i), 17, 90, 255, 0, 128})
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		runEngineTrial(t, newDeviceEngine(t), rand.New(reference.NewChoices(choices)))
	})
}

func (c *engineTrial) onDevice() bool {
	_, ok := c.e.(deviceRig)
	return ok
}

// on returns the call as the engine under test runs it.
func (c *engineTrial) on(call engineCall) engineCall {
	r, ok := c.e.(deviceRig)
	if !ok {
		return call
	}
	moves := strings.HasPrefix(call.name, "Concat") || strings.HasPrefix(call.name, "Stack") || strings.HasPrefix(call.name, "Repeat")
	switch float := c.kind.dtype == g.Float32 || c.kind.dtype == g.Float64; {
	case strings.HasPrefix(call.name, "ByIndices"):
		call.refused = gorgonia.ErrUnsupported
	case !float && !moves:
		call.refused, call.names = gorgonia.ErrDtype, fmt.Sprint(c.kind.dtype)
	}
	if strings.HasPrefix(call.name, "Outer") {
		call.onEngine = r.outer
	}
	if strings.Contains(call.name, "Between") && call.unsafe && call.refused == nil || call.unsafe && strings.HasPrefix(call.name, "number ") && call.refused == nil {
		call.instead = c.inPlace(call) // StdEng panics, or leaves a tensor of one element as it is
	}
	for _, near := range []string{"Pow", "Exp", "Tanh", "Log", "Cbrt", "InvSqrt"} {
		call.near = call.near || strings.Contains(call.name, near)
	}
	return call
}

// dot is gtensor.Dot of StdEng. StdEng panics for more than two dimensions if the dimension to sum
// over has size 1. In this case the device engine is compared with plain loops.
func (c *engineTrial) dot(x, y *g.Dense) (g.Tensor, error) {
	r, err := guarded(func() (g.Tensor, error) { return g.Dot(x, y) })
	if !errors.Is(err, errPanic) {
		return r, err
	}
	if !c.onDevice() {
		return g.Dot(x, y)
	}
	a, b := x.Shape(), y.Shape()
	k := a[len(a)-1]
	inner := 1 // elements of y after the dimension that is summed over
	if len(b) > 1 {
		inner = b[len(b)-1]
	}
	shape := append(a[:len(a)-1].Clone(), b[:max(len(b)-2, 0)]...)
	if len(b) > 1 {
		shape = append(shape, inner)
	}
	var sums []float64
	left, right := values(c.t, x), values(c.t, y)
	for i := 0; i < len(left); i += k {
		for j := 0; j < len(right); j += k * inner {
			for o := range inner {
				sum := 0.0
				for l := range k {
					sum += left[i+l] * right[j+l*inner+o]
				}
				sums = append(sums, sum)
			}
		}
	}
	return ofValues(x.Dtype(), sums, shape), nil
}

// reduced computes a reduction with plain loops.
func reduced(t testing.TB, name string, x *g.Dense, axes []int) g.Tensor {
	t.Helper()
	shape := g.Shape{}
	for i, d := range x.Shape() {
		if len(axes) > 0 && !slices.Contains(axes, i) {
			shape = append(shape, d)
		}
	}
	out := make([]float64, shape.TotalSize())
	seen := make([]bool, len(out))
	for i, v := range values(t, x) {
		to, step, rest := 0, 1, i
		for d := x.Dims() - 1; d >= 0; d-- {
			n := x.Shape()[d]
			if len(axes) > 0 && !slices.Contains(axes, d) {
				to += rest % n * step
				step *= n
			}
			rest /= n
		}
		switch {
		case !seen[to]:
			out[to], seen[to] = v, true
		case name == "Sum":
			out[to] += v
		case name == "Min":
			out[to] = min(out[to], v)
		default:
			out[to] = max(out[to], v)
		}
	}
	return ofValues(x.Dtype(), out, shape)
}

// ofValues returns a tensor of StdEng.
func ofValues(dt g.Dtype, values []float64, shape g.Shape) *g.Dense {
	d := g.New(g.Of(dt), g.WithShape(shape...))
	for i, v := range values {
		d.Set(i, reflect.ValueOf(v).Convert(dt.Type).Interface())
	}
	return d
}

// inPlace returns the expected result of an operation with UseUnsafe.
func (c *engineTrial) inPlace(call engineCall) func([]*g.Dense, *g.Dense) (g.Tensor, error) {
	return func(in []*g.Dense, _ *g.Dense) (g.Tensor, error) {
		opts := []g.FuncOpt{}
		if !strings.Contains(call.name, "Between") {
			opts = append(opts, g.AsSameType())
		}
		r, err := call.do(in, opts...)
		if err != nil {
			return nil, err
		}
		return in[0], g.Copy(in[0], r)
	}
}

// outer is gtensor.Outer, which itself would zero its result in memory that the host can't access.
func (r deviceRig) outer(in []*g.Dense, opts ...g.FuncOpt) (g.Tensor, error) {
	o := g.ParseFuncOpts(opts...)
	out, _ := o.Incr().(*g.Dense)
	fresh := false
	if out == nil {
		if out, _ = o.Reuse().(*g.Dense); out != nil {
			if err := r.Memset(out, zeroOf(out.Dtype())); err != nil {
				return nil, err
			}
		} else {
			var err error
			if out, err = r.New(g.Of(in[0].Dtype()), g.WithShape(in[0].Shape().TotalSize(), in[1].Shape().TotalSize())); err != nil {
				return nil, err
			}
			fresh = true
		}
	}
	if err := r.DeviceEngine.Outer(in[0], in[1], out); err != nil {
		if fresh {
			_ = r.Release(out)
		}
		return nil, err
	}
	return out, nil
}

func zeroOf(dt g.Dtype) any {
	d := g.New(g.Of(dt), g.WithShape(1))
	return d.Get(0)
}

// named requires that an error names the operation and type without a kernel.
func named(t testing.TB, err error, call engineCall, what string) {
	t.Helper()
	if call.names != "" {
		require.ErrorContains(t, err, call.names, what)
	}
}
