package live

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/trace"
)

func (s *site) steps(query string) (numbers []int64) {
	s.t.Helper()
	_, header, text := s.get("steps" + query)
	require.Equal(s.t, "application/json", header.Get("Content-Type"))
	var list []trace.StepProfile
	require.NoError(s.t, json.Unmarshal(text, &list), "%s", text)
	numbers = []int64{}
	for _, p := range list {
		numbers = append(numbers, p.Step)
	}
	return numbers
}

func TestStepsAsJSON(t *testing.T) {
	s := newSite(t, Config{Steps: 3})
	require.Equal(t, []int64{}, s.steps(""))
	for n := range int64(5) {
		s.Step(trace.StepProfile{Step: 10 + n})
	}
	require.Equal(t, []int64{12, 13, 14}, s.steps(""), "the latest")
	require.Equal(t, []int64{13, 14}, s.steps("?last=2"))
	require.Equal(t, []int64{12, 13, 14}, s.steps("?last=99"))
	require.Equal(t, []int64{}, s.steps("?last=0"))
	for _, bad := range []string{"-1", "x"} {
		status, _, _ := s.get("steps?last=" + bad)
		require.Equal(t, http.StatusBadRequest, status)
	}
}

// watcher is a client of the events.
type watcher struct {
	t     *testing.T
	r     *http.Response
	lines *bufio.Scanner
}

func newWatcher(t *testing.T, r *http.Response) *watcher {
	return &watcher{t, r, bufio.NewScanner(r.Body)}
}

func (s *site) watch(ctx context.Context, last string) *watcher {
	s.t.Helper()
	return s.watchFrom(ctx, last, "")
}

func (s *site) watchFrom(ctx context.Context, last, query string) *watcher {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.URL+Prefix+"steps"+query, nil)
	require.NoError(s.t, err)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Last-Event-ID", last)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = answer.Body.Close() })
	return newWatcher(s.t, answer)
}

// next returns the next event in one line; "" at the end.
func (w *watcher) next() string {
	var lines []string
	for w.lines.Scan() {
		if w.lines.Text() == "" {
			return strings.Join(lines, " ")
		}
		line, _, _ := strings.Cut(w.lines.Text(), `,"start"`)
		lines = append(lines, line)
	}
	return ""
}

func event(id, step int64) string {
	return fmt.Sprintf(`id: %d event: step data: {"step":%d`, id, step)
}

func TestStepsAsEvents(t *testing.T) {
	s := newSite(t, Config{Steps: 3})
	s.Step(trace.StepProfile{Step: 100})
	w := s.watch(t.Context(), "")
	require.Equal(t, "text/event-stream", w.r.Header.Get("Content-Type"))
	s.Step(trace.StepProfile{Step: 101})
	s.Step(trace.StepProfile{Step: 102})
	require.Equal(t, event(1, 101), w.next(), "the first one was before")
	require.Equal(t, event(2, 102), w.next())

	back := s.watch(t.Context(), "0")
	require.Equal(t, event(1, 101), back.next(), "behind the last one that the client saw")
	require.Equal(t, event(2, 102), back.next())
	two := s.watchFrom(t.Context(), "", "?last=2")
	require.Equal(t, event(1, 101), two.next(), "of the latest two")
	require.Equal(t, event(0, 100), s.watchFrom(t.Context(), "", "?last=99").next(), "as many as there are")
	require.Equal(t, event(2, 102), s.watchFrom(t.Context(), "1", "?last=3").next(), "who comes back goes on")
	require.Equal(t, http.StatusBadRequest, s.watchFrom(t.Context(), "", "?last=x").r.StatusCode)
	for n := range int64(4) {
		s.Step(trace.StepProfile{Step: 103 + n})
	}
	late := s.watch(t.Context(), "0")
	require.Equal(t, "event: missed data: 3", late.next())
	require.Equal(t, event(4, 104), late.next())
	odd := s.watch(t.Context(), "a million")
	s.Step(trace.StepProfile{Step: 107})
	require.Equal(t, event(7, 107), odd.next())

	require.NoError(t, s.Close())
	for _, w := range []*watcher{w, back, late, odd} {
		for w.next() != "" { // what was on its way
		}
		require.NoError(t, w.lines.Err(), "the stream ends")
	}
	require.Eventually(t, func() bool { return s.watching.Load() == 0 }, 10*time.Second, time.Millisecond)
}

// TestWatchersAreBounded: when one leaves, another can watch.
func TestWatchersAreBounded(t *testing.T) {
	s := newSite(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	for range watchers {
		require.Equal(t, http.StatusOK, s.watch(ctx, "").r.StatusCode)
	}
	require.Equal(t, http.StatusServiceUnavailable, s.watch(t.Context(), "").r.StatusCode)
	cancel()
	require.Eventually(t, func() bool { return s.watching.Load() == 0 }, 10*time.Second, time.Millisecond)
	require.Equal(t, http.StatusOK, s.watch(t.Context(), "").r.StatusCode)
}

// TestEveryStepIsSentOrCounted: each of many clients gets each step once and in order, or a count
// of missed steps, whatever its pace.
func TestEveryStepIsSentOrCounted(t *testing.T) {
	s := newSite(t, Config{Steps: 50})
	const steps = 2000
	var all sync.WaitGroup
	var ready sync.WaitGroup
	for i := range 4 {
		ready.Add(1)
		w := s.watch(t.Context(), "")
		all.Go(func() {
			ready.Done()
			next := int64(0)
			for next < steps {
				e := w.next()
				var id, missed int64
				if _, err := fmt.Sscanf(e, "event: missed data: %d", &missed); err == nil {
					next += missed
					continue
				}
				if _, err := fmt.Sscanf(e, "id: %d", &id); !assert.NoError(t, err, "%q", e) || !assert.Equal(t, event(next, next), e) {
					return
				}
				next++
				if i == 0 {
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
	}
	ready.Wait()
	for n := range int64(steps) {
		s.Step(trace.StepProfile{Step: n})
		if n%100 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	all.Wait()
}
