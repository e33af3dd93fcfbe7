package gorgonia_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// The device engine is compared with StdEng on the same random operations. What its documentation says that it does otherwise
// is listed here, and nothing else may differ.

func TestDeviceEngineAgainstStdEng(t *testing.T) {
	e := newDeviceEngine(t)
	for i := range engineCases() {
		t.Run(fmt.Sprint(i), func(t *testing.T) { runEngineTrial(t, e, rand.New(rand.NewPCG(uint64(i), 2))) })
	}
}

// FuzzDeviceEngine lets the fuzzer choose.
func FuzzDeviceEngine(f *testing.F) {
	for i := range 16 {
		f.Add([]byte{byte(i * 16), 3, byte(i), 17, 90, 255, 0, 128})
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		runEngineTrial(t, newDeviceEngine(t), rand.New(reference.NewChoices(choices)))
	})
}

// on is the call as the engine under test has it.
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
	for _, near := range []string{"Pow", "Exp", "Tanh", "Log", "Cbrt", "InvSqrt"} {
		call.near = call.near || strings.Contains(call.name, near)
	}
	return call
}

// outer is gtensor.Outer, which itself would zero its result where it can't.
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

// named requires that an error tells what the device has no kernel for.
func named(t testing.TB, err error, call engineCall, what string) {
	t.Helper()
	if call.names != "" {
		require.ErrorContains(t, err, call.names, what)
	}
}
