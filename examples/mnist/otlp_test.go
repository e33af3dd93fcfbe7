package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"

	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
	"github.com/cistern-ml/cistern/trace"
)

// spansMade and spansDropped return the counts of spans that a run printed.
func spansMade(t *testing.T, out string) int { return told(t, out, `spans: (\d+) made`) }

func spansDropped(t *testing.T, out string) int { return told(t, out, `frees\), (-?\d+) dropped`) }

func told(t *testing.T, out, pattern string) int {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(out)
	require.NotNil(t, m, out)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

func setenv(t *testing.T, variables map[string]string) {
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

// TestEverythingArrives: the telemetry of a training arrives completely over OTLP. It agrees with
// the program's own results and with itself.
func TestEverythingArrives(t *testing.T) {
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			r := newReceiver(t, protocol)
			setenv(t, r.environment(protocol))
			t.Setenv("OTEL_SERVICE_NAME", "digits")
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
			file := filepath.Join(t.TempDir(), "r.json")
			var out, errs bytes.Buffer
			const steps, batch = 12, 2
			args := []string{"-data", dataOf(t, 2*steps, 10), "-batch", strconv.Itoa(batch), "-epochs", "1", "-trace", "otlp", "-json", file}
			require.Zero(t, run(context.Background(), args, &out, &errs), errs.String())
			r.kill()
			var result result
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &result))

			require.Zero(t, spansDropped(t, out.String()), out.String())
			require.NotContains(t, out.String(), "exporter failed")
			require.Len(t, r.tracers(), spansMade(t, out.String()), "each span arrives, once")
			r.checkTree(t)
			r.checkSteps(t, steps, batch*(digits.Pixels*4+4))
			r.checkPairs(t)
			r.checkMetrics(t, &result)
			r.checkResources(t)
			require.Empty(t, r.logs)
		})
	}
}

// checkTree: steps are roots of their traces, all other spans are below one of them or the run's,
// and all begin before they end.
func (r *receiver) checkTree(t *testing.T) {
	root := r.byName("mnist")
	require.Len(t, root, 1)
	ids := map[string]string{string(root[0].SpanId): string(root[0].TraceId)}
	for _, s := range r.tracers() {
		require.NotContains(t, ids, string(s.SpanId), "twice")
		ids[string(s.SpanId)] = string(s.TraceId)
	}
	traces := map[string]bool{string(root[0].TraceId): true}
	for _, s := range r.tracers() {
		if s.Name == "cistern.step" {
			require.Empty(t, s.ParentSpanId)
			require.False(t, traces[string(s.TraceId)], "a trace of its own")
			traces[string(s.TraceId)] = true
			require.Len(t, s.Links, 1)
			require.Equal(t, root[0].SpanId, s.Links[0].SpanId)
		} else {
			require.Equal(t, string(s.TraceId), ids[string(s.ParentSpanId)], "the parent of %s", s.Name)
		}
		require.LessOrEqual(t, s.StartTimeUnixNano, s.EndTimeUnixNano)
		require.Regexp(t, `^cistern\.[a-z0-9_.]+$`, s.Name)
	}
	for _, x := range r.spans {
		for _, s := range x.ScopeSpans {
			if s.Scope.Name == trace.ScopeName {
				require.NotEmpty(t, s.Scope.Version)
				require.Contains(t, s.SchemaUrl, "opentelemetry.io/schemas/")
			}
		}
	}
}

// checkSteps: each step has its number and the bytes of its own batch, which are a part of the
// device's.
func (r *receiver) checkSteps(t *testing.T, n int, bytes int64) {
	steps, parts := r.byName("cistern.step"), r.byName("cistern.step.device")
	require.Len(t, steps, n)
	require.Len(t, parts, n)
	of := make(map[any]string)
	for _, s := range steps {
		a := attributesOf(s.Attributes)
		require.Equal(t, bytes, a["cistern.step.h2d.size"], "step %v", a["cistern.step.number"])
		of[a["cistern.step.number"]] = string(s.SpanId)
	}
	require.Len(t, of, n)
	copied := make(map[string]int64)
	for _, s := range r.byName("cistern.transfer.h2d") {
		copied[string(s.ParentSpanId)] += attributesOf(s.Attributes)["cistern.transfer.size"].(int64)
	}
	for number, id := range of {
		require.Equal(t, bytes, copied[id], "the copies of step %v are in it", number)
	}
	for _, s := range parts {
		a := attributesOf(s.Attributes)
		require.Equal(t, of[a["cistern.step.number"]], string(s.ParentSpanId))
		require.InDelta(t, a["cistern.step.device.time"], float64(s.EndTimeUnixNano-s.StartTimeUnixNano)/1e9, 1e-6)
		require.LessOrEqual(t, a["cistern.step.device.busy"], a["cistern.step.device.time"])
	}
}

