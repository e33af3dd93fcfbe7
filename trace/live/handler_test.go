package live

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/heap"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

const mib = 1 << 20

// site is a handler on a server, of a cache with a history.
type site struct {
	*Handler
	t      *testing.T
	server *httptest.Server
	cache  *memcache.Cache
	stream device.Stream
	live   []memcache.Block
}

func newSite(t *testing.T, config Config) *site {
	t.Helper()
	counter := &heap.Counter{}
	s := stacktest.New(t, stacktest.Config{Device: cisterntest.Host(t, 256*mib), Cache: memcache.Config{Observer: counter}})
	require.NoError(t, s.Cache.RecordHistory(memcache.HistoryOptions{Entries: 1000}))
	config.Cache, config.Pool, config.Allocated = s.Cache, s.Pool, counter.Holdings
	h, err := New(config)
	require.NoError(t, err)
	out := &site{Handler: h, t: t, server: httptest.NewServer(h), cache: s.Cache, stream: s.Stream}
	t.Cleanup(func() {
		assert.NoError(t, h.Close())
		out.server.Close()
		http.DefaultClient.CloseIdleConnections()
		for _, b := range out.live {
			assert.NoError(t, b.Free())
		}
	})
	return out
}

func (s *site) alloc(module string, bytes int64) memcache.Block {
	s.t.Helper()
	ctx := memcache.WithCategory(memcache.WithModule(s.t.Context(), module), memcache.CategoryActivation)
	b, err := s.cache.Alloc(ctx, bytes, s.stream)
	require.NoError(s.t, err)
	s.live = append(s.live, b)
	return b
}

// free frees the latest block.
func (s *site) free() {
	s.t.Helper()
	require.NoError(s.t, s.live[len(s.live)-1].Free())
	s.live = s.live[:len(s.live)-1]
}

func (s *site) get(path string) (status int, header http.Header, body []byte) {
	s.t.Helper()
	r, err := http.Get(s.server.URL + Prefix + path)
	require.NoError(s.t, err)
	defer r.Body.Close()
	body, err = io.ReadAll(r.Body)
	require.NoError(s.t, err)
	return r.StatusCode, r.Header, body
}

// sums returns the sums of a pprof file by sample type.
func sums(t testing.TB, file []byte) map[string]int64 {
	t.Helper()
	p, err := profile.Parse(bytes.NewReader(file))
	require.NoError(t, err)
	all := map[string]int64{}
	for i, kind := range p.SampleType {
		all[kind.Type] = 0
		for _, s := range p.Sample {
			all[kind.Type] += s.Value[i]
		}
	}
	return all
}

func TestHeap(t *testing.T) {
	s := newSite(t, Config{})
	s.alloc("0", 3*mib)
	s.alloc("2", 5*mib)
	s.free()
	s.alloc("4", mib)
	_, header, file := s.get("heap")
	require.Equal(t, `attachment; filename="heap.pb.gz"`, header.Get("Content-Disposition"))
	require.Equal(t, map[string]int64{
		"inuse_objects": 2, "inuse_space": s.cache.MemoryAllocated(),
		"peak_objects": 2, "peak_space": s.cache.MaxMemoryAllocated(),
		"alloc_objects": 3, "alloc_space": s.cache.Stats().AllocatedBytes.All.Allocated,
	}, sums(t, file))
	_, _, file = s.get("peak")
	require.Equal(t, map[string]int64{"peak_objects": 2, "peak_space": s.cache.MaxMemoryAllocated(),
		"inuse_objects": 0, "inuse_space": 0, "alloc_objects": 0, "alloc_space": 0}, sums(t, file))
}

