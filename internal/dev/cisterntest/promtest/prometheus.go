// Package promtest makes Prometheus scrape metrics of the module and answer queries, and promtool
// check their names.
package promtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// program returns the path of prometheus or promtool. It skips the test if the program is missing.
func program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("there is no %s: Debian's package prometheus has it", name)
	}
	return path
}

// Promtool returns a function that fails the test if promtool finds a fault in metrics in
// Prometheus's text form.
func Promtool(t testing.TB) (check func(text []byte)) {
	t.Helper()
	promtool := program(t, "promtool")
	return func(text []byte) {
		t.Helper()
		run := exec.Command(promtool, "check", "metrics")
		run.Stdin = bytes.NewReader(text)
		out, err := run.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Empty(t, string(out))
	}
}

// Server is a Prometheus that runs until the end of the test. It belongs to the test's goroutine.
type Server struct {
	t   testing.TB
	url string
}

var listening = regexp.MustCompile(`address=(\S+) .*msg="?Listening on|msg="?Listening on.* address=(\S+)`)

// Start starts a Prometheus that scrapes the path /metrics of target, such as "localhost:9464",
// twice a second, and waits until it answers queries.
func Start(t testing.TB, target string) *Server {
	t.Helper()
	prometheus := program(t, "prometheus")
	folder := t.TempDir()
	config := filepath.Join(folder, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil,
		"global: {scrape_interval: 500ms, scrape_timeout: 500ms}\nscrape_configs: [{job_name: cistern, static_configs: [{targets: [%q]}]}]\n", target), 0o600))
	run := exec.Command(prometheus, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address=127.0.0.1:0")
	log, err := run.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	addresses, ended := make(chan string, 1), make(chan struct{})
	// keeps reading, so that Prometheus never blocks
	go func() {
		defer close(ended)
		defer close(addresses)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				addresses <- m[1] + m[2]
			}
		}
	}()
	t.Cleanup(func() {
		_ = run.Process.Kill()
		<-ended
		_ = run.Wait()
	})
	address, ok := <-addresses
	require.True(t, ok, "Prometheus ended before it listened")
	// it refuses queries until it has read its storage
	cisterntest.WaitFor(t, func() bool {
		r, err := http.Get("http://" + address + "/-/ready")
		require.NoError(t, err)
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	return &Server{t, "http://" + address}
}

// Series is one series of an answer, with its value now.
type Series struct {
	Labels map[string]string
	Value  float64
}

// Query waits until a query has series, and returns those with a number.
func (s *Server) Query(query string) (series []Series) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Log("no answer to ", query)
		}
	}()
	cisterntest.WaitFor(s.t, func() bool {
		series = s.answer(query)
		return len(series) > 0
	})
	return series
}

// answer returns the current series of a query.
func (s *Server) answer(query string) (series []Series) {
	s.t.Helper()
	r, err := http.Get(s.url + "/api/v1/query?query=" + url.QueryEscape(query))
	require.NoError(s.t, err)
	defer r.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	require.NoError(s.t, json.NewDecoder(r.Body).Decode(&answer))
	require.Empty(s.t, answer.Error, "%s", query)
	for _, x := range answer.Data.Result {
		value, err := strconv.ParseFloat(x.Value[1].(string), 64)
		require.NoError(s.t, err)
		if !math.IsNaN(value) {
			series = append(series, Series{x.Metric, value})
		}
	}
	return series
}
