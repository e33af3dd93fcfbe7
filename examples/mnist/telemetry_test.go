package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// spanJSON is a span as the exporter prints it.
type spanJSON struct {
	Name                string
	SpanContext, Parent struct{ TraceID, SpanID string }
	Status              struct{ Code, Description string }
	Attributes          []struct {
		Key   string
		Value struct{ Value any }
	}
	Links []struct {
		SpanContext struct{ TraceID, SpanID string }
	}
	InstrumentationScope struct{ Name string }
}

func (s spanJSON) attribute(key string) any {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.Value
		}
	}
	return nil
}

// metricsJSON are the metrics of one collection.
type metricsJSON struct {
	ScopeMetrics []struct {
		Metrics []struct {
			Name string
			Data struct {
				DataPoints []struct {
					Attributes []struct{ Value struct{ Value any } }
					Value      any
				}
			}
		}
	}
}

// printed is the output of a run with -trace stdout.
type printed struct {
	spans   []spanJSON
	metrics []metricsJSON
	text    string // on the standard error
}

// parse reads the standard output, which has only JSON.
func parse(t *testing.T, out, errs string) printed {
	t.Helper()
	p := printed{text: errs}
	for line := range strings.Lines(out) {
		switch {
		case strings.HasPrefix(line, `{"Name":`):
			var s spanJSON
			require.NoError(t, json.Unmarshal([]byte(line), &s), line)
			p.spans = append(p.spans, s)
		default:
			var m metricsJSON
			require.NoError(t, json.Unmarshal([]byte(line), &m), line)
			p.metrics = append(p.metrics, m)
		}
	}
	return p
}

func (p printed) named(name string) (found []spanJSON) {
	for _, s := range p.spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// last returns the sum of the points of a metric in its last export, of those with this value of an
// attribute if that is not empty.
func (p printed) last(t *testing.T, name, value string) (sum float64) {
	t.Helper()
	found := false
	for _, m := range p.metrics {
		for _, scope := range m.ScopeMetrics {
			for _, metric := range scope.Metrics {
				if metric.Name != name {
					continue
				}
				found, sum = true, 0
				for _, point := range metric.Data.DataPoints {
					counts := value == ""
					for _, a := range point.Attributes {
						counts = counts || a.Value.Value == value
					}
					if counts {
						sum += point.Value.(float64)
					}
				}
			}
		}
	}
	require.True(t, found, "no metric %s", name)
	return sum
}

// usage returns the allocated memory of the last metrics that have it.
func (p printed) usage(t *testing.T) float64 {
	t.Helper()
	return p.last(t, "cistern.device.memory.usage", "allocated")
}

// checkTraces: steps are roots of traces of their own, one for each rank, and everything else is
// below one of these or the run. It returns the number of traces.
func (p printed) checkTraces(t *testing.T, ranks int) int {
	t.Helper()
	ids := make(map[string]string)
	for _, s := range p.spans {
		ids[s.SpanContext.SpanID] = s.SpanContext.TraceID
	}
	roots := make(map[string]int)
	for _, s := range p.spans {
		if s.Name == "mnist" || s.Name == "cistern.step" {
			require.NotContains(t, ids, s.Parent.SpanID, s.Name)
			roots[s.SpanContext.TraceID]++
		} else {
			require.Equal(t, s.SpanContext.TraceID, ids[s.Parent.SpanID], "the parent of %s", s.Name)
		}
	}
	for _, s := range p.named("mnist") {
		roots[s.SpanContext.TraceID] += ranks - 1
	}
	for trace, n := range roots {
		require.Equal(t, ranks, n, trace)
	}
	return len(roots)
}

// TestTelemetryOfARun: the run and its steps are traces with links to each other, and the metrics
// are those before the end.
func TestTelemetryOfARun(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"-data", small(t), "-batch", "10", "-epochs", "2", "-trace", "stdout"}
	require.Zero(t, run(context.Background(), args, &out, &errs), errs.String())
	p := parse(t, out.String(), errs.String())
	runs := p.named("mnist")
	require.Len(t, runs, 1)
	require.Equal(t, "mlp", runs[0].attribute("mnist.model"))
	require.Equal(t, false, runs[0].attribute("mnist.interrupted"))
	require.Equal(t, 1+4, p.checkTraces(t, 1))
	require.Len(t, runs[0].Links, 4)
	linked := make(map[string]bool)
	for _, l := range runs[0].Links {
		linked[l.SpanContext.SpanID] = true
	}
	for _, s := range p.named("cistern.step") {
		require.True(t, linked[s.SpanContext.SpanID])
		require.Len(t, s.Links, 1)
		require.Equal(t, runs[0].SpanContext, s.Links[0].SpanContext)
	}
	require.Len(t, p.named("cistern.step"), 4)
	require.Positive(t, p.last(t, "cistern.transfer.copies", "d2h"))
	for _, direction := range []string{"h2d", "d2h"} {
		require.Len(t, p.named("cistern.transfer."+direction), int(p.last(t, "cistern.transfer.copies", direction)), "each copy has a span")
	}
	require.Len(t, p.named("cistern.memory.driver_alloc"), int(p.last(t, "cistern.device.segment.held", "")), "each segment has a span")
	require.NotEmpty(t, p.named("cistern.pinned.alloc"))
	require.Regexp(t, `spans: \d+ made, \d+ sampled out .*, 0 dropped\n$`, p.text)
	require.GreaterOrEqual(t, p.usage(t), 3*4*669706.0, "parameters and Adam's moments")
}

