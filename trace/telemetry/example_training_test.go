package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/telemetry"
	"github.com/cistern-ml/cistern/transfer"
)

// traced trains a model. Each step is a trace, with a span for each of its allocations and copies.
func traced(ctx context.Context, sdk *telemetry.SDK) error {
	tracer := sdk.Tracer()
	env, err := tensor.Open("host",
		tensor.CacheConfig(memcache.Config{Observer: tracer.Memory()}),
		tensor.PoolConfig(transfer.Config{Observer: tracer.Transfer()}))
	if err != nil {
		return err
	}
	_, err = tracer.Watch(env.Cache()) // the metrics of the cache
	profiler, err2 := trace.NewProfiler(trace.ProfilerConfig{Cache: env.Cache(), Stream: env.Stream(), Tracer: tracer})
	if err := errors.Join(err, err2); err != nil {
		return errors.Join(err, env.Close())
	}
	in := nn.Init(ctx, env, nn.Seed(1))
	x := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2)
	y := in.Labels([]int{0, 1, 1, 0}, 2)
	model := nn.Sequential{in.Linear(2, 16), nn.ReLU{}, in.Linear(16, 2)}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
	for n, tape := range in.Steps(3) {
		ctx, step := profiler.StartStep(tape.Context(), int64(n+1))
		tape.SetContext(ctx) // the operations of the tape are in the step
		optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), adam)
		step.End()
	}
	err = errors.Join(in.Err(), profiler.Close())
	sdk.CloseTracer(tracer) // before the cache is closed
	return errors.Join(err, in.Close(), env.Close())
}

// Example_training sends a training's steps to a buffer.
func Example_training() {
	var out bytes.Buffer
	sdk, err := telemetry.New(context.Background(), telemetry.Config{Exporter: "stdout", Output: &out, Service: "xor", AllEvery: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, span := sdk.Start(context.Background(), "training")
	err = traced(ctx, sdk)
	sdk.Shutdown(span, err)
	fmt.Println(err)
	for _, name := range []string{"cistern.step", "cistern.memory.alloc"} {
		fmt.Println(name, strings.Contains(out.String(), fmt.Sprintf(`"Name":%q`, name)))
	}
	// Output:
	// <nil>
	// cistern.step true
	// cistern.memory.alloc true
}
