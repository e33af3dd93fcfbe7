package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// receiver is a collector of OTLP over gRPC or HTTP that stores all requests.
type receiver struct {
	coltrace.UnimplementedTraceServiceServer
	endpoint string
	kill     func() // closes its port and every connection, at once

	mu      sync.Mutex
	spans   []*spans.ResourceSpans
	metrics []*metrics.ResourceMetrics
	logs    []*logs.ResourceLogs
	got     chan struct{} // holds a value after spans came
}

// The protocols, as OTEL_EXPORTER_OTLP_PROTOCOL names them.
var protocols = []string{"grpc", "http/protobuf"}

func newReceiver(t *testing.T, protocol string) *receiver {
	r := &receiver{got: make(chan struct{}, 1)}
	if protocol == "grpc" {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		server := grpc.NewServer(grpc.WaitForHandlers(true))
		coltrace.RegisterTraceServiceServer(server, r)
		colmetrics.RegisterMetricsServiceServer(server, metricsService{r: r})
		collogs.RegisterLogsServiceServer(server, logsService{r: r})
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		r.endpoint = "http://" + listener.Addr().String()
		r.kill = sync.OnceFunc(func() {
			server.Stop()
			<-served
		})
	} else {
		server := httptest.NewServer(r)
		r.endpoint = server.URL
		r.kill = sync.OnceFunc(func() {
			server.Listener.Close()
			server.CloseClientConnections()
			server.Close()
		})
	}
	t.Cleanup(r.kill)
	return r
}

// environment returns the variables with which a program sends to r.
func (r *receiver) environment(protocol string) map[string]string {
	return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": r.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
}

// Export keeps spans.
func (r *receiver) Export(_ context.Context, x *coltrace.ExportTraceServiceRequest) (*coltrace.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, x.ResourceSpans...)
	select {
	case r.got <- struct{}{}:
	default:
	}
	return &coltrace.ExportTraceServiceResponse{}, nil
}

type metricsService struct {
	colmetrics.UnimplementedMetricsServiceServer
	r *receiver
}

// Export keeps metrics.
func (s metricsService) Export(_ context.Context, x *colmetrics.ExportMetricsServiceRequest) (*colmetrics.ExportMetricsServiceResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.metrics = append(s.r.metrics, x.ResourceMetrics...)
	return &colmetrics.ExportMetricsServiceResponse{}, nil
}

type logsService struct {
	collogs.UnimplementedLogsServiceServer
	r *receiver
}

// Export keeps log records.
func (s logsService) Export(_ context.Context, x *collogs.ExportLogsServiceRequest) (*collogs.ExportLogsServiceResponse, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.logs = append(s.r.logs, x.ResourceLogs...)
	return &collogs.ExportLogsServiceResponse{}, nil
}

// ServeHTTP receives OTLP over HTTP.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err == nil && req.Header.Get("Content-Encoding") == "gzip" {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, err = io.ReadAll(z)
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var answer proto.Message
	switch ctx := req.Context(); req.URL.Path {
	case "/v1/traces":
		var x coltrace.ExportTraceServiceRequest
		if err = proto.Unmarshal(body, &x); err == nil {
			answer, err = r.Export(ctx, &x)
		}
	case "/v1/metrics":
		var x colmetrics.ExportMetricsServiceRequest
		if err = proto.Unmarshal(body, &x); err == nil {
			answer, err = metricsService{r: r}.Export(ctx, &x)
		}
	case "/v1/logs":
		var x collogs.ExportLogsServiceRequest
		if err = proto.Unmarshal(body, &x); err == nil {
			answer, err = logsService{r: r}.Export(ctx, &x)
		}
	default:
		http.NotFound(w, req)
		return
	}
	text, _ := proto.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(text)
}

// blackHole accepts connections and never answers. It returns its address.
func blackHole(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				_, _ = io.Copy(io.Discard, c) // until the program ends
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		all.Wait()
	})
	return "http://" + listener.Addr().String()
}

// resources returns the resources of all received telemetry.
func (r *receiver) resources() (all []*resource.Resource) {
	for _, x := range r.spans {
		all = append(all, x.Resource)
	}
	for _, x := range r.metrics {
		all = append(all, x.Resource)
	}
	for _, x := range r.logs {
		all = append(all, x.Resource)
	}
	return all
}
