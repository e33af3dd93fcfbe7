package live

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// TestSampler: a state is used by all clients for half a second, or for 99 times its duration, and
// has a new number when it differs from the previous one in more than its time.
func TestSampler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var taken, allocated atomic.Int64
		var took time.Duration
		s := sampler{take: func() state {
			taken.Add(1)
			time.Sleep(took)
			return state{Time: time.Now(), Allocated: allocated.Load()}
		}}
		get := func(fresh bool) sample {
			got, err := s.sample(fresh)
			require.NoError(t, err)
			return got
		}
		var all sync.WaitGroup
		start := time.Now()
		for range 100 {
			all.Go(func() {
				for time.Since(start) < 10*time.Second {
					time.Sleep(time.Until(get(false).until))
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 20, taken.Load(), "in ten seconds")

		require.EqualValues(t, 1, get(false).number, "nothing has changed")
		allocated.Store(5)
		require.EqualValues(t, 2, get(true).number)
		require.EqualValues(t, 2, get(false).number)
		require.EqualValues(t, 2, get(true).number)
		allocated.Store(7)
		require.EqualValues(t, 5, get(false).state.Allocated, "it is not old")
		time.Sleep(sampleEvery)
		last := get(false)
		require.EqualValues(t, 7, last.state.Allocated)
		var sent state
		require.NoError(t, json.Unmarshal(last.text, &sent))
		require.EqualValues(t, 7, sent.Allocated)
		require.True(t, last.state.Time.Equal(sent.Time))

		took = 50 * time.Millisecond
		get(true)
		taken.Store(0)
		start = time.Now()
		for time.Since(start) < 20*time.Second {
			time.Sleep(time.Until(get(false).until))
		}
		require.EqualValues(t, 4, taken.Load(), "one in 99 times 50 ms")
	})
}

// open opens a stream of events.
func (s *site) open(ctx context.Context) *watcher {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.URL+Prefix+"events?last=2", nil)
	require.NoError(s.t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = answer.Body.Close() })
	return newWatcher(s.t, answer)
}

// state returns the next event, which must be a state.
func (w *watcher) state() (got state) {
	w.t.Helper()
	e := w.next()
	text, ok := strings.CutPrefix(e, "event: state data: ")
	require.True(w.t, ok, "%q", e)
	require.NoError(w.t, json.Unmarshal([]byte(text), &got))
	return got
}

// TestStatesAsEvents: each client gets the state first and then its changes, beside the steps; many
// clients get the same sample. Close ends the streams, and there are no new ones.
func TestStatesAsEvents(t *testing.T) {
	s := newSite(t, Config{})
	var taken atomic.Int64
	s.states.take = func() state {
		taken.Add(1)
		return s.Handler.state()
	}
	s.Step(trace.StepProfile{Step: 100})
	var all []*watcher
	for range 8 {
		w := s.open(t.Context())
		require.Equal(t, "text/event-stream", w.r.Header.Get("Content-Type"))
		first := w.state()
		require.Zero(t, first.Allocated)
		require.EqualValues(t, 1, first.Steps)
		require.Equal(t, event(0, 100), w.next())
		all = append(all, w)
	}
	opened := taken.Load()
	s.alloc("0", 3*mib)
	var next state
	for i, w := range all {
		got := w.state()
		if i == 0 {
			next = got
		}
		require.True(t, next.Time.Equal(got.Time), "one sample for all")
		require.Equal(t, []int64{3 * mib, 3 * mib, s.cache.MemoryReserved(), 0}, []int64{got.Allocated, got.Peak, got.Reserved, got.Limit})
		require.Equal(t, []memcache.Share{{Name: "activation", Blocks: 1, Bytes: 3 * mib}}, got.Categories)
		require.Equal(t, []graphShare{}, got.GraphShares)
	}
	require.LessOrEqual(t, taken.Load(), opened+4, "not one for each of 8 clients")
	s.Step(trace.StepProfile{Step: 101, Rank: 2, WorldSize: 3})
	for _, w := range all {
		require.Equal(t, event(1, 101), w.next())
		got := w.state()
		require.Equal(t, []int64{2, 2, 3}, []int64{got.Steps, int64(got.Rank), int64(got.WorldSize)})
	}
	require.NoError(t, s.Close())
	for _, w := range all {
		require.Empty(t, w.next())
		require.NoError(t, w.lines.Err(), "the stream ends")
	}
	require.Eventually(t, func() bool { return s.watching.Load() == 0 }, 10*time.Second, time.Millisecond)
	status, _, _ := s.get("events")
	require.Equal(t, http.StatusServiceUnavailable, status)
}

// stuck is a client that reads nothing until it is released.
type stuck struct {
	*httptest.ResponseRecorder
	stuck, may chan struct{}
	once       sync.Once
	states     atomic.Int64 // written
}

func (s *stuck) Write(b []byte) (int, error) {
	s.once.Do(func() { close(s.stuck) })
	<-s.may
	s.states.Add(int64(bytes.Count(b, []byte("event: state\n"))))
	return s.ResponseRecorder.Write(b)
}

// TestSlowWatcher: a client that reads nothing blocks neither the program nor other clients. When
// it continues it gets the state of that time, not those in between.
func TestSlowWatcher(t *testing.T) {
	s := newSite(t, Config{})
	slow := &stuck{ResponseRecorder: httptest.NewRecorder(), stuck: make(chan struct{}), may: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.ServeHTTP(slow, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+Prefix+"events", nil))
	}()
	<-slow.stuck
	w := s.open(t.Context())
	require.Zero(t, w.state().Allocated)
	for n := range int64(3) {
		s.alloc("0", mib)
		require.Equal(t, (n+1)*mib, w.state().Allocated)
	}
	close(slow.may)
	require.Eventually(t, func() bool { return slow.states.Load() >= 2 }, 10*time.Second, time.Millisecond)
	cancel()
	<-ended
	assert.EqualValues(t, 2, slow.states.Load(), "%s", slow.Body)
	assert.Contains(t, slow.Body.String(), `"allocated":3145728`)
}

// TestClosedCacheInEvents: a closed cache has its last figures.
func TestClosedCacheInEvents(t *testing.T) {
	s := newSite(t, Config{})
	s.alloc("0", mib)
	s.free()
	w := s.open(t.Context())
	before := w.state()
	require.EqualValues(t, mib, before.Peak)
	require.NoError(t, s.cache.Close())
	require.EqualValues(t, mib, s.open(t.Context()).state().Peak)
	require.EqualValues(t, mib, s.embedded().State.Peak)
}
