package telemetry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// TestPlainIfLocal: the environment decides whether the exporters use TLS, and is as before
// afterwards.
func TestPlainIfLocal(t *testing.T) {
	insecure := func() (set []string) {
		defer plainIfLocal()()
		for _, signal := range []string{"TRACES", "METRICS", "LOGS"} {
			if os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_INSECURE") != "" {
				set = append(set, signal)
			}
		}
		return set
	}
	for _, name := range []string{"", "TRACES_", "METRICS_", "LOGS_"} {
		t.Setenv("OTEL_EXPORTER_OTLP_"+name+"ENDPOINT", "")
		t.Setenv("OTEL_EXPORTER_OTLP_"+name+"INSECURE", "")
	}
	require.Equal(t, []string{"TRACES", "METRICS", "LOGS"}, insecure())
	require.Empty(t, os.Getenv("OTEL_EXPORTER_OTLP_LOGS_INSECURE"))
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://collector.test")
	require.Equal(t, []string{"TRACES", "LOGS"}, insecure())
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.test")
	require.Empty(t, insecure())
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_INSECURE", "false")
	require.Empty(t, insecure(), "the environment asks for TLS")
}

func TestBadConfig(t *testing.T) {
	for want, c := range map[string]Config{
		`exporter "nonsense": want otlp or stdout`: {Exporter: "nonsense"},
		`exporter "": want otlp or stdout`:         {},
		"exporter stdout: want an Output":          {Exporter: "stdout"},
	} {
		_, err := New(t.Context(), c)
		require.EqualError(t, err, "telemetry: "+want)
	}
	t.Setenv("OTEL_METRICS_EXPORTER", "nonsense")
	_, err := New(t.Context(), Config{Exporter: "otlp"})
	require.ErrorContains(t, err, "telemetry: exporter otlp: ")
}

// TestBadAllEvery: after an error of the tracer nothing is left open, and there is no SDK.
func TestBadAllEvery(t *testing.T) {
	sdk, err := New(t.Context(), Config{Exporter: "stdout", Output: io.Discard, AllEvery: -1})
	require.ErrorIs(t, err, trace.ErrInvalid)
	require.ErrorContains(t, err, "AllEvery is -1")
	require.Nil(t, sdk)
}

// TestProgram: the program's span, the allocations of a rank and the last metrics arrive, with the
// service's name and the error.
func TestProgram(t *testing.T) {
	var out bytes.Buffer
	sdk, err := New(t.Context(), Config{Exporter: "stdout", Output: &out, Service: "my-training"})
	require.NoError(t, err)
	ctx, span := sdk.Start(t.Context(), "training")
	tracer, err := sdk.RankTracer(1, 4)
	require.NoError(t, err)
	s := stacktest.New(t, stacktest.Config{Capacity: 64 << 20, Cache: memcache.Config{Observer: tracer.Memory()}})
	_, err = tracer.Watch(s.Cache)
	require.NoError(t, err)
	block, err := s.Cache.Alloc(ctx, 1<<20, s.Stream)
	require.NoError(t, err)
	sdk.CloseTracer(tracer)
	require.NoError(t, block.Free())
	sdk.Shutdown(span, errors.New("it broke"))
	for _, want := range []string{`"Name":"training"`, `"Name":"cistern.memory.driver_alloc"`, "cistern.device.memory.usage", "my-training", "it broke", `"Key":"cistern.rank"`} {
		require.True(t, strings.Contains(out.String(), want), want) // the text is long
	}
	out.Reset()
	sdk.Report(&out)
	require.Regexp(t, `spans: [1-9]\d* made, 0 sampled out .*, 0 dropped\n$`, out.String())
}

// TestAllEvery: of three steps with one allocation each, AllEvery chooses those with a span for it.
func TestAllEvery(t *testing.T) {
	for every, want := range map[int]int{0: 1, 1: 3, 2: 2} {
		var out bytes.Buffer
		sdk, err := New(t.Context(), Config{Exporter: "stdout", Output: &out, AllEvery: every})
		require.NoError(t, err)
		s := stacktest.New(t, stacktest.Config{Capacity: 64 << 20, Cache: memcache.Config{Observer: sdk.Tracer().Memory()}})
		profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: s.Cache, Tracer: sdk.Tracer()})
		require.NoError(t, err)
		for n := range int64(3) {
			ctx, step := profiler.StartStep(t.Context(), n+1)
			block, err := s.Cache.Alloc(ctx, 1<<20, s.Stream)
			require.NoError(t, err)
			require.NoError(t, block.Free())
			step.End()
		}
		require.NoError(t, profiler.Close())
		_, span := sdk.Start(t.Context(), "program")
		sdk.Shutdown(span, nil)
		require.Equal(t, want, strings.Count(out.String(), `"Name":"cistern.memory.alloc"`), every)
	}
}

// TestOtherSpansAreNotCounted: the program's own span is not counted as one of the tracer.
func TestOtherSpansAreNotCounted(t *testing.T) {
	var out bytes.Buffer
	sdk, err := New(t.Context(), Config{Exporter: "stdout", Output: &out})
	require.NoError(t, err)
	_, span := sdk.Start(t.Context(), "program")
	sdk.Shutdown(span, nil)
	sdk.Shutdown(span, nil)
	require.NotContains(t, out.String(), `"Code":"Error"`)
	out.Reset()
	sdk.Report(&out)
	require.Contains(t, out.String(), "spans: 0 made, 0 sampled out (one step in 100 has all allocations and frees), 0 dropped\n")
}

// failingWriter fails after some writes.
type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// TestFailuresAreReported: what can't be sent is a line of the report with the first error.
func TestFailuresAreReported(t *testing.T) {
	sdk, err := New(t.Context(), Config{Exporter: "stdout", Output: failingWriter{errors.New("no space")}})
	require.NoError(t, err)
	_, span := sdk.Start(t.Context(), "program")
	sdk.Shutdown(span, nil)
	var out strings.Builder
	sdk.Report(&out)
	require.Regexp(t, `the exporter failed [1-9]\d* times, first with: .*no space`, out.String())
}

// TestNilDoesNothing: a program without telemetry calls the same methods.
func TestNilDoesNothing(t *testing.T) {
	var sdk *SDK
	require.Nil(t, sdk.Tracer())
	tracer, err := sdk.RankTracer(0, 2)
	require.NoError(t, err)
	require.Nil(t, tracer)
	ctx, span := sdk.Start(t.Context(), "program")
	require.Equal(t, t.Context(), ctx)
	sdk.CloseTracer(nil)
	sdk.Shutdown(span, errors.New("it broke"))
	var out strings.Builder
	sdk.Report(&out)
	require.Empty(t, out.String())
}

// refusingExporter exports nothing and returns err.
type refusingExporter struct {
	sdktrace.SpanExporter
	err error
}

func (e refusingExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return e.err }

// TestRefusedSpansAreDropped: a span that the exporter refuses is not counted as exported.
func TestRefusedSpansAreDropped(t *testing.T) {
	var n atomic.Int64
	spans := tracetest.SpanStubs{{InstrumentationScope: instrumentation.Scope{Name: trace.ScopeName}}}.Snapshots()
	require.Error(t, (&counting{refusingExporter{err: errors.New("no connection")}, &n}).ExportSpans(t.Context(), spans))
	require.Zero(t, n.Load())
	require.NoError(t, (&counting{refusingExporter{}, &n}).ExportSpans(t.Context(), spans))
	require.EqualValues(t, 1, n.Load())
}
