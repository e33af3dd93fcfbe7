package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// TestAbsurdRequest: the largest request that a cache accepts, which is rounded up, can be recorded
// and repeated.
func TestAbsurdRequest(t *testing.T) {
	for _, config := range []memcache.Config{{}, {ExpandableSegments: true}, {RoundupPower2Divisions: memcache.AllDivisions(4)}} {
		c, s := small(t, config)
		var file bytes.Buffer
		r, err := Start(&file, c, Options{})
		require.NoError(t, err)
		alloc(t, c, 100, s)
		_, err = c.Alloc(t.Context(), 1<<60-1, s)
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		require.NoError(t, r.Close())
		require.Empty(t, verifies(t, file.Bytes()))
		require.EqualValues(t, 1, read(t, file.Bytes()).Stats["num_ooms"])
	}
}

// TestNoMemoryAllowed: a limit of 0 is a limit.
func TestNoMemoryAllowed(t *testing.T) {
	for _, late := range []bool{false, true} {
		c, s := small(t, memcache.Config{})
		if !late {
			require.NoError(t, c.SetMemoryFraction(0))
		}
		var file bytes.Buffer
		r, err := Start(&file, c, Options{})
		require.NoError(t, err)
		if late {
			require.NoError(t, c.SetMemoryFraction(0))
		}
		_, err = c.Alloc(t.Context(), 1, s)
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		require.NoError(t, c.SetMemoryFraction(1))
		alloc(t, c, 100, s)
		require.NoError(t, r.Close())
		require.Empty(t, verifies(t, file.Bytes()))
	}
}

// TestMarksAfterTheEnd: a recorder that has ended keeps no marks.
func TestMarksAfterTheEnd(t *testing.T) {
	c, _ := small(t, memcache.Config{})
	r, err := Start(&limited{left: 500}, c, Options{})
	require.NoError(t, err)
	require.NotNil(t, r.Step(1))
	require.ErrorIs(t, r.Close(), errFull)
	for n := range int64(100) {
		r.Step(n).End()
	}
	require.Empty(t, r.marks)
}

// watched reports on seen when a text has been written.
type watched struct {
	text string
	seen chan struct{} // of capacity 1
}

func (w *watched) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.text)) {
		w.seen <- struct{}{}
	}
	return len(p), nil
}

// TestMarksTakeNoMemoryOnceWritten: a recorder forgets the name of a written mark, and the encoder
// forgets a mark that has ended, so that a step needs no memory after its end.
func TestMarksTakeNoMemoryOnceWritten(t *testing.T) {
	c, _ := small(t, memcache.Config{})
	w := &watched{"forward", make(chan struct{}, 1)}
	r, err := Start(w, c, Options{})
	require.NoError(t, err)
	r.Begin(w.text).End()
	<-w.seen
	require.Equal(t, "recording with 0 marks to write", r.String())
	require.NoError(t, r.Close())
	stream, err := c.StreamHistory(memcache.HistoryOptions{})
	require.NoError(t, err)
	enc := newEncoder(bufio.NewWriter(io.Discard), stream)
	enc.beginMark(1, mark{name: w.text}, &memcache.HistoryEntry{})
	require.NotEmpty(t, enc.marks)
	enc.endMark(1, &memcache.HistoryEntry{})
	require.Empty(t, enc.marks)
	stream.Close()
}

// TestManyLabels: a writer keeps a bounded number of labels and stacks, and defines forgotten ones
// again.
func TestManyLabels(t *testing.T) {
	defer func(n int) { mostKnown = n }(mostKnown)
	mostKnown = 10
	c, s := small(t, memcache.Config{})
	var file bytes.Buffer
	r, err := Start(&file, c, Options{})
	require.NoError(t, err)
	for range 2 {
		for n := range 25 {
			b, err := c.Alloc(memcache.WithModule(t.Context(), fmt.Sprint(n)), 100, s)
			require.NoError(t, err)
			require.NoError(t, b.Free())
		}
	}
	require.NoError(t, r.Close())
	rec := read(t, file.Bytes())
	n := 0
	for i, e := range rec.Entries {
		if e.Action == recording.Alloc {
			require.Equal(t, fmt.Sprint(n%25), rec.Details.LabelTable[rec.Details.Labels[i]].Module)
			n++
		}
	}
	require.Equal(t, 50, n)
	require.Len(t, rec.Details.LabelTable, 50)
}

// shared is a file that is read while it is written.
type shared struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (f *shared) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.Write(p)
}

func (f *shared) bytes() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Clone(f.text.Bytes())
}

// TestLossAtMost: events of a quarter of a second ago are in the file, even if the writer was woken
// meanwhile by as many events as it takes at a time.
func TestLossAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := small(t, memcache.Config{})
		file := &shared{}
		r, err := Start(file, c, Options{})
		require.NoError(t, err)
		time.Sleep(flushEvery / 10)
		kept := alloc(t, c, 100, s)
		time.Sleep(flushEvery / 2)
		for range 515 { // a piece of what the stream gives at a time, and less than the buffer of the file
			require.NoError(t, alloc(t, c, 100, s).Free())
		}
		time.Sleep(flushEvery / 2)
		synctest.Wait()
		rec := read(t, file.bytes())
		require.Greater(t, len(rec.Entries), 3)
		require.Equal(t, kept.Ptr(), rec.Entries[2].Addr)
		require.NoError(t, kept.Free())
		require.NoError(t, r.Close())
		require.NoError(t, c.Close())
		require.NoError(t, c.Device().Close())
	})
}

// TestNewLabelsHaveNoPoolFlag: only the allocation has the flag of a private pool.
func TestNewLabelsHaveNoPoolFlag(t *testing.T) {
	c, s := small(t, memcache.Config{})
	pool, err := c.NewPool(memcache.PoolOptions{})
	require.NoError(t, err)
	var file bytes.Buffer
	r, err := Start(&file, c, Options{})
	require.NoError(t, err)
	b, err := c.Alloc(pool.Context(t.Context()), 100, s)
	require.NoError(t, err)
	require.NoError(t, b.SetLabel(memcache.Label{Module: "later"}))
	require.NoError(t, r.Close())
	flags := map[string]any{}
	for line := range strings.Lines(file.String()) {
		var e []any
		if json.Unmarshal([]byte(line), &e) == nil && len(e) >= 10 {
			flags[e[0].(string)] = e[10:]
		}
	}
	require.Equal(t, map[string]any{"alloc": []any{3.0}, "relabel": []any{}}, flags)
	require.NoError(t, errors.Join(b.Free(), pool.Release()))
}
