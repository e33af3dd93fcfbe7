package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/promtest"
)

// TestDashboard: each query of the Grafana dashboard finds data that Prometheus scraped from a
// training of two ranks with offloading.
func TestDashboard(t *testing.T) {
	free, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	address := free.Addr().String()
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.NoError(t, free.Close())
	setenv(t, map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "prometheus",
		"OTEL_EXPORTER_PROMETHEUS_HOST": host, "OTEL_EXPORTER_PROMETHEUS_PORT": port})
	prometheus := promtest.Start(t, address)
	queries := dashboardQueries(t)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out, errs bytes.Buffer
	status := make(chan int, 1)
	args := []string{"-data", dataOf(t, 2000, 10), "-epochs", "100000", "-ranks", "2", "-offload", "-trace", "otlp"}
	go func() { status <- run(ctx, args, &out, &errs) }()
	for _, query := range queries {
		prometheus.Query(query)
	}
	stop()
	require.NotEqual(t, 1, <-status, errs.String())
}

// dashboardQueries returns the queries of all panels, with the interval of rates that Grafana would
// choose.
func dashboardQueries(t *testing.T) (queries []string) {
	text, err := os.ReadFile("grafana.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries = append(queries, strings.ReplaceAll(target.Expr, "$__rate_interval", "5s"))
		}
	}
	require.Greater(t, len(queries), 20)
	return queries
}
