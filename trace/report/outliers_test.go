package report

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// TestStepsThatStandOut: the table has the steps with a peak or a time far above the others', by
// the test's own count, those that failed, and all on request; the charts have a value and a mark
// of each.
func TestStepsThatStandOut(t *testing.T) {
	browsertest.Program(t)
	l := newLedger(t, memcache.Config{}, 1, everything)
	l.silent = true
	r := rand.New(rand.NewPCG(7, 0))
	var steps []trace.StepProfile
	var peaks, times []float64
	for n := int64(1); n <= 200; n++ {
		p := trace.StepProfile{Step: n, Start: time.Now(), Failed: n == 150}
		size := (100 + r.Int64N(20)) << 12
		if r.IntN(30) == 0 {
			size *= 2
		}
		time.Sleep(50 * time.Microsecond) // as far as the clock may be set while a step runs
		b := l.alloc(memcache.Label{Module: "m", Step: n}, size, 0)
		p.AllocatedPeak, p.DeviceTimed, p.DeviceTime = l.cache.MemoryAllocated(), true, time.Duration(1000+r.IntN(100))*time.Microsecond
		if r.IntN(30) == 0 {
			p.DeviceTime *= 3
		}
		l.free(b)
		time.Sleep(50 * time.Microsecond)
		p.HostTime = time.Since(p.Start)
		steps, peaks, times = append(steps, p), append(peaks, float64(p.AllocatedPeak)), append(times, float64(p.DeviceTime.Microseconds()))
	}
	report, err := FromCache(l.cache, steps, Options{})
	require.NoError(t, err)
	var want []float64
	for i := range steps {
		if above(peaks, i) || above(times, i) || steps[i].Failed {
			want = append(want, float64(i+1))
		}
	}
	require.Greater(t, len(want), 8)

	b := openPage(t, 1280, 800, report)
	require.Equal(t, want, b.column("steps", 0))
	marks := browsertest.Eval[[][]int](b.Browser, `report.page.steps.drawn.map((c) => [...c.marks].sort((a, b) => a - b))`)
	for chart, values := range [][]float64{peaks, times} {
		require.Equal(t, values, browsertest.Eval[[][]float64](b.Browser, `report.page.steps.drawn.map((c) => [...c.series[0].y])`)[chart])
		for i := range steps {
			require.Equal(t, above(values, i) || steps[i].Failed, slices.Contains(marks[chart], i), "step %d, chart %d", i+1, chart)
		}
	}
	require.Contains(t, browsertest.Eval[string](b.Browser, `document.querySelector("#steps tbody").textContent`), "failed")

	// A step that is chosen in another view is in the table while it is chosen.
	b.Run(`report.page.select(report.page.r.steps.columns.peakAt[59])`)
	require.NotContains(t, want, 60.0)
	require.Contains(t, b.column("steps", 0), 60.0)
	b.Run(`report.page.select(report.page.r.steps.columns.peakAt[60])`)
	require.NotContains(t, b.column("steps", 0), 60.0)
	b.Do(chromedp.Click(chromedp.ID("steps-all")))
	require.Len(t, b.column("steps", 0), 200)
}

// above reports whether a value is more than the third quartile and three times the distance of the
// quartiles, and more than 1.05 medians.
func above(values []float64, i int) bool {
	sorted := slices.Sorted(slices.Values(values))
	at := func(q float64) float64 { return sorted[int(q*float64(len(sorted)-1)+0.5)] }
	return values[i] > at(0.75)+3*(at(0.75)-at(0.25)) && values[i] > 1.05*at(0.5)
}

// TestShownPart: the top line has the steps of the run that are in the history.
func TestShownPart(t *testing.T) {
	browsertest.Program(t)
	l := newLedger(t, memcache.Config{}, 1, memcache.HistoryOptions{Entries: 40})
	l.silent = true
	var steps []trace.StepProfile
	l.alloc(memcache.Label{Category: memcache.CategoryParameter}, 4096, 0)
	about := func() string {
		report, err := FromCache(l.cache, steps, Options{})
		require.NoError(t, err)
		return browsertest.Eval[string](openPage(t, 1280, 800, report).Browser, `document.getElementById("about").textContent`)
	}
	for n := int64(1); n <= 100; n++ {
		p := trace.StepProfile{Step: n, Start: time.Now()}
		l.free(l.alloc(memcache.Label{Step: n}, 4096, 0))
		p.HostTime = time.Since(p.Start)
		steps = append(steps, p)
		if n == 5 {
			require.Regexp(t, "^the whole run, steps 1 to 5 · ", about())
		}
	}
	require.Regexp(t, `^the end of the run, steps 8\d to 100 of the profiled steps 1 to 100 · `, about())
	steps = steps[90:]
	require.Regexp(t, "^the end of the run, steps 91 to 100 · ", about())
}