// TestParallelRatioSamplesSteps: the sampler of OpenTelemetry's environment variables decides for
// each step, of one rank and of several.
func TestParallelRatioSamplesSteps(t *testing.T) {
	for sampler, ranks := range map[string]int{"traceidratio": 1, "parentbased_traceidratio": 2} {
		t.Run(sampler, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_SAMPLER", sampler)
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0.2")
			var out, errs bytes.Buffer
			args := []string{"-data", dataOf(t, 200, 10), "-batch", "2", "-ranks", strconv.Itoa(ranks), "-epochs", "1", "-trace", "stdout"}
			require.Zero(t, run(context.Background(), args, &out, &errs), errs.String())
			p := parse(t, out.String(), errs.String())
			// Of 100 steps fewer than 3 or more than 60 are kept with a chance below 1e-6: all ids
			// are random.
			kept := p.checkTraces(t, ranks)
			require.True(t, kept > 2 && kept < 60, kept)
			require.Contains(t, p.text, "0 dropped\n")
		})
	}
}

// TestFailedRunsSendTheirTelemetry: failed runs send their telemetry, also if they fail before the
// first step.
func TestFailedRunsSendTheirTelemetry(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no data":                 {[]string{"-data", t.TempDir()}, "no train-images"},
		"no device":               {[]string{"-device", "nonsense"}, "no such backend"},
		"no memory for the model": {[]string{"-capacity", "6MiB"}, "out of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			require.Equal(t, 1, run(context.Background(), append([]string{"-trace", "stdout", "-data", small(t)}, c.args...), &out, &errs))
			p := parse(t, out.String(), errs.String())
			require.Len(t, p.named("mnist"), 1)
			status := p.named("mnist")[0].Status
			require.Equal(t, "Error", status.Code)
			require.Contains(t, status.Description, c.want)
			require.Regexp(t, `spans: \d+ made, \d+ sampled out .*, 0 dropped\n(log records: 1 made, 0 dropped\n)?mnist: `, p.text)
			if name == "no memory for the model" {
				require.NotEmpty(t, p.named("cistern.memory.driver_alloc"))
				require.Positive(t, p.usage(t), "what was allocated by then")
			}
		})
	}
}

// TestOutOfMemoryIsInTheTable: a run that fails during the training prints its steps, including the
// one that failed.
func TestOutOfMemoryIsInTheTable(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"-trace", "stdout", "-data", dataOf(t, 128, 10), "-capacity", "27MiB"}
	require.Equal(t, 1, run(context.Background(), args, &out, &errs))
	require.Contains(t, errs.String(), "out of memory")
	p := parse(t, out.String(), errs.String())
	require.Contains(t, p.text, "steps that failed: 1 of 1, the last one was 1\ndriver allocations tried again after a flush: 1\nrequests that ran out of memory: 1\n")
	require.Len(t, p.named("cistern.step"), 1)
	require.Equal(t, "Error", p.named("cistern.step")[0].Status.Code)
	require.Equal(t, "out_of_memory", p.named("cistern.step")[0].attribute("error.type"))
	require.Positive(t, p.usage(t))
	require.Contains(t, p.text, "0 dropped\n")
}

// TestInterruptedBeforeTheFirstStep: a run without a step has only its trace.
func TestInterruptedBeforeTheFirstStep(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	require.Equal(t, 130, run(ctx, []string{"-trace", "stdout", "-data", small(t)}, &out, &errs), errs.String())
	p := parse(t, out.String(), errs.String())
	require.Contains(t, p.text, "interrupted before the first step\n")
	require.Len(t, p.named("mnist"), 1)
	require.Equal(t, true, p.named("mnist")[0].attribute("mnist.interrupted"))
}