// TestDelta: memory that is held before and after is in neither.
func TestDelta(t *testing.T) {
	s := newSite(t, Config{})
	s.alloc("stays", 7*mib)
	s.alloc("goes", 2*mib)
	done, looked := make(chan map[string]int64), make(chan struct{})
	s.looked = func() { close(looked) }
	go func() {
		_, _, file := s.get("heap?seconds=1")
		done <- sums(t, file)
	}()
	<-looked
	s.looked = nil
	s.free()
	s.alloc("comes", 3*mib)
	require.Equal(t, map[string]int64{"inuse_objects": 0, "inuse_space": mib, "alloc_objects": 1, "alloc_space": 3 * mib, "peak_objects": 0, "peak_space": 0}, <-done)

	for _, bad := range []string{"0", "-1", "301", "x", "1.5", "99999999999999999999"} {
		status, _, text := s.get("heap?seconds=" + bad)
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, string(text), fmt.Sprintf("%q", bad))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.URL+Prefix+"heap?seconds=300", nil)
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(r)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool { return s.deltas.Load() == 0 }, 10*time.Second, time.Millisecond, "who has gone is waited for no longer")
}

// TestDeltasAreBounded: they are bounded, and end with Close, with the changes up to then.
func TestDeltasAreBounded(t *testing.T) {
	s := newSite(t, Config{})
	s.alloc("stays", 7*mib)
	looked := make(chan struct{}, watchers)
	s.looked = func() { looked <- struct{}{} }
	done := make(chan map[string]int64)
	for range 2 * answers {
		go func() {
			_, _, file := s.get("heap?seconds=300")
			done <- sums(t, file)
		}()
	}
	for range 2 * answers {
		<-looked
	}
	status, _, _ := s.get("heap")
	require.Equal(t, http.StatusOK, status)
	s.deltas.Add(watchers)
	status, _, _ = s.get("heap?seconds=300")
	require.Equal(t, http.StatusServiceUnavailable, status)
	s.deltas.Add(-watchers)
	s.alloc("comes", 3*mib)
	require.NoError(t, s.Close())
	for range 2 * answers {
		require.EqualValues(t, 3*mib, (<-done)["inuse_space"])
	}
}

// TestSnapshot: addresses are moved by one distance, to the floor, unless the request has
// ?addresses=1. An entry without an address gets none. The command cistern verifies the file.
func TestSnapshot(t *testing.T) {
	s := newSite(t, Config{})
	for i := range 6 {
		s.alloc("0", int64(i+1)*mib/2)
	}
	s.free()
	s.free()
	_, err := s.cache.Alloc(t.Context(), 1<<40, s.stream)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	read := func(path string) (*recording.Recording, []byte) {
		_, _, file := s.get(path)
		list, err := recording.Read(bytes.NewReader(file), "snapshot.pickle", recording.Options{})
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0], file
	}
	moved, file := read("snapshot")
	asked, _ := read("snapshot?addresses=1")
	require.Equal(t, len(asked.Entries), len(moved.Entries))
	distance := asked.Entries[0].Addr - moved.Entries[0].Addr
	require.NotZero(t, distance)
	require.Zero(t, distance%alignment)
	addresses := map[device.Ptr]bool{}
	without := 0
	for i, e := range asked.Entries {
		addresses[e.Addr] = true
		if e.Addr == 0 {
			require.Zero(t, moved.Entries[i].Addr)
			without++
			continue
		}
		require.Equal(t, e.Addr-distance, moved.Entries[i].Addr)
	}
	for _, b := range s.live {
		require.True(t, addresses[b.Ptr()])
	}
	for i, seg := range asked.Segments {
		require.Equal(t, seg.Address-distance, moved.Segments[i].Address)
	}
	plain, relocated := s.cache.Snapshot(), s.cache.Snapshot()
	relocate(&relocated)
	for i, seg := range plain.Segments {
		for k, b := range seg.Blocks { // which the file has no addresses of
			require.Equal(t, b.Address-distance, relocated.Segments[i].Blocks[k].Address)
		}
	}
	require.NotZero(t, without)
	lowest := ^device.Ptr(0) // not that of the first entry: the system places memory as it likes
	for _, e := range moved.Entries {
		if e.Addr != 0 {
			lowest = min(lowest, e.Addr)
		}
	}
	require.GreaterOrEqual(t, lowest, floor)
	require.Less(t, lowest, floor+alignment)
	name := filepath.Join(t.TempDir(), "snapshot.pickle")
	require.NoError(t, os.WriteFile(name, file, 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "run", "../..", "verify", name).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestReport(t *testing.T) {
	s := newSite(t, Config{})
	s.alloc("</script><b>", mib)
	s.Step(trace.StepProfile{Step: 17})
	status, header, page := s.get("report")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "text/html; charset=utf-8", header.Get("Content-Type"))
	require.NotContains(t, string(page), "</script><b>")
	require.NotContains(t, string(page), fmt.Sprintf("%x", s.live[0].Ptr()))
}