// checkPairs: each block whose allocation has a span has one span of its free, and the other way
// round.
func (r *receiver) checkPairs(t *testing.T) {
	balance := make(map[any]int)
	allocs := r.byName("cistern.memory.alloc")
	for _, s := range allocs {
		balance[attributesOf(s.Attributes)["cistern.block.serial"]]++
	}
	require.NotEmpty(t, allocs)
	require.Len(t, balance, len(allocs))
	for _, s := range r.byName("cistern.memory.free") {
		balance[attributesOf(s.Attributes)["cistern.block.serial"]]--
	}
	for serial, n := range balance {
		require.Zero(t, n, "of block %v", serial)
	}
}

// checkMetrics compares the last metrics with the results of -json, and with each other.
func (r *receiver) checkMetrics(t *testing.T, want *result) {
	require.EqualValues(t, want.MaxMemoryAllocated, r.sum(t, "cistern.device.memory.peak", "cistern.memory.state", "allocated"))
	require.EqualValues(t, want.MaxMemoryReserved, r.sum(t, "cistern.device.memory.peak", "cistern.memory.state", "reserved"))
	reserved, limit := r.sum(t, "cistern.device.memory.reserved", "", ""), r.sum(t, "cistern.device.memory.limit", "", "")
	require.Equal(t, reserved, r.sum(t, "cistern.device.memory.usage", "", ""))
	require.InDelta(t, reserved/limit, r.sum(t, "cistern.device.memory.utilization", "", ""), 1e-9)
	require.Equal(t, r.sum(t, "cistern.device.memory.usage", "cistern.memory.state", "allocated"), r.sum(t, "cistern.device.memory.category.usage", "", ""))
	for _, direction := range []string{"h2d", "d2h"} {
		require.EqualValues(t, len(r.byName("cistern.transfer."+direction)), r.sum(t, "cistern.transfer.copies", "cistern.transfer.direction", direction))
	}
	duration := r.metric(t, "cistern.step.duration").GetHistogram().DataPoints
	require.Len(t, duration, 1)
	require.EqualValues(t, want.Memory.Steps, duration[0].Count)
	peak := r.metric(t, "cistern.step.memory.peak").GetHistogram().DataPoints
	require.Len(t, peak, 1)
	require.EqualValues(t, want.Memory.Largest.AllocatedPeak, peak[0].GetMax())
	require.InDelta(t, float64(want.Memory.Mean.AllocatedPeak), peak[0].GetSum()/float64(peak[0].Count), 1)
	for _, name := range []string{"cistern.device.allocated", "cistern.device.allocations", "cistern.device.segment.held", "cistern.device.oom.retries",
		"cistern.pinned.memory.usage", "cistern.pinned.memory.peak", "cistern.transfer.io", "cistern.transfer.pending",
		"cistern.device.allocation.duration", "cistern.transfer.duration"} {
		r.metric(t, name)
	}
}

// checkResources: all telemetry has the resource attributes of the environment and of the SDK's
// detectors.
func (r *receiver) checkResources(t *testing.T) {
	instances := map[any]bool{}
	for _, x := range r.resources() {
		a := attributesOf(x.Attributes)
		require.Equal(t, "digits", a["service.name"])
		require.Equal(t, "test", a["deployment.environment.name"])
		require.EqualValues(t, os.Getpid(), a["process.pid"])
		for _, key := range []string{"telemetry.sdk.name", "telemetry.sdk.language", "telemetry.sdk.version", "host.name", "os.type",
			"process.executable.name", "process.runtime.name", "process.runtime.version"} {
			require.NotEmpty(t, a[key], key)
		}
		require.NotContains(t, a, "process.command_args")
		instances[a["service.instance.id"]] = true
	}
	require.Len(t, instances, 1)
	require.NotContains(t, instances, nil)
}

