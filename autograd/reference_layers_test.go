package autograd_test

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
)

// floats is a list of numbers.
func (r *referenceRun) floats(name string) (all []float64) {
	list, _ := r.Args[name].([]any)
	for _, v := range list {
		all = append(all, v.(float64))
	}
	return all
}

// parameter makes an input a parameter, or returns nil if the case has no such input.
func (r *referenceRun) parameter(name string) *autograd.Parameter {
	a, ok := r.Inputs[name]
	if !ok {
		return nil
	}
	p, err := autograd.NewParameter(r.upload(a.Values, a.Shape...))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, p.Release()) })
	r.leaves[name] = r.tape.Param(p)
	return p
}

func init() {
	referenceOps["interpolate"] = func(r *referenceRun) *autograd.Variable {
		l := nn.Upsample{Size: r.ints("size"), ScaleFactor: r.floats("scale_factor"), Bilinear: r.string("mode", "") == "bilinear", AlignCorners: r.bool("align", false)}
		return l.Forward(r.tape, r.in("input"))
	}
	referenceOps["edge_pad"] = func(r *referenceRun) *autograd.Variable {
		pad, layers := r.ints("pad"), map[string]nn.Layer{}
		layers["reflect2"], layers["replicate2"] = nn.ReflectionPad1d{Padding: pad}, nn.ReplicationPad1d{Padding: pad}
		layers["reflect4"], layers["replicate4"] = nn.ReflectionPad2d{Padding: pad}, nn.ReplicationPad2d{Padding: pad}
		return layers[r.string("mode", "")+string(rune('0'+len(pad)))].Forward(r.tape, r.in("input"))
	}
	referenceOps["instance_norm"] = func(r *referenceRun) *autograd.Variable {
		l := nn.InstanceNorm{Weight: r.parameter("weight"), Bias: r.parameter("bias"), Eps: r.float("eps", 0)}
		return l.Forward(r.tape, r.in("input"))
	}
	referenceOps["prelu"] = func(r *referenceRun) *autograd.Variable {
		return (&nn.PReLU{Weight: r.parameter("weight")}).Forward(r.tape, r.in("input"))
	}
}