// TestStats are the same for expvar.
func TestStats(t *testing.T) {
	s := newSite(t, Config{})
	s.alloc("0", 3*mib)
	s.Step(trace.StepProfile{})
	_, _, text := s.get("stats")
	var v expvar.Var = s.Handler
	require.JSONEq(t, v.String(), string(text))
	var got struct {
		Device string
		Memory map[string]int64
		Pinned map[string]any
		Steps  int64
	}
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, s.cache.Stats().Map(), got.Memory)
	require.Contains(t, slicesOf(maps.Keys(got.Pinned)), "HeldBytes")
	require.Equal(t, []any{s.cache.Device().Name(), int64(1)}, []any{got.Device, got.Steps})
}

func slicesOf(keys func(func(string) bool)) (list []string) {
	for k := range keys {
		list = append(list, k)
	}
	return list
}

func TestOnlyReads(t *testing.T) {
	s := newSite(t, Config{})
	r, err := http.Post(s.server.URL+Prefix+"heap", "", nil)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)
	for _, path := range []string{"nothing", "heap/", "../../etc/passwd"} {
		status, _, _ := s.get(path)
		require.Equal(t, http.StatusNotFound, status, path)
	}
}

// TestTooMany: the answers that are made or sent at a time are bounded, and the next one is served.
func TestTooMany(t *testing.T) {
	s := newSite(t, Config{})
	for range answers {
		s.slots <- struct{}{}
	}
	for _, path := range []string{"", "heap", "steps"} {
		status, header, _ := s.get(path)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, "1", header.Get("Retry-After"))
	}
	<-s.slots
	for range 2 * answers {
		status, _, _ := s.get("heap")
		require.Equal(t, http.StatusOK, status)
	}
	for range answers - 1 {
		<-s.slots
	}
}

// slowClient requests a snapshot of some 10 MB, reads the first byte, and no more.
func (s *site) slowClient() net.Conn {
	s.t.Helper()
	for i := range 2500 {
		s.alloc(strings.Repeat(fmt.Sprintf("name %d ", i), 400), 512)
	}
	c, err := net.Dial("tcp", s.server.Listener.Addr().String())
	require.NoError(s.t, err)
	require.NoError(s.t, c.(*net.TCPConn).SetReadBuffer(1024))
	_, err = fmt.Fprintf(c, "GET %ssnapshot HTTP/1.1\r\nHost: localhost\r\n\r\n", Prefix)
	require.NoError(s.t, err)
	_, err = bufio.NewReaderSize(c, 16).ReadByte()
	require.NoError(s.t, err)
	return c
}

// TestSlowClient: a client that reads nothing blocks neither the program nor other clients.
func TestSlowClient(t *testing.T) {
	s := newSite(t, Config{})
	c := s.slowClient()
	defer c.Close()
	s.alloc("meanwhile", mib)
	s.free()
	require.Len(t, s.slots, 1, "its answer is still being sent")
	status, _, _ := s.get("heap")
	require.Equal(t, http.StatusOK, status)
	c.Close()
	require.Eventually(t, func() bool { return len(s.slots) == 0 }, 10*time.Second, time.Millisecond)
}

