package timeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/cistern-ml/cistern/trace"
)

// failing is a device whose calls may fail, and a stream of it whose kernels a timeline observes.
type failing struct {
	t      testing.TB
	faults *failtest.Faults
	dev    device.Device
	stream device.Stream
	tl     *Timeline // of the trial
}

func openFailing(t testing.TB, f *failtest.Faults) *failing {
	t.Helper()
	dev, err := failtest.NewHost(f, host.Config{Capacity: mib})
	require.NoError(t, err)
	leaktest.Device(t, dev)
	m := &failing{t: t, faults: f, dev: dev}
	m.stream, err = dev.NewStream(device.StreamOptions{Launching: func(s device.Stream, name string) func(error) { return m.tl.Launching(s, name) }})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, errors.Join(m.stream.Close(), dev.Close())) })
	return m
}

// launch launches two kernels of a name, which take some time.
func (m *failing) launch(name string) error {
	k := &device.Launch{Name: name, Func: func() { time.Sleep(time.Millisecond) }}
	return errors.Join(m.stream.Launch(k), m.stream.Launch(k))
}

// steps are programs of a timeline without kernels.
func (m *failing) steps(n int) {
	for i := range n {
		m.tl.Step(trace.StepProfile{Step: int64(i), Start: time.Now()})
	}
}

// written returns the names of the whole events of a file, which may be cut.
func written(t testing.TB, file []byte) (names []string) {
	t.Helper()
	lines := strings.Split(strings.Trim(string(file), "[]\n"), ",\n")
	names = []string{}
	for i, line := range lines {
		var e read
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			require.Equal(t, len(lines)-1, i, "an event that is no whole one, and not the last: %q", line)
			break
		}
		if e.Kind != "operation" && e.Kind != "launch" { // they are drawn whether or not the kernel's times are
			names = append(names, e.Name)
		}
	}
	return names
}

// writes is a trial of a program that writes a timeline to a file of its own. The contents of a
// file that could not be written completely are the beginning of the complete contents.
func (m *failing) writes(program func(ctx context.Context) error) failtest.Trial {
	var names []string // of the file, if it is whole
	run := func(ctx context.Context) ([]string, error) {
		out := &sink{}
		var err error
		m.tl, err = New(failtest.Writer(m.faults, out))
		require.NoError(m.t, err)
		err = errors.Join(program(ctx), m.tl.Close())
		again := m.tl.Close()
		assert.False(m.t, err == nil && again != nil, "the second Close alone fails")
		assert.Equal(m.t, again == nil, json.Valid(out.bytes()), "nothing is written after a write that failed")
		return written(m.t, out.bytes()), err
	}
	want, err := run(context.Background())
	require.NoError(m.t, err)
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			got, err := run(ctx)
			if err != nil {
				assert.Subset(m.t, want, got)
				assert.Equal(m.t, want[:min(len(want), len(got))], got)
				return err
			}
			names = got
			return nil
		},
		See: func() any { return names },
	}
}

// kernels are kinds of failures that a kernel's times, or a wait, may not survive.
var kernelFailures = map[failtest.Kind]string{
	failtest.Failed: "a kernel whose time can't be taken is left out, and Flush says why",
	failtest.Ended:  "a Flush that is cancelled leaves kernels to the next",
}

// failureRows are programs of a timeline.
var failureRows = []failtest.Row[*failing]{
	{Of: "New Timeline.Close", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.writes(func(context.Context) error { m.steps(20); return nil })
	}},
	{Of: "Timeline.Flush", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.writes(func(ctx context.Context) (err error) {
			for range 4 {
				m.steps(2)
				err = errors.Join(err, m.tl.Flush(ctx))
			}
			return err
		})
	}},
	{Of: "Timeline.Flush of kernels", Partly: kernelFailures, Make: func(t testing.TB, m *failing) failtest.Trial {
		out := &sink{}
		var err error
		m.tl, err = New(out)
		require.NoError(t, err)
		runs, cancelled := 0, 0
		seen := func(run int) int {
			return strings.Count(string(out.bytes()), fmt.Sprintf(`"kernel %d","cat":"kernel"`, run))
		}
		do := func(ctx context.Context) error {
			runs++
			err := errors.Join(m.launch(fmt.Sprintf("kernel %d", runs)), m.tl.Flush(ctx))
			switch {
			case errors.Is(err, context.Canceled):
				cancelled = runs
			case err == nil && cancelled > 0:
				assert.Equal(t, 2, seen(cancelled), "kernels of the Flush that was cancelled")
			}
			return err
		}
		return failtest.Trial{
			Do:  do,
			See: func() any { return seen(runs) },
			Left: func(any, error) error {
				err := do(context.Background())
				assert.Equal(t, 2, seen(runs), "kernels of the next Flush")
				return err
			},
			Undo: func() error { return m.tl.Close() },
		}
	}},
	{Of: "Timeline.Close of kernels", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.writes(func(context.Context) error { return m.launch("kernel") })
	}},
}

// TestEveryFailure: whichever driver call, write or check of a context fails, a timeline returns
// the error, and continues.
func TestEveryFailure(t *testing.T) {
	failtest.Suite[*failing]{Open: openFailing, Live: func(*failing) any { return nil }, Rows: failureRows}.Run(t)
}
