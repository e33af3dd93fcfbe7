package record

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/transfer"
)

// BenchmarkStep is the step of autograd's BenchmarkModel/mlp/reset, observed by more and more
// observers.
func BenchmarkStep(b *testing.B) {
	for _, observed := range []struct {
		name                   string
		profiled, timed, spans bool
		recording              *Options
	}{
		{name: "plain"},
		{name: "untimed", profiled: true}, // without events on the stream
		{name: "profiles", profiled: true, timed: true},
		{name: "spans", profiled: true, timed: true, spans: true},
		{name: "recording", profiled: true, timed: true, spans: true, recording: &Options{Gzip: true}},
		{name: "stacks", profiled: true, timed: true, spans: true, recording: &Options{Gzip: true, Stacks: memcache.StacksAlloc}},
		{name: "all-stacks", profiled: true, timed: true, spans: true, recording: &Options{Gzip: true, Stacks: memcache.StacksAll}},
	} {
		b.Run(observed.name, func(b *testing.B) {
			var tracer *trace.Tracer
			if observed.spans {
				spans := sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()))
				b.Cleanup(func() { require.NoError(b, spans.Shutdown(context.WithoutCancel(b.Context()))) })
				var err error
				tracer, err = trace.New(trace.Config{TracerProvider: spans, MeterProvider: sdkmetric.NewMeterProvider(), Detail: trace.Steps})
				require.NoError(b, err)
			}
			rt, err := tensor.Open(cmp.Or(os.Getenv("CISTERN_TEST_DEVICE"), "host"),
				tensor.CacheConfig(memcache.Config{Observer: tracer.Memory()}),
				tensor.PoolConfig(transfer.Config{Observer: tracer.Transfer()}))
			require.NoError(b, err)
			b.Cleanup(func() { require.NoError(b, rt.Close()) })
			step := classifier(b, rt)
			var profiler *trace.Profiler
			if observed.profiled {
				config := trace.ProfilerConfig{Cache: rt.Cache(), Pool: rt.Pool(), Tracer: tracer}
				if observed.timed {
					config.Stream = rt.Stream()
				}
				profiler, err = trace.NewProfiler(config)
				require.NoError(b, err)
				b.Cleanup(func() { require.NoError(b, profiler.Close()) })
			}
			var recorder *Recorder
			if observed.recording != nil {
				file, err := os.Create(filepath.Join(b.TempDir(), "recording.jsonl.gz"))
				require.NoError(b, err)
				b.Cleanup(func() { require.NoError(b, file.Close()) })
				recorder, err = Start(file, rt.Cache(), *observed.recording)
				require.NoError(b, err)
				b.Cleanup(func() { require.NoError(b, recorder.Close()) })
			}
			for range 3 {
				require.NoError(b, step(b.Context()))
			}
			require.NoError(b, rt.Synchronize(b.Context()))
			b.ReportAllocs()
			b.ResetTimer()
			for n := range int64(b.N) { // not b.Loop, which does not time what comes after it
				ctx, profiled := profiler.StartStep(b.Context(), n)
				recorded := recorder.Step(n)
				if err := step(ctx); err != nil {
					b.Fatal(err)
				}
				recorded.End()
				profiled.End()
			}
			require.NoError(b, rt.Synchronize(b.Context()))
			b.StopTimer()
		})
	}
}

// classifier returns a step of 784-512-512-10 with ReLU on 128 rows, with AdamW.
func classifier(b *testing.B, rt *tensor.Runtime) func(context.Context) error {
	in := nn.Init(b.Context(), rt, nn.Seed(1))
	model := nn.Sequential{in.Linear(784, 512), nn.ReLU{}, in.Linear(512, 512), nn.ReLU{}, in.Linear(512, 10)}
	opt := nn.Own(in, optim.NewAdamW(model.Parameters(), optim.AdamConfig{LR: new(1e-3)}))
	require.NoError(b, in.Err())
	x, err := tensor.FromSlice(b.Context(), rt, make([]float32, 128*784), 128, 784)
	require.NoError(b, err)
	y, err := tensor.FromSlice(b.Context(), rt, make([]int32, 128), 128)
	require.NoError(b, err)
	tape := autograd.NewTape(b.Context(), rt)
	b.Cleanup(func() { require.NoError(b, errors.Join(tape.Close(), x.Release(), y.Release(), in.Close())) })
	return func(ctx context.Context) error {
		logits := model.Forward(tape, tape.Input(x))
		_, err := tape.Backward(tape.CrossEntropy(logits, y))
		return errors.Join(err, opt.Step(ctx), opt.ZeroGrad(ctx), tape.Reset(ctx))
	}
}
