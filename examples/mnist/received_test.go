package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/cistern-ml/cistern/trace"
)

// attributesOf maps attributes by their keys.
func attributesOf(kvs []*common.KeyValue) map[string]any {
	m := make(map[string]any)
	for _, kv := range kvs {
		switch v := kv.Value.GetValue().(type) {
		case *common.AnyValue_StringValue:
			m[kv.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			m[kv.Key] = v.IntValue
		case *common.AnyValue_DoubleValue:
			m[kv.Key] = v.DoubleValue
		case *common.AnyValue_BoolValue:
			m[kv.Key] = v.BoolValue
		default:
			m[kv.Key] = v
		}
	}
	return m
}

// tracers returns the spans of the library's scope, byName those of any scope.
func (r *receiver) tracers() (all []*spans.Span) {
	for _, x := range r.spans {
		for _, s := range x.ScopeSpans {
			if s.Scope.Name == trace.ScopeName {
				all = append(all, s.Spans...)
			}
		}
	}
	return all
}

func (r *receiver) byName(name string) (all []*spans.Span) {
	for _, x := range r.spans {
		for _, s := range x.ScopeSpans {
			for _, span := range s.Spans {
				if span.Name == name {
					all = append(all, span)
				}
			}
		}
	}
	return all
}

// metric returns the last exported data of a metric.
func (r *receiver) metric(t *testing.T, name string) (last *metrics.Metric) {
	t.Helper()
	for _, x := range r.metrics {
		for _, s := range x.ScopeMetrics {
			for _, m := range s.Metrics {
				if m.Name == name {
					last = m
				}
			}
		}
	}
	require.NotNil(t, last, "no metric %s", name)
	return last
}

// sum returns the sum of a metric's points, of those with the attribute's value if the key is not
// empty.
func (r *receiver) sum(t *testing.T, name, key, value string) (sum float64) {
	t.Helper()
	m := r.metric(t, name)
	points := m.GetSum().GetDataPoints()
	if points == nil {
		points = m.GetGauge().GetDataPoints()
	}
	require.NotEmpty(t, points, name)
	for _, p := range points {
		if key == "" || attributesOf(p.Attributes)[key] == value {
			sum += float64(p.GetAsInt()) + p.GetAsDouble()
		}
	}
	return sum
}
