package timeline

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

// TestKilled: at any moment the written bytes are a valid file, with a closing bracket added or for
// a reader that does not need it.
func TestKilled(t *testing.T) {
	r := newRig(t)
	for i := range 1000 {
		require.NoError(t, r.alloc(memcache.WithModule(t.Context(), fmt.Sprint("größe \"", i, "\"\n\xff")), 100).Free())
	}
	require.NoError(t, r.tl.Flush(t.Context()))
	data := r.out.bytes()
	require.NotEqual(t, byte(']'), bytes.TrimSpace(data)[len(bytes.TrimSpace(data))-1])
	require.NotEmpty(t, r.out.writes)
	for i, n := range r.out.writes {
		require.True(t, n == len(data) || bytes.HasPrefix(data[n:], []byte(",\n{")), "whole events are written")
		if i%20 == 0 {
			var list []read
			require.NoError(t, json.Unmarshal(append(bytes.Clone(data[:n]), ']'), &list))
		}
	}
	require.Len(t, counter(parse(t, append(data, ']')), "memory allocated"), 2000)
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, os.ErrClosed }

// TestWriters: the error of a writer is returned, and nil is refused.
func TestWriters(t *testing.T) {
	_, err := New(nil)
	require.ErrorIs(t, err, ErrInvalid)
	tl, err := New(refusing{})
	require.NoError(t, err)
	require.ErrorIs(t, tl.Flush(t.Context()), os.ErrClosed)
	var none context.Context
	require.ErrorIs(t, tl.Flush(none), ErrInvalid)
	require.ErrorIs(t, tl.Close(), os.ErrClosed)
	require.ErrorIs(t, tl.Flush(t.Context()), os.ErrClosed)
}

// slow is a writer that waits.
type slow struct {
	begun, gate chan struct{}
	once        sync.Once
	n           int
}

func (s *slow) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.begun) })
	<-s.gate
	s.n += len(p)
	return len(p), nil
}

// TestSlowWriter: only Flush waits for it, until its context ends, and Close. Events beyond the
// limit are dropped and counted.
func TestSlowWriter(t *testing.T) {
	s := &slow{begun: make(chan struct{}), gate: make(chan struct{})}
	tl, err := New(s)
	require.NoError(t, err)
	tl.file.add(event{phase: "X", name: "first"})
	ctx, awaited := cisterntest.Awaited(t.Context())
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		<-awaited
		cancel()
	}()
	require.ErrorIs(t, tl.Flush(ctx), context.Canceled)
	<-s.begun // with the first event: what comes now waits
	name := strings.Repeat("x", 16<<20)
	for range 6 {
		tl.file.add(event{phase: "X", name: name})
	}
	close(s.gate)
	require.ErrorContains(t, tl.Close(), "2 events were dropped, because the writer was too slow: 64 MiB were pending")
	require.Greater(t, s.n, 60<<20)
}

func TestMicroseconds(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0", 1: "0.001", 999: "0.999", 1000: "1", 1_000_020: "1000.020", 3 * time.Hour: "10800000000"} {
		require.Equal(t, want, string(appendMicros(nil, d)))
	}
}
