package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/record"
)

// watched is a way to watch a training. Each has what the one before it has, but for the spans of Slow, which only they have.
type watched int

const (
	labels        watched = iota // always there
	profiles                     // of each step
	stepSpans                    // of each step, and of the device's part of it
	slowSpans                    // as a Tracer makes them by default
	recording                    // to a file, with stepSpans
	allocStacks                  // in the recording
	allocAndFrees                // the same, also of frees
)

func (w watched) String() string {
	return []string{"labels", "+profiles", "+step-spans", "+slow-spans", "+recording", "+stacks", "+stacks-of-frees"}[w]
}

// watchedTraining is a training of the mlp that is watched.
type watchedTraining struct {
	*trainer
	data  batcher
	began int             // steps
	took  []time.Duration // of each round
}

// newWatchedTraining makes a training on the device of CISTERN_TEST_DEVICE, or host.
func newWatchedTraining(b *testing.B, w watched) *watchedTraining {
	telemetry := &telemetry{}
	if w >= stepSpans {
		detail := trace.Steps
		if w == slowSpans {
			detail = trace.Slow
		}
		telemetry.provider = sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()))
		telemetry.meters, telemetry.logs = sdkmetric.NewMeterProvider(), sdklog.NewLoggerProvider()
		var err error
		telemetry.tracer, err = trace.New(trace.Config{TracerProvider: telemetry.provider, MeterProvider: telemetry.meters, Detail: detail})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, telemetry.provider.Shutdown(context.Background())) })
	}
	t := &watchedTraining{data: batcher{data: synthetic(60 * 128), size: 128, inOrder: true}}
	o := options{device: cmp.Or(os.Getenv("CISTERN_TEST_DEVICE"), "host"), model: "mlp", optimizer: "adam", seed: 1}
	var err error
	t.trainer, err = newTrainer(context.Background(), o, t.data.fields(), 1<<30, telemetry, &profiling{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, t.close()) })
	if w == labels {
		t.profiler = nil
	}
	if w >= recording {
		file, err := os.Create(filepath.Join(b.TempDir(), "recording.jsonl.gz"))
		require.NoError(b, err)
		stacks := []memcache.Stacks{memcache.StacksNone, memcache.StacksAlloc, memcache.StacksAll}[w-recording]
		recorder, err := record.Start(file, t.env.Cache(), record.Options{Gzip: true, Stacks: stacks})
		require.NoError(b, err)
		b.Cleanup(func() {
			require.NoError(b, recorder.Close())
			require.NoError(b, file.Close())
		})
	}
	return t
}

func (t *watchedTraining) run(b *testing.B, steps int) {
	began := time.Now()
	for range steps {
		if t.began%t.data.batches() == 0 {
			require.NoError(b, t.loader.Start(context.Background(), t.data.epoch(0)))
		}
		_, err := t.trainStep(context.Background())
		require.NoError(b, err)
		t.began++
	}
	require.NoError(b, t.env.Synchronize(context.Background()))
	t.took = append(t.took, time.Since(began)/time.Duration(steps))
}

// BenchmarkProfiling is 100 training steps of the mlp with each way to watch it, in turn. Besides the medians of a step it
// says by how much each is above labels: the median of the rounds, each beside the labels of the same round.
func BenchmarkProfiling(b *testing.B) {
	ways := []watched{labels, profiles, stepSpans, slowSpans, recording, allocStacks, allocAndFrees}
	trainings := make([]*watchedTraining, len(ways))
	for i, w := range ways {
		trainings[i] = newWatchedTraining(b, w)
		trainings[i].run(b, 10)
		trainings[i].took = nil
	}
	for round := 0; b.Loop(); round++ {
		for i := range ways {
			trainings[(i+round)%len(ways)].run(b, 100)
		}
	}
	for i, w := range ways {
		var took, above []float64
		for round, t := range trainings[i].took {
			took = append(took, float64(t.Nanoseconds()))
			above = append(above, 100*(float64(t)/float64(trainings[labels].took[round])-1))
		}
		slices.Sort(took)
		slices.Sort(above)
		b.ReportMetric(took[len(took)/2], fmt.Sprintf("%v-ns/step", w))
		if w != labels {
			b.ReportMetric(above[len(above)/2], fmt.Sprintf("%v-%%", w))
		}
	}
}
