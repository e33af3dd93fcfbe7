package report

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/browsertest"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// walk is the memory of a history up to some entry: segments of fixed size, bytes of expandable
// ones, and blocks that are in use or pending.
type walk struct {
	segments map[uint64]int64
	mapped   int64
	blocks   map[uint64]memcache.HistoryEntry // by serial
}

func (w *walk) take(e memcache.HistoryEntry) {
	switch e.Action {
	case memcache.ActionSegmentAlloc:
		w.segments[uint64(e.Address)] = e.Size
	case memcache.ActionSegmentFree:
		delete(w.segments, uint64(e.Address))
	case memcache.ActionSegmentMap:
		w.mapped += e.Size
	case memcache.ActionSegmentUnmap:
		w.mapped -= e.Size
	case memcache.ActionAlloc:
		w.blocks[e.Serial] = e
	case memcache.ActionFreeCompleted:
		delete(w.blocks, e.Serial)
	}
}

// in returns the blocks of a segment and its free bytes.
func (w *walk) in(at uint64) (blocks []memcache.HistoryEntry, free int64) {
	free = w.segments[at]
	for _, b := range w.blocks {
		if at <= uint64(b.Address) && uint64(b.Address) < at+uint64(w.segments[at]) {
			blocks = append(blocks, b)
			free -= b.Block
		}
	}
	return blocks, free
}

func (w *walk) nonReleasable() (sum int64) {
	for at := range w.segments {
		if blocks, free := w.in(at); len(blocks) > 0 {
			sum += free
		}
	}
	return sum
}

// fragmentation returns that of the walk's end. Owners are labels.
func (w *walk) fragmentation() (f fragmentation, keepers map[memcache.Label]*keeper) {
	keepers = map[memcache.Label]*keeper{}
	for at := range w.segments {
		blocks, free := w.in(at)
		owners := map[memcache.Label]keeping{}
		for _, b := range blocks {
			label := memcache.Label{Module: b.Label.Module, Category: b.Label.Category}
			k := owners[label]
			owners[label] = keeping{1, free, k.Blocks + 1, k.Bytes + b.Block}
		}
		if len(owners) == 0 || free == 0 {
			continue
		}
		f.Segments++
		f.Free += free
		all, category := keeping{}, map[int8]bool{}
		for label, k := range owners {
			if keepers[label] == nil {
				keepers[label] = &keeper{}
			}
			to := &keepers[label].Alone
			if len(owners) > 1 {
				to = &keepers[label].Shared
				all.Blocks += k.Blocks
				all.Bytes += k.Bytes
				category[int8(label.Category)] = true
			}
			*to = keeping{to.Segments + 1, to.Free + free, to.Blocks + k.Blocks, to.Bytes + k.Bytes}
		}
		if len(owners) == 1 {
			continue
		}
		c := mixed
		if len(category) == 1 {
			c = slices.Collect(maps.Keys(category))[0]
		}
		i := slices.IndexFunc(f.Shared, func(s shared) bool { return s.Category == c })
		if i < 0 {
			i, f.Shared = len(f.Shared), append(f.Shared, shared{Category: c})
		}
		s := &f.Shared[i]
		s.keeping = keeping{s.Segments + 1, s.Free + free, s.Blocks + all.Blocks, s.Bytes + all.Bytes}
	}
	f.Reserved = sum(w.segments) + w.mapped
	f.Releasable = f.Reserved - f.Free
	for _, b := range w.blocks {
		f.Releasable -= b.Block
	}
	return f, keepers
}

