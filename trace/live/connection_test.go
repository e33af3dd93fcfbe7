package live

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
)

// serve serves a handler at an address, which another server used before, until the server is
// closed.
func serve(t *testing.T, address string, h http.Handler) *http.Server {
	t.Helper()
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	server := &http.Server{Addr: l.Addr().String(), Handler: h, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		assert.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return server
}

// asked is a handler, and the paths of its requests.
type asked struct {
	http.Handler
	paths chan string
}

func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.paths <- r.URL.Path
	a.Handler.ServeHTTP(w, r)
}

// next fails the test unless the next requests have these paths.
func (a *asked) next(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		select {
		case got := <-a.paths:
			require.Equal(t, path, got)
		case <-time.After(20 * time.Second):
			require.Fail(t, "no request", path)
		}
	}
}

// TestConnection: the page shows that it is not connected, and recovers by itself: from a server
// that is gone, one that refuses requests, and another program at the address.
func TestConnection(t *testing.T) {
	browsertest.Program(t)
	s := newSite(t, Config{})
	s.alloc("0", 3*mib)
	server := serve(t, "localhost:0", s)
	b := browsertest.Open(t, 800, 800, "http://"+server.Addr+Prefix, `document.getElementById("connection").textContent === "connected"`)
	const lost = `document.querySelector("#connection .alarm")?.textContent.startsWith("not connected: the figures are from ")`
	const allocated = `Number(document.querySelector("#figures data").value)`
	require.NoError(t, server.Close())
	b.Wait(lost)
	require.EqualValues(t, 3*mib, browsertest.Eval[int64](b, allocated))
	b.Run(`const set = live.set.bind(live); live.drawn = []; live.set = (c) => (set(c), live.drawn.push(JSON.stringify([c.x, c.series])))`)
	s.alloc("0", 5*mib)
	b.Wait(`live.drawn.length > 1`)
	require.True(t, browsertest.Eval[bool](b, `live.drawn.every((d) => d === live.drawn[0])`), "time stands still in the chart")

	same := &asked{s, make(chan string, 100)}
	server = serve(t, server.Addr, same)
	b.Wait(`document.getElementById("connection").textContent === "connected"`)
	require.EqualValues(t, 8*mib, browsertest.Eval[int64](b, allocated))
	require.True(t, browsertest.Eval[bool](b, `(() => { const y = live.series[0].y, first = y.findIndex((v) => v > 0); return y.slice(first, -1).some(Number.isNaN); })()`), "the line has a gap")

	same.next(t, Prefix+"events")
	require.NoError(t, s.Handler.Close())
	b.Wait(lost)
	same.next(t, Prefix+"events") // it is refused, after which a browser would not try again
	require.NoError(t, server.Close())
	program := newSite(t, Config{})
	program.alloc("0", 2*mib)
	other := &asked{program, make(chan string, 100)}
	serve(t, server.Addr, other)
	other.next(t, Prefix+"events", Prefix, Prefix+"events") // the page is loaded anew
	b.Wait(`document.getElementById("connection").textContent === "connected" && ` + allocated + ` === 2097152`)
	require.NoError(t, program.Handler.Close())
	b.Wait(lost)
	require.Positive(t, b.Expected("Failed to load resource"))
}
