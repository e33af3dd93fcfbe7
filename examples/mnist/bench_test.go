package main

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/record"
)

// BenchmarkProfiling is a training step of the mlp, with nothing watching it but the labels, which are always there; with a
// profile of each step; with spans too; with a recording to a file, too; with call stacks of all allocations in that; and
// with those of frees. The device is that of CISTERN_TEST_DEVICE, or host.
func BenchmarkProfiling(b *testing.B) {
	for i, name := range []string{"labels", "steps", "spans", "recording", "stacks", "stacks of frees"} {
		b.Run(name, func(b *testing.B) {
			telemetry := &telemetry{}
			if i >= 2 {
				telemetry.provider = sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()))
				telemetry.meters, telemetry.logs = sdkmetric.NewMeterProvider(), sdklog.NewLoggerProvider()
				var err error
				telemetry.tracer, err = trace.New(trace.Config{TracerProvider: telemetry.provider, MeterProvider: telemetry.meters})
				require.NoError(b, err)
				defer func() { require.NoError(b, telemetry.provider.Shutdown(context.Background())) }()
			}
			data := batcher{data: synthetic(60 * 128), size: 128, inOrder: true}
			o := options{device: cmp.Or(os.Getenv("CISTERN_TEST_DEVICE"), "host"), model: "mlp", optimizer: "adam", seed: 1}
			tr, err := newTrainer(context.Background(), o, data.fields(), 1<<30, telemetry, &profiling{})
			require.NoError(b, err)
			defer func() { require.NoError(b, tr.close()) }()
			if i == 0 {
				tr.profiler = nil
			}
			if i >= 3 {
				file, err := os.Create(filepath.Join(b.TempDir(), "recording.jsonl.gz"))
				require.NoError(b, err)
				stacks := memcache.StacksNone
				switch i {
				case 4:
					stacks = memcache.StacksAlloc
				case 5:
					stacks = memcache.StacksAll
				}
				recorder, err := record.Start(file, tr.env.Cache(), record.Options{Gzip: true, Stacks: stacks})
				require.NoError(b, err)
				defer func() {
					require.NoError(b, recorder.Close())
					require.NoError(b, file.Close())
				}()
			}
			step := func(n int) {
				if n%data.batches() == 0 {
					require.NoError(b, tr.loader.Start(context.Background(), data.epoch(0)))
				}
				_, err := tr.trainStep(context.Background())
				require.NoError(b, err)
			}
			n := 0
			for ; n < 3; n++ {
				step(n)
			}
			b.ReportAllocs()
			for b.Loop() {
				step(n)
				n++
			}
			require.NoError(b, tr.env.Synchronize(context.Background()))
		})
	}
}