// TestNonReleasable compares each moment with a walk over the history and with the cache's own
// InactiveSplitBytes, and the keepers at the peak of the reserved memory with the walk's.
func TestNonReleasable(t *testing.T) {
	history := memcache.HistoryOptions{Entries: 1 << 17} // call sites would divide the owners
	told, kinds := 0, map[bool]bool{}
	for i, config := range []memcache.Config{{ExpandableSegments: true}, {RoundupPower2Divisions: memcache.AllDivisions(4)}, {MaxSplitSizeMB: 32}, {}} {
		seeds := 8
		if testing.Short() {
			seeds = 3 // with one stream, two and three
		}
		// The blocks that wait for a stream depend on timing: the last kind may need more programs.
		for seed := 0; seed < seeds || i == 3 && len(kinds) < 2 && seed < 100; seed++ {
			t.Run(name(seed), func(t *testing.T) { // which frees the memory of its ledger
				l := newLedger(t, config, 1+seed%3, history)
				l.random(newRand(uint64(100*i+seed)), 12)
				require.NoError(t, l.cache.EmptyCache(t.Context()))
				l.random(newRand(uint64(100*i+seed+50)), 6)
				a := l.report(Options{}).account
				curve, err := a.nonReleasable()
				require.NoError(t, err)
				w := walk{segments: map[uint64]int64{}, blocks: map[uint64]memcache.HistoryEntry{}}
				want := []int64{0}
				var f fragmentation
				keepers := map[memcache.Label]*keeper{}
				for n, e := range l.cache.History() {
					if e.Action == memcache.ActionSnapshot { // of the report
						continue
					}
					w.take(e)
					want = append(want, w.nonReleasable())
					if now, k := w.fragmentation(); now.Reserved > f.Reserved {
						now.Moment = int32(n)
						now.Releasable -= e.Size
						f, keepers = now, k
					}
				}
				require.Equal(t, want, curve, "%v", config)
				for _, s := range l.states {
					require.Equal(t, s.split, curve[s.entries], "%v after %d entries", config, s.entries)
				}
				got := a.fragmentation
				require.Equal(t, 20*(f.Free+f.Releasable) >= f.Reserved, got != nil)
				if got == nil {
					return
				}
				told++
				order := slices.SortedFunc(maps.Values(keepers), func(x, y *keeper) int {
					return cmp.Or(cmp.Compare(y.Alone.Free, x.Alone.Free), cmp.Compare(y.Shared.Free, x.Shared.Free))
				})
				require.Len(t, got.Keepers, min(len(order), 5))
				for i, k := range got.Keepers {
					require.Equal(t, [2]int64{order[i].Alone.Free, order[i].Shared.Free}, [2]int64{k.Alone.Free, k.Shared.Free})
					o := a.owners.list[k.Owner]
					k.Owner = 0
					require.Equal(t, *keepers[memcache.Label{Module: o.module, Category: memcache.Category(o.category)}], k)
				}
				f.Keepers, f.Others = got.Keepers, len(order)-len(got.Keepers)
				require.True(t, slices.IsSortedFunc(got.Shared, func(x, y shared) int { return cmp.Compare(y.Free, x.Free) }))
				require.ElementsMatch(t, f.Shared, got.Shared)
				for _, s := range f.Shared {
					kinds[s.Category != mixed] = true
				}
				f.Shared = got.Shared
				require.Equal(t, f, *got)
			})
		}
	}
	require.Greater(t, told, 5)
	require.Len(t, kinds, 2, "segments of several categories, and of one")
}

// TestNonReleasableOfLateRecording: a recording that lost its beginning has the same moments.
func TestNonReleasableOfLateRecording(t *testing.T) {
	for _, name := range []string{"resnet50", "resnet50.expandable"} {
		lateRecording(t, name)
	}
}

func lateRecording(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(recordings + name + ".jsonl.gz")
	require.NoError(t, err)
	list, err := recording.Read(bytes.NewReader(text), "file", recording.Options{Details: true})
	require.NoError(t, err)
	a, err := newAccount(fromRecording(list[0]))
	require.NoError(t, err)
	curve, err := a.nonReleasable()
	require.NoError(t, err)
	for _, lost := range []int32{1, 5577, a.moments() - 1} {
		rec := *list[0]
		rec.Entries = rec.Entries[lost:]
		late, err := newAccount(fromRecording(&rec))
		require.NoError(t, err)
		got, err := late.nonReleasable()
		require.NoError(t, err)
		for i, v := range got { // blocks count as what was asked for, rounded, where the entries lost their sizes
			if want := curve[int(lost)+i]; v < want || v-want > a.peakReserved/50 || want == 0 && v > 0 {
				t.Fatalf("%d bytes at moment %d of those from %d on; %d in the whole recording", v, i-1, lost, want)
			}
		}
	}
}

