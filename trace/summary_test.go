package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The collector agrees with one that keeps everything.
func TestCollectorAgreesWithAll(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var c collector
		var all []StepProfile
		for i := range 1 + rng.IntN(50) {
			p := StepProfile{Step: int64(i)}
			for _, f := range p.figures() {
				*f = rng.Int64N(1 << 40)
			}
			if rng.IntN(3) > 0 {
				p.DeviceTime, p.DeviceTimed = time.Duration(rng.Int64N(1<<40)), true
			}
			all = append(all, p)
			c.add(&p)
		}
		got := c.summary()
		assert.Equal(t, int64(len(all)), got.Steps)
		assert.Equal(t, all[0], got.First)
		if len(all) > 1 {
			assert.Equal(t, all[1], got.Second)
		}
		var hits, misses, peak, device, timed int64
		for _, p := range all {
			assert.GreaterOrEqual(t, got.Slowest.duration(), p.duration())
			assert.GreaterOrEqual(t, got.Largest.AllocatedPeak, p.AllocatedPeak)
			hits, misses, peak = hits+p.Hits, misses+p.Misses, peak+p.AllocatedPeak
			if p.DeviceTimed {
				device, timed = device+int64(p.DeviceTime), timed+1
			}
		}
		assert.Contains(t, all, got.Slowest)
		assert.Contains(t, all, got.Largest)
		assert.InDelta(t, float64(peak)/float64(len(all)), float64(got.Mean.AllocatedPeak), 1)
		if timed > 0 {
			assert.InDelta(t, float64(device)/float64(timed), float64(got.Mean.DeviceTime), 1)
		}
		assert.InDelta(t, float64(hits)/float64(hits+misses), got.HitRate, 1e-9)
	}
}

// TestLateFailuresKeepTheFirstSteps: a step that fails late remains the first one, and a later step
// does not become the second.
func TestLateFailuresKeepTheFirstSteps(t *testing.T) {
	var c collector
	for i := range int64(3) {
		c.add(&StepProfile{Step: i + 1, AllocatedPeak: 5 - i})
		if i == 1 {
			c.fail(&StepProfile{Step: 1, AllocatedPeak: 5, Failed: true})
		}
	}
	s := c.summary()
	assert.Equal(t, []int64{1, 2, 1}, []int64{s.First.Step, s.Second.Step, s.Largest.Step})
	assert.Equal(t, []int64{3, 1, 1}, []int64{s.Steps, s.Failed, s.LastFailed.Step})
}

// Every figure of a profile has a mean, except fields that are no figures.
func TestFiguresAreComplete(t *testing.T) {
	var p StepProfile
	for i, f := range p.figures() {
		*f = int64(i + 1)
	}
	text, err := json.Marshal(p)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	for name, v := range fields {
		if n, ok := v.(float64); ok && !slices.Contains([]string{"step", "rank", "world_size", "device_time_ns", "busy_time_ns"}, name) {
			assert.NotZero(t, n, name)
		}
	}
}

func example() Summary {
	var c collector
	for i, ms := range []int64{90, 3, 2, 4, 2} {
		p := StepProfile{
			Step: int64(i), AllocatedStart: 1 << 20, AllocatedEnd: 1 << 20, AllocatedPeak: 3 << 20, Reserved: 22 << 20,
			Allocations: 60, Hits: 60, H2DBytes: 200704, D2HBytes: 4, HostTime: time.Duration(ms) * 1234567, DeviceTimed: true,
			DeviceTime: time.Duration(ms) * 1000000, BusyTimed: true, BusyTime: time.Duration(ms) * 500000,
		}
		if i == 0 {
			p.AllocatedStart, p.Hits, p.Misses, p.DeviceTimed, p.DeviceTime = 0, 55, 5, false, 0
			p.BusyTimed, p.BusyTime = false, 0
		}
		if i == 3 {
			p.AllocatedPeak++
		}
		c.add(&p)
	}
	return c.summary()
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, example().Table(&out))
	assert.Equal(t, strings.TrimPrefix(`
                 allocated  allocated            own     own                          cache  copied to  copied to    host  device  device
           step   at start     at end     peak  peak  at end  reserved  allocations    hits     device       host    time    time    busy
  first       0        0 B    1.0 MiB  3.0 MiB   0 B     0 B    22 MiB           60   91.7%    196 KiB        4 B   111ms       -       -
  second      1    1.0 MiB    1.0 MiB  3.0 MiB   0 B     0 B    22 MiB           60  100.0%    196 KiB        4 B   3.7ms     3ms   1.5ms
  slowest     0        0 B    1.0 MiB  3.0 MiB   0 B     0 B    22 MiB           60   91.7%    196 KiB        4 B   111ms       -       -
  largest     3    1.0 MiB    1.0 MiB  3.0 MiB   0 B     0 B    22 MiB           60  100.0%    196 KiB        4 B  4.94ms     4ms     2ms
  mean of     5    819 KiB    1.0 MiB  3.0 MiB   0 B     0 B    22 MiB           60   98.3%    196 KiB        4 B  24.9ms  2.75ms  1.38ms
`, "\n"), out.String())
}

