// Package budget compares a model's memory on a GPU with a golden file, in go test without a GPU.
package budget

import (
	"context"
	"math/bits"
	"testing"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	_ "github.com/cistern-ml/cistern/device/dry"
	"github.com/cistern-ml/cistern/memcache/memtest"
	"github.com/cistern-ml/cistern/tensor"
)

func check(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// open opens a device that allocates like an H100 and computes nothing.
func open(t testing.TB) *tensor.Runtime {
	if bits.UintSize < 64 {
		t.Skip("dry devices need addresses of 64 bits")
	}
	rt, err := tensor.Open("dry:cuda?gpu=H100")
	check(t, err)
	t.Cleanup(func() { check(t, rt.Close()) })
	return rt
}

// training makes a model for a test and returns its training step, on a batch of 8,192.
func training(t testing.TB, rt *tensor.Runtime) (step func()) {
	ctx := context.Background()
	in := nn.Init(ctx, rt)
	t.Cleanup(func() { check(t, in.Close()) })
	model := nn.Sequential{in.Linear(4096, 16384), nn.GELU{}, in.Linear(16384, 16384), nn.GELU{}, in.Linear(16384, 1000)}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
	x, y := in.Zeros(8192, 4096), in.Labels(make([]int, 8192), 1000)
	check(t, in.Err())
	return func() {
		tape := autograd.NewTape(ctx, rt)
		logits := model.Forward(tape, tape.Input(x.Value()))
		optim.Minimize(tape, tape.CrossEntropy(logits, y), adam)
		check(t, tape.Close())
	}
}

// TestStepMemory fails if a step's memory differs from testdata/step.memory or exceeds 8 GiB, or if
// the model is not freed.
func TestStepMemory(t *testing.T) {
	rt := open(t)
	memtest.NoLeak(t, rt.Cache())
	step := training(t, rt)
	step() // makes the optimiser's state
	memtest.Golden(t, rt.Cache(), "testdata/step.memory", step)
	memtest.Peak(t, rt.Cache(), 8<<30, step)
}

// BenchmarkStep reports metrics of the memory.
func BenchmarkStep(b *testing.B) {
	rt := open(b)
	step := training(b, rt)
	memtest.Report(b, rt.Cache())
	for b.Loop() {
		step()
	}
}
