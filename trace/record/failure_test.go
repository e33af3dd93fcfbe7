package record

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/memcache"
)

// failing is a cache whose recordings may fail to be written.
type failing struct {
	t      testing.TB
	faults *failtest.Faults
	cache  *memcache.Cache
	stream device.Stream
}

func openFailing(t testing.TB, f *failtest.Faults) *failing {
	t.Helper()
	dev, err := failtest.NewNull(f, null.Config{Capacity: 1 << 30})
	require.NoError(t, err)
	m := &failing{t: t, faults: f}
	m.cache, err = memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	m.stream, err = dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, errors.Join(m.stream.Close(), m.cache.Close(), dev.Close())) })
	return m
}

// actions returns the entries of a recording's file, which may be cut, and whether it is complete.
func actions(t testing.TB, file []byte) (list []string, whole bool) {
	t.Helper()
	rec := read(t, file)
	for _, e := range rec.Entries {
		list = append(list, e.Action.String())
	}
	return list, !rec.Unfinished
}

// records is a trial of a recording of allocations, whose labels have long names, so that their
// text takes several writes.
func (m *failing) records(labels, length int, o Options) failtest.Trial {
	warm, err := m.cache.Alloc(context.Background(), 512, m.stream)
	require.NoError(m.t, err)
	require.NoError(m.t, warm.Free())
	run := func() (file bytes.Buffer, begun bool, err error) {
		r, err := Start(failtest.Writer(m.faults, &file), m.cache, o)
		if err != nil {
			return file, false, err
		}
		random := rand.NewChaCha8([32]byte{})
		step := r.Step(1)
		for range labels {
			name := make([]byte, length)
			_, _ = random.Read(name)
			ctx := memcache.WithModule(context.Background(), strings.ToValidUTF8(string(name), "x"))
			b, err := m.cache.Alloc(ctx, 512, m.stream)
			require.NoError(m.t, err, "the program goes on")
			require.NoError(m.t, b.Free())
		}
		step.End()
		err = r.Close()
		assert.Equal(m.t, err, r.Close(), "the second Close")
		return file, true, err
	}
	file, _, err := run()
	require.NoError(m.t, err)
	want, whole := actions(m.t, file.Bytes())
	require.True(m.t, whole)
	var got []string
	return failtest.Trial{
		Do: func(context.Context) error {
			file, begun, err := run()
			if err == nil {
				got, whole = actions(m.t, file.Bytes())
				assert.True(m.t, whole)
			} else if begun {
				part, _ := actions(m.t, file.Bytes())
				assert.Equal(m.t, want[:min(len(want), len(part))], part, "the beginning of the recording")
			}
			return err
		},
		See: func() any { return got },
	}
}

// failureRows are programs of a recorder. The events that are written together depend on timing.
var failureRows = []failtest.Row[*failing]{
	{Of: "Start Recorder.Close", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.records(60, 4<<10, Options{})
	}},
	{Of: "Start Recorder.Close of a compressed file", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.records(4, 1<<10, Options{Gzip: true})
	}},
}

// TestEveryFailure: whichever write fails, the program continues, Close returns the reason why the
// recording ended, the bytes written before can be read, and the next recording is complete.
func TestEveryFailure(t *testing.T) {
	failtest.Suite[*failing]{
		Open: openFailing,
		Live: func(m *failing) any { return m.cache.MemoryAllocated() },
		Rows: failureRows,
	}.Run(t)
}
