package report

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace/record"
)

// failing is a program in which each step leaves a block of a layer, until a request of the head
// fails.
func failing(t *testing.T) (l *ledger, recording *bytes.Buffer, oom *memcache.OutOfMemoryError) {
	l = newLedger(t, memcache.Config{MemoryLimit: 64 << 20}, 2, everything)
	l.silent = true
	recording = new(bytes.Buffer)
	r, err := record.Start(recording, l.cache, record.Options{})
	require.NoError(t, err)
	l.alloc(memcache.Label{Module: "encoder", Category: memcache.CategoryParameter}, 3<<20, 0)
	other := l.alloc(memcache.Label{Category: memcache.CategoryInput}, 12<<20, 1)
	l.alloc(memcache.Label{Category: memcache.CategoryInput}, 2<<20, 1)
	l.alloc(memcache.Label{Category: memcache.CategoryInput}, 1<<19, 0)
	l.free(other)
	for step := int64(1); step <= 3; step++ {
		l.alloc(memcache.Label{Module: "encoder", Category: memcache.CategoryActivation, Step: step}, 5<<20, 0)
	}
	ctx := memcache.WithStep(memcache.WithCategory(memcache.WithModule(t.Context(), "head (Linear)"), memcache.CategoryGradient), 3)
	_, err = l.cache.Alloc(ctx, 30<<20, l.streams[0])
	require.ErrorAs(t, err, &oom)
	require.NoError(t, r.Close())
	return l, recording, oom
}

// TestOutOfMemoryPage: the page of a failed request begins with the error's figures, to the byte,
// with its advice, and with a button to the moment.
func TestOutOfMemoryPage(t *testing.T) {
	browsertest.Program(t)
	l, recording, oom := failing(t)
	report := l.report(Options{OutOfMemory: oom})
	b := openPage(t, 1280, 800, report)
	amounts := func(id string) []int64 {
		return browsertest.Eval[[]int64](b.Browser, fmt.Sprintf(`[...document.querySelectorAll("#%s data")].map((d) => Number(d.value))`, id))
	}
	text := func(id string) string {
		return browsertest.Eval[string](b.Browser, fmt.Sprintf(`document.getElementById(%q).textContent`, id))
	}
	require.Equal(t, []int64{30 << 20}, amounts("oom-what"))
	require.Contains(t, text("oom-what"), "by head (Linear) (gradient) at report.failing")
	free := oom.Reserved - oom.Allocated - oom.Pending
	require.Positive(t, oom.OtherStreams*oom.OtherSizes*oom.Largest)
	require.Equal(t, []int64{oom.Limit, oom.Reserved, oom.Allocated, free, oom.Largest, oom.OtherStreams, oom.OtherSizes, oom.Free, oom.Total}, amounts("oom-facts"))
	require.NotEmpty(t, oom.Advice)
	require.Equal(t, "What would have helped: "+oom.Advice+".", text("oom-advice"))
	require.EqualValues(t, oom.Limit, browsertest.Eval[int64](b.Browser, `report.page.timeline.limit`), "the chart has a line for it")
	b.Do(chromedp.Click(chromedp.CSS("#oom-go button")))
	held, _, _ := b.held()
	require.Equal(t, oom.Allocated, held)
	require.NotContains(t, text("kept"), "activation 3", "what step 3 holds it has not left behind")
	require.Contains(t, text("kept-about"), "Blocks of step 3, in which memory ran out, are not counted")
	require.EqualValues(t, oom.Allocated-5<<20, browsertest.Eval[int64](b.Browser, `report.page.r.kept.reduce((a, k) => a + k.bytes, 0)`))

	// The figures of a recording are those of its entries.
	reports, err := Read(bytes.NewReader(recording.Bytes()), "run", Options{WhatIf: []string{"reuse_across_streams:when_full", "memory_limit:134217728"}})
	require.NoError(t, err)
	b = openPage(t, 1280, 800, reports...)
	require.Equal(t, []int64{30 << 20}, amounts("oom-what"))
	require.Contains(t, text("oom-what"), "by head (Linear) (gradient)")
	require.Equal(t, []int64{64 << 20, oom.Reserved, oom.Allocated, free}, amounts("oom-facts")[:4])
	require.Equal(t, []int64{oom.Largest, oom.OtherStreams}, amounts("oom-facts")[4:6])
	require.True(t, strings.HasPrefix(text("oom-advice"), "What would have helped: no request fails with exact:False,memory_limit:134217728"), text("oom-advice"))
}

// TestPageWithoutAFailedRequest: other pages have no such box.
func TestPageWithoutAFailedRequest(t *testing.T) {
	browsertest.Program(t)
	l := newLedger(t, memcache.Config{}, 1, everything)
	mlp(l, 3, 0)
	b := openPage(t, 1280, 800, l.report(Options{}))
	require.True(t, browsertest.Eval[bool](b.Browser, `document.getElementById("oom").hidden`))
}