// TestOutOfMemoryArrives: running out of memory arrives as a log event of its step.
func TestOutOfMemoryArrives(t *testing.T) {
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			r := newReceiver(t, protocol)
			setenv(t, r.environment(protocol))
			var out, errs bytes.Buffer
			args := []string{"-data", dataOf(t, 128, 10), "-capacity", "27MiB", "-trace", "otlp"}
			require.Equal(t, 1, run(context.Background(), args, &out, &errs))
			r.kill()
			require.Contains(t, out.String(), "log records: 1 made, 0 dropped\n")
			require.Zero(t, spansDropped(t, out.String()), out.String())
			var records []*logs.LogRecord
			for _, x := range r.logs {
				for _, s := range x.ScopeLogs {
					require.Equal(t, trace.ScopeName, s.Scope.Name)
					records = append(records, s.LogRecords...)
				}
			}
			require.Len(t, records, 1)
			require.Equal(t, trace.EventOutOfMemory, records[0].EventName)
			require.Contains(t, strings.TrimSpace(errs.String()), records[0].Body.GetStringValue())
			require.Equal(t, logs.SeverityNumber_SEVERITY_NUMBER_ERROR, records[0].SeverityNumber)
			steps := r.byName("cistern.step")
			require.Len(t, steps, 1)
			require.Equal(t, steps[0].TraceId, records[0].TraceId)
			ids := []string{string(steps[0].SpanId)}
			for _, s := range r.byName("cistern.memory.alloc") {
				ids = append(ids, string(s.SpanId))
			}
			require.Contains(t, ids, string(records[0].SpanId), "of the step, or of the allocation in it")
			a := attributesOf(records[0].Attributes)
			require.Equal(t, "out_of_memory", a["error.type"])
			require.EqualValues(t, 27<<20, a["cistern.memory.total"])
		})
	}
}

// TestEnvironmentChoosesExporters: each signal has its own exporter. An unknown exporter is an
// error before the training.
func TestEnvironmentChoosesExporters(t *testing.T) {
	r := newReceiver(t, "http/protobuf")
	setenv(t, r.environment("http/protobuf"))
	t.Setenv("OTEL_METRICS_EXPORTER", "none")
	var out, errs bytes.Buffer
	args := []string{"-data", small(t), "-batch", "10", "-epochs", "1", "-trace", "otlp"}
	require.Zero(t, run(context.Background(), args, &out, &errs), errs.String())
	require.Empty(t, r.metrics)
	require.NotEmpty(t, r.spans)
	require.Zero(t, spansDropped(t, out.String()))

	t.Setenv("OTEL_METRICS_EXPORTER", "prometheus")
	t.Setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "0")
	require.Zero(t, run(context.Background(), args, &out, &errs), errs.String())
	for name, value := range map[string]string{"OTEL_TRACES_EXPORTER": "nonsense", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier/pigeon"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			var out, errs bytes.Buffer
			require.Equal(t, 1, run(context.Background(), args, &out, &errs))
			require.True(t, strings.HasPrefix(errs.String(), "mnist: -trace: telemetry: exporter otlp: "), errs.String())
		})
	}
}

// TestEnvironmentOverrulesStdout: a signal is not printed if the environment names an exporter for
// it.
func TestEnvironmentOverrulesStdout(t *testing.T) {
	t.Setenv("OTEL_METRICS_EXPORTER", "none")
	var out, errs bytes.Buffer
	require.Zero(t, run(context.Background(), []string{"-data", small(t), "-batch", "10", "-epochs", "1", "-trace", "stdout"}, &out, &errs), errs.String())
	p := parse(t, out.String(), errs.String())
	require.NotEmpty(t, p.spans)
	require.Empty(t, p.metrics)
}