func TestTableOfNothing(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{})
	var out bytes.Buffer
	require.NoError(t, p.Table(&out))
	assert.Equal(t, 2, strings.Count(out.String(), "\n"), "the head alone")
	_, step := p.StartStep(t.Context(), 1)
	step.End()
	out.Reset()
	require.NoError(t, p.Table(&out))
	assert.NotContains(t, out.String(), "second")
	assert.Regexp(t, `first +1 .* 0 +- +0 B +0 B`, out.String(), "there is no hit rate without requests")
	assert.NotContains(t, out.String(), "NaN")
}

type broken struct{}

var errBroken = errors.New("broken pipe")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestTableReturnsTheWritersError(t *testing.T) {
	assert.ErrorIs(t, example().Table(broken{}), errBroken)
}

// The hit rate of the mean is that of all requests, not that of rounded means.
func TestHitRateOfTheMean(t *testing.T) {
	var c collector
	for i, hits := range []int64{3, 0, 0} {
		c.add(&StepProfile{Step: int64(i), Allocations: 1, Hits: hits, Misses: int64(i % 2)})
	}
	var out bytes.Buffer
	require.NoError(t, c.summary().Table(&out))
	assert.Regexp(t, `mean of +3 .* 1 +75.0%`, out.String())
}

func TestFormatBytes(t *testing.T) {
	assert.Equal(t, []string{"0 B", "0 B", "1.5 KiB"}, []string{formatBytes(-5), formatBytes(0), formatBytes(1536)})
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999: "999ns", 1234: "1.23µs", 1234567: "1.23ms", 98765432: "98.8ms", 61234 * time.Millisecond: "1m1.2s",
	} {
		assert.Equal(t, want, formatDuration(d))
	}
}

func TestSummaryOfFewSteps(t *testing.T) {
	var c collector
	c.add(&StepProfile{Step: 7})
	s := c.summary()
	assert.Equal(t, []int64{7, 7, 7, 0}, []int64{s.First.Step, s.Slowest.Step, s.Largest.Step, s.Second.Step})
	assert.Zero(t, s.HitRate, "there were no requests")
	assert.Zero(t, s.First.HitRate())
	_, err := json.Marshal(s)
	assert.NoError(t, err)

	c.add(&StepProfile{Step: 8, Frees: 3, HostTime: 2, DeviceTime: 9, DeviceTimed: true})
	c.add(&StepProfile{Step: 9, HostTime: 5})
	s = c.summary()
	assert.Equal(t, int64(8), s.Slowest.Step, "the device took longest")
	assert.Equal(t, int64(1), s.Mean.Frees)
	c.add(&StepProfile{Step: 10, HostTime: 12, Frees: 3})
	s = c.summary()
	assert.Equal(t, int64(10), s.Slowest.Step, "the host took longest")
	assert.Equal(t, int64(2), s.Mean.Frees, "1.5 is 2")
	assert.Equal(t, time.Duration(9), s.Mean.DeviceTime)
}

// Nothing is written after an error of the writer.
func TestTableStopsAtAnError(t *testing.T) {
	w := &limited{left: 1}
	s := Summary{Steps: 1, Failed: 1, OutOfMemory: 1}
	assert.ErrorIs(t, s.failures(w), errBroken)
	assert.Equal(t, 1, w.wrote)
	assert.ErrorIs(t, s.Table(w), errBroken)

	whole := &limited{left: math.MaxInt}
	require.NoError(t, s.Table(whole))
	for fewer := range whole.wrote {
		require.ErrorIs(t, s.Table(&limited{left: fewer}), errBroken)
	}
}

// limited accepts a limited number of writes.
type limited struct{ left, wrote int }

func (l *limited) Write(p []byte) (int, error) {
	if l.left--; l.left <= 0 {
		l.wrote++
		return 0, errBroken
	}
	l.wrote++
	return len(p), nil
}

// A step that failed after it was summed up is in no mean and in no rate.
func TestFailRemovesAStepFromAllMeans(t *testing.T) {
	var c collector
	well := StepProfile{Hits: 3, Misses: 1, HostTime: 5, DeviceTime: 4, DeviceTimed: true, BusyTime: 2, BusyTimed: true}
	failed := StepProfile{Hits: 1, Misses: 7, HostTime: 50, DeviceTime: 40, DeviceTimed: true, BusyTime: 30, BusyTimed: true}
	c.add(&well)
	want := c.summary()
	c.add(&failed)
	c.fail(&failed)
	got := c.summary()
	require.Equal(t, want.Mean, got.Mean)
	require.Equal(t, want.HitRate, got.HitRate)
}
