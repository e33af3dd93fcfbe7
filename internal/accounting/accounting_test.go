package accounting

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// events is a handler of log/slog.
type events struct {
	slog.Handler
	c chan slog.Record
}

func (e events) Enabled(context.Context, slog.Level) bool { return true }
func (e events) Handle(_ context.Context, r slog.Record) error {
	e.c <- r
	return nil
}

// Each count of a subject is logged once, and counted each time.
func TestBroken(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	e := events{before.Handler(), make(chan slog.Record, 10)}
	slog.SetDefault(slog.New(e))
	reported.Clear() // the test may run more than once
	start := Faults()
	for range 3 {
		Broken("test", "bytes", -1)
	}
	first := <-e.c
	require.Equal(t, slog.LevelError, first.Level)
	text := map[string]any{}
	first.Attrs(func(a slog.Attr) bool {
		text[a.Key] = a.Value.Any()
		return true
	})
	require.Equal(t, map[string]any{"subject": "test", "count": "bytes", "value": int64(-1), "faults": start + 1}, text)
	Broken("test", "buffers", -2)
	<-e.c
	require.Empty(t, e.c)
	require.Equal(t, start+4, Faults())
}