// TestClientThatReadsNothingIsDisconnected: this holds although the client keeps the connection.
func TestClientThatReadsNothingIsDisconnected(t *testing.T) {
	s := newSite(t, Config{})
	s.patience = time.Second // time enough for the first byte, however busy the machine is
	c := s.slowClient()
	defer c.Close()
	require.Eventually(t, func() bool { return len(s.slots) == 0 }, 10*time.Second, time.Millisecond)
}

// deadlines is a client's connection, which has a deadline for each piece.
type deadlines struct {
	httptest.ResponseRecorder
	pieces, set int
	fails       int // the write that fails
}

func (d *deadlines) SetWriteDeadline(time.Time) error { d.set++; return nil }

func (d *deadlines) Write(b []byte) (int, error) {
	if d.pieces++; d.pieces == d.fails {
		return 1, io.ErrClosedPipe
	}
	return d.ResponseRecorder.Write(b)
}

// TestEachPieceHasItsTime: a slow client that reads as much as it can gets everything.
func TestEachPieceHasItsTime(t *testing.T) {
	for bytes, pieces := range map[int]int{0: 1, 1: 1, piece: 1, piece + 1: 2, 10*piece - 1: 10} {
		d := &deadlines{ResponseRecorder: *httptest.NewRecorder()}
		n, err := (&Handler{patience: time.Hour}).patient(d).Write(make([]byte, bytes))
		require.NoError(t, err)
		require.Equal(t, []int{bytes, bytes, pieces, pieces}, []int{n, d.Body.Len(), d.pieces, d.set})
	}
	d := &deadlines{ResponseRecorder: *httptest.NewRecorder(), fails: 3}
	n, err := (&Handler{}).patient(d).Write(make([]byte, 10*piece))
	require.ErrorIs(t, err, io.ErrClosedPipe)
	require.Equal(t, []int{2*piece + 1, 3}, []int{n, d.pieces})
}

func TestNewRefuses(t *testing.T) {
	_, err := New(Config{})
	require.ErrorIs(t, err, ErrInvalid)
	s := newSite(t, Config{})
	for _, n := range []int{-1, maxSteps + 1} {
		_, err = New(Config{Cache: s.cache, Steps: n})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, fmt.Sprint(n))
	}
	h, err := New(Config{Cache: s.cache})
	require.NoError(t, err)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+Prefix+"stats", nil))
	require.NotContains(t, w.Body.String(), "pinned", "there is no pool")
	require.NoError(t, h.Close())
	require.NoError(t, h.Close())
}

// TestClosedCache: the last figures are still served.
func TestClosedCache(t *testing.T) {
	s := newSite(t, Config{})
	s.alloc("0", mib)
	s.free()
	require.NoError(t, s.cache.Close())
	for _, path := range []string{"", "heap", "peak", "snapshot", "report", "stats", "steps"} {
		status, _, _ := s.get(path)
		require.Equal(t, http.StatusOK, status, path)
	}
}

// TestHosts: no page is served under a name that leads here by chance, and all are under a listed
// one.
func TestHosts(t *testing.T) {
	s := newSite(t, Config{Hosts: []string{"gpu-box"}})
	for host, want := range map[string]int{"gpu-box:6060": http.StatusOK, "localhost": http.StatusOK, "rebound.example": http.StatusForbidden} {
		for _, page := range []string{"", "heap", "peak", "snapshot", "report", "stats", "steps"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.server.URL+Prefix+page, nil)
			require.NoError(t, err)
			r.Host = host
			got, err := s.server.Client().Do(r)
			require.NoError(t, err)
			body, err := io.ReadAll(got.Body)
			require.NoError(t, errors.Join(err, got.Body.Close()))
			require.Equal(t, want, got.StatusCode, "%s of %s", page, host)
			if want == http.StatusForbidden {
				require.Contains(t, string(body), "live.Config")
			}
		}
	}
}