// keepers returns a recording with segments of 20 MiB: head keeps the first alone, head and encoder
// share the second, the third is full, the fourth has no blocks, a free of the fifth is pending,
// head and tail share the sixth, and free is the free part of the last one.
func keepers(free int64) string {
	const segment, mib = 20 << 20, 1 << 20
	var text strings.Builder
	text.WriteString(`{"format":"cistern recording 1"}
{"label":0,"module":"head","category":"activation"}
{"label":1,"module":"encoder","category":"gradient"}
{"label":2,"module":"tail","category":"activation"}
`)
	n := 0
	entry := func(action string, at, bytes int64) {
		n++
		fmt.Fprintf(&text, "[%q,%d,%d,0,%d]\n", action, at, bytes, n)
	}
	alloc := func(at, bytes, label int64) {
		n++
		fmt.Fprintf(&text, "[\"alloc\",%d,%d,0,%d,-1,%d,%d]\n", at, bytes, n, bytes, label)
	}
	for s := int64(1); s <= 5; s++ {
		entry("segment_alloc", s<<32, segment)
	}
	alloc(1<<32, 2*mib, 0)
	alloc(1<<32+5*mib, mib, 0)
	alloc(2<<32, 4*mib, 0)
	alloc(2<<32+8*mib, 3*mib, 1)
	alloc(3<<32, segment, 1)
	alloc(4<<32, mib, 0)
	entry("free_requested", 4<<32, mib)
	entry("free_completed", 4<<32, mib)
	alloc(5<<32, 16*mib, 1)
	entry("free_requested", 5<<32, 16*mib)
	entry("segment_alloc", 8<<32, segment)
	alloc(8<<32, mib, 0)
	alloc(8<<32+2*mib, 2*mib, 2)
	entry("segment_map", 6<<32, segment)
	alloc(6<<32, mib, 0)
	entry("segment_alloc", 7<<32, free)
	return text.String()
}

// TestKeepers: keepers and their bytes, computed by hand, in the report and on the page.
func TestKeepers(t *testing.T) {
	const mib = 1 << 20
	reports, err := Read(strings.NewReader(keepers(2*mib)), "kept", Options{})
	require.NoError(t, err)
	a := reports[0].account
	head, encoder, tail := a.blocks[0].owner, a.blocks[3].owner, a.blocks[8].owner
	require.Equal(t, &fragmentation{Moment: 20, Reserved: 142 * mib, Free: (17 + 13 + 4 + 17) * mib, Releasable: (20 + 19) * mib, Segments: 4,
		Shared: []shared{{int8(memcache.CategoryActivation), keeping{1, 17 * mib, 2, 3 * mib}}, {mixed, keeping{1, 13 * mib, 2, 7 * mib}}},
		Keepers: []keeper{{Owner: head, Alone: keeping{1, 17 * mib, 2, 3 * mib}, Shared: keeping{2, 30 * mib, 2, 5 * mib}},
			{Owner: encoder, Alone: keeping{1, 4 * mib, 1, 16 * mib}, Shared: keeping{1, 13 * mib, 1, 3 * mib}},
			{Owner: tail, Shared: keeping{1, 17 * mib, 1, 2 * mib}}}}, a.fragmentation)
	last := a.blocks[len(a.blocks)-1]
	require.EqualValues(t, -1, a.segments.of[len(a.blocks)-1], "%v is in an expandable segment", last)

	// 90 of 1,800 MiB are 5 %.
	for free, told := range map[int64]bool{1660 * mib: true, 1661 * mib: false} {
		reports, err := Read(strings.NewReader(keepers(free)), "kept", Options{})
		require.NoError(t, err)
		require.Equal(t, told, reports[0].account.fragmentation != nil, free)
	}
}

