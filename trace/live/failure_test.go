package live

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// failing is a handler, with three steps, whose clients may not read their answers.
type failing struct {
	*Handler
	t      testing.TB
	faults *failtest.Faults
}

func openFailing(t testing.TB, f *failtest.Faults) *failing {
	t.Helper()
	s := stacktest.New(t, stacktest.Config{Device: cisterntest.Host(t, 16*mib)})
	require.NoError(t, s.Cache.RecordHistory(memcache.HistoryOptions{Entries: 100}))
	h, err := New(Config{Cache: s.Cache, Pool: s.Pool})
	require.NoError(t, err)
	for n := range int64(3) {
		h.Step(trace.StepProfile{Step: n + 1})
	}
	for i := range 3 {
		ctx := memcache.WithModule(t.Context(), strings.Repeat("m", i+1))
		b, err := s.Cache.Alloc(ctx, 1000, s.Stream)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, b.Free()) })
	}
	return &failing{Handler: h, t: t, faults: f}
}

// taken is the resources of the handler that answers use: none is in use when they have ended.
func (m *failing) taken() [3]int64 {
	return [3]int64{int64(len(m.slots)), m.watching.Load(), m.deltas.Load()}
}

// connection is a client's, whose writes and flushes may fail. After a failure nothing more is
// written.
type connection struct {
	t       testing.TB
	faults  *failtest.Faults
	header  http.Header
	status  int
	body    bytes.Buffer
	err     error // the first
	flushed func()
}

func (c *connection) Header() http.Header { return c.header }

func (c *connection) WriteHeader(status int) { c.status = status }

func (c *connection) SetWriteDeadline(time.Time) error { return nil }

func (c *connection) Write(b []byte) (int, error) {
	assert.NoError(c.t, c.err, "there is a write after the error")
	n, err := failtest.Writer(c.faults, &c.body).Write(b)
	c.err = err
	return n, err
}

func (c *connection) FlushError() error {
	assert.NoError(c.t, c.err, "there is a flush after the error")
	if c.err = c.faults.Call("Flush"); c.err == nil && c.flushed != nil {
		c.flushed()
	}
	return c.err
}

// page is a trial of an answer. what is the client's view of a complete one.
func (m *failing) page(page string, what func(body []byte) any) failtest.Trial {
	var seen any
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			outer := ctx
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			c := &connection{t: m.t, faults: m.faults, header: http.Header{}, status: http.StatusOK, flushed: cancel}
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+Prefix+page, nil)
			if strings.HasPrefix(page, "steps?") {
				r.Header.Set("Accept", "text/event-stream")
			}
			m.ServeHTTP(c, r)
			assert.Zero(m.t, m.taken())
			if c.err == nil && c.body.Len() == 0 {
				c.err = outer.Err()
			}
			if c.err == nil {
				assert.Equal(m.t, http.StatusOK, c.status)
				seen = what(c.body.Bytes())
			}
			return c.err
		},
		See: func() any { return seen },
	}
}

// entries returns the number of entries in a snapshot's history.
func (m *failing) entries(body []byte) any {
	list, err := recording.Read(bytes.NewReader(body), "snapshot", recording.Options{})
	require.NoError(m.t, err)
	return len(list[0].Entries)
}

// numbers returns those of the steps in a list.
func (m *failing) numbers(body []byte) any {
	var list []struct{ Step int64 }
	require.NoError(m.t, json.Unmarshal(body, &list), "%s", body)
	return list
}

// failingListener has connections whose writes may fail.
type failingListener struct {
	net.Listener
	faults *failtest.Faults
}

func (l failingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return failingConn{c, failtest.Writer(l.faults, c)}, nil
}

type failingConn struct {
	net.Conn
	io.Writer
}

func (c failingConn) Write(b []byte) (int, error) { return c.Writer.Write(b) }

// asked is a trial of a request to a server. A client that goes away, or whose connection fails,
// leaves nothing in use.
func (m *failing) asked(page string, what func(body []byte) any) failtest.Trial {
	server := httptest.NewUnstartedServer(m.Handler)
	server.Listener = failingListener{server.Listener, m.faults}
	server.Start()
	m.t.Cleanup(server.Close)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(ctx context.Context) ([]byte, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+Prefix+page, nil)
		require.NoError(m.t, err)
		answer, err := client.Do(r)
		if err != nil {
			return nil, err
		}
		body, err := io.ReadAll(answer.Body)
		return body, errors.Join(err, answer.Body.Close())
	}
	var seen any
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			body, err := get(ctx)
			cisterntest.WaitFor(m.t, func() bool { return m.taken() == [3]int64{} })
			if err == nil {
				seen = what(body)
			}
			return err
		},
		See: func() any { return seen },
	}
}

// lost are the kinds of failures of which a client only sees that the connection is gone.
var lost = map[failtest.Kind]string{
	failtest.Failed: "the client only sees that the connection has ended",
	failtest.Short:  "the client only sees that the connection has ended",
}

// failureRows are requests.
var failureRows = []failtest.Row[*failing]{
	{Of: "New heap", Make: func(t testing.TB, m *failing) failtest.Trial {
		return m.page("heap", func(body []byte) any { return sums(t, body) })
	}},
	{Of: "New Handler.Close heap?seconds", Make: func(t testing.TB, m *failing) failtest.Trial {
		require.NoError(t, m.Close())
		return m.page("heap?seconds=300", func(body []byte) any { return sums(t, body) })
	}},
	{Of: "New peak", Make: func(t testing.TB, m *failing) failtest.Trial {
		return m.page("peak", func(body []byte) any { return sums(t, body) })
	}},
	{Of: "New snapshot", Make: func(_ testing.TB, m *failing) failtest.Trial { return m.page("snapshot", m.entries) }},
	{Of: "New report", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.page("report", func(body []byte) any { return bytes.HasSuffix(bytes.TrimSpace(body), []byte("</html>")) })
	}},
	{Of: "New index", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.page("", func(body []byte) any { return bytes.HasSuffix(bytes.TrimSpace(body), []byte("</html>")) })
	}},
	{Of: "New stats", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.page("stats", func(body []byte) any { return json.Valid(body) })
	}},
	{Of: "New steps", Make: func(_ testing.TB, m *failing) failtest.Trial { return m.page("steps", m.numbers) }},
	{Of: "New steps as events", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.page("steps?last=3", func(body []byte) any { return strings.Count(string(body), "event: step\n") })
	}},
	{Of: "New events", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.page("events?last=3", func(body []byte) any {
			return []int{strings.Count(string(body), "event: state\n"), strings.Count(string(body), "event: step\n")}
		})
	}},
	{Of: "New snapshot for a client", Tolerates: lost, Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.asked("snapshot", m.entries)
	}},
	{Of: "New steps for a client", Tolerates: lost, Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.asked("steps", m.numbers)
	}},
}

// TestEveryFailure: whichever write to a client or check of its context fails, the answer ends
// there, leaves nothing in use, and the next one is complete.
func TestEveryFailure(t *testing.T) {
	failtest.Suite[*failing]{
		Open: openFailing,
		Live: func(m *failing) any { return m.taken() },
		Rows: failureRows,
	}.Run(t)
}