// TestFragmentationPage: the sentences of the page have the report's figures, one by one, and its
// curve is Go's at every moment.
func TestFragmentationPage(t *testing.T) {
	browsertest.Program(t)
	const mib = 1 << 20
	reports, err := Read(strings.NewReader(keepers(2*mib)), "kept", Options{})
	require.NoError(t, err)
	reports = append(reports, readFile(t, recordings+"vit_eval.jsonl.gz", Options{Suggest: true})...)
	small, err := Read(strings.NewReader("{}\n"), "small", Options{})
	require.NoError(t, err)
	b := openPage(t, 1200, 900, append(reports, small...)...)
	amounts := func(id string) [][]int64 {
		return browsertest.Eval[[][]int64](b.Browser, fmt.Sprintf(`[...document.querySelectorAll("#%s")].map((e) => [...e.querySelectorAll("data")].map((d) => Number(d.value)))`, id))
	}
	texts := func(id string) []string {
		return browsertest.Eval[[]string](b.Browser, fmt.Sprintf(`[...document.querySelectorAll("#%s")].map((e) => e.textContent)`, id))
	}
	require.Equal(t, [][]int64{{51 * mib, 142 * mib, 39 * mib}}, amounts("fragmentation-about"))
	require.Contains(t, texts("fragmentation-about")[0], "entry 20 of 21")
	require.Contains(t, texts("fragmentation-about")[0], "(35.9 %) were free and not releasable: pieces of 4 segments")
	require.Equal(t, [][]int64{{8 * mib, 17 * mib, 30 * mib}, {19 * mib, 4 * mib, 13 * mib}, {2 * mib, 17 * mib}, {17 * mib}, {13 * mib}}, amounts("keepers li"))
	require.Equal(t, []string{"4 blocks of activation · head (8.00 MiB) keep 17.00 MiB in 1 segment, and keep 30.00 MiB in 2 segments together with others.",
		"2 blocks of gradient · encoder (19.00 MiB) keep 4.00 MiB in 1 segment, and keep 13.00 MiB in 1 segment together with others.",
		"1 block of activation · tail (2.00 MiB) keeps 17.00 MiB in 1 segment together with others.",
		"Several owners of activation together keep 17.00 MiB in 1 segment.", "Owners of several categories together keep 13.00 MiB in 1 segment."}, texts("keepers li"))
	require.Empty(t, texts("fragmentation-options li"))
	b.Do(chromedp.Click(chromedp.CSS("#fragmentation-go button")))
	require.EqualValues(t, 20, browsertest.Eval[int](b.Browser, `report.page.moment`))
	b.Run(choose("device", 1))
	f, options := reports[1].account.fragmentation, reports[1].whatIf
	require.NotNil(t, f)
	require.Equal(t, [][]int64{{f.Free, f.Reserved, f.Releasable}}, amounts("fragmentation-about"))
	rest := f.Free
	for i, s := range f.Shared {
		require.Equal(t, []int64{s.Free}, amounts("keepers li")[len(f.Keepers)+min(f.Others, 1)+i])
		rest -= s.Free
	}
	for i, k := range f.Keepers {
		line := amounts("keepers li")[i]
		require.Equal(t, k.Alone.Bytes+k.Shared.Bytes, line[0])
		require.Contains(t, line[1:], max(k.Alone.Free, k.Shared.Free))
		rest -= k.Alone.Free
	}
	if f.Others > 0 {
		require.Equal(t, []int64{rest}, amounts("keepers li")[len(f.Keepers)])
	}
	better := slices.DeleteFunc(slices.Clone(options[1:]), func(e estimate) bool {
		return e.OOMs > options[0].OOMs || 100*e.Reserved > 99*options[0].Reserved
	})
	require.NotEmpty(t, better)
	slices.SortStableFunc(better, func(x, y estimate) int { return cmp.Compare(x.Reserved, y.Reserved) })
	for i, e := range better[:min(5, len(better))] {
		require.Equal(t, []int64{e.Reserved, options[0].Reserved}, amounts("fragmentation-options li")[i])
		require.Equal(t, e.DriverCalls > options[0].DriverCalls, strings.Contains(texts("fragmentation-options li")[i], "driver calls"))
	}
	for i, r := range reports {
		b.Run(choose("device", i))
		curve, err := r.account.nonReleasable()
		require.NoError(t, err)
		require.Equal(t, curve, browsertest.Eval[[]int64](b.Browser, `[...report.page.moments.nonReleasable.subarray(0, report.page.r.moments + 1)]`))
		require.Equal(t, slices.Max(curve), browsertest.Eval[int64](b.Browser, `Math.max(...report.page.timeline.columns.nonReleasable)`), "the most is drawn")
	}
	b.Run(choose("device", 2))
	require.True(t, browsertest.Eval[bool](b.Browser, `document.getElementById("fragmentation-section").hidden && report.page.moments.nonReleasable === null`))
}
