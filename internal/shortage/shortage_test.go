package shortage

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// TestLines compares whole explanations.
func TestLines(t *testing.T) {
	s := Shortage{
		Device: "cuda:0", Label: "blocks.3.attn (activation)", Requested: 500*mib + 1, Segment: 502 * mib,
		Total: 80 * gib, Free: 300 * mib, Limit: -1, Reserved: 78 * gib, Allocated: 70 * gib, Pending: gib,
		Largest: 400 * mib, OtherStreams: 2 * gib, OtherSizes: 12 * mib, OtherPools: 3 * gib, Graphs: gib,
		Advice: "advice", Holders: []string{"a (parameter) 30.00 GiB", "b 20.00 GiB"}, Waited: "2s: context canceled",
	}
	require.Equal(t, []string{
		"out of memory on cuda:0: blocks.3.attn (activation) asked for 500.00 MiB, which needs a segment of 502.00 MiB, and waited for 2s: context canceled",
		"the device has 80.00 GiB, 300.00 MiB free and 1.71 GiB in use outside of the cache",
		"the cache reserves 78.00 GiB: 70.00 GiB allocated, 1024.00 MiB freed but in use by a recorded stream, 7.00 GiB free " +
			"(1.99 GiB in pieces of at most 400.00 MiB, 2.00 GiB of other streams, 12.00 MiB for requests up to 1 MiB, 2.00 GiB of other pools, 1024.00 MiB of graphs)",
		"advice",
		"largest holders: a (parameter) 30.00 GiB, b 20.00 GiB",
	}, s.Lines())
	s = Shortage{Device: "host", Requested: 1, Segment: 2 * mib, Total: gib, Free: -1, Limit: mib, Reserved: 20 * mib, Allocated: 3 * mib, OtherSizes: 17 * mib}
	require.Equal(t, []string{
		"out of memory on host: a request asked for 1 bytes, which needs a segment of 2.00 MiB",
		"the device has 1024.00 MiB, and does not report how much is free; the cache may reserve 1024.00 KiB",
		"the cache reserves 20.00 MiB: 3.00 MiB allocated, 17.00 MiB free (17.00 MiB for requests over 1 MiB)",
	}, s.Lines())
	s = Shortage{Device: "host", Requested: mib, Segment: mib, Total: gib, Limit: -1, Reserved: gib, Allocated: gib - mib, Largest: mib}
	require.Contains(t, strings.Join(s.Lines(), "\n"), "1024.00 KiB free (1024.00 KiB in one piece)")
}

// segment returns a segment of the default pool and stream 1, with blocks that are used if their
// sizes are positive.
func segment(blocks ...int64) Segment {
	s := Segment{Stream: 1}
	for _, n := range blocks {
		s.Blocks = append(s.Blocks, Block{Bytes: max(n, -n), Used: n > 0})
	}
	return s
}

// TestAdvise: the first advice that would work, from calls to options to none.
func TestAdvise(t *testing.T) {
	kept := func(pool string, n int64) Segment { s := segment(-n); s.Pool, s.Kept = pool, true; return s }
	for want, change := range map[string]func(*Books){
		"max_split_size_mb:20 should serve it: smaller blocks then leave large segments whole": func(*Books) {},
		"max_split_size_mb:31 should serve it: smaller blocks then leave large segments whole": func(b *Books) {
			b.Segments = []Segment{segment(30*mib+1, -70*mib)}
		},
		"no option would have served it: 10.00 MiB more must be freed": func(b *Books) { b.Splits = false },
		"no option would have served it: 20.00 MiB more must be freed": func(b *Books) { b.Splits, b.Limit = false, 140*mib },
		"no option would have served it: 40.00 MiB more must be freed": func(b *Books) {
			b.Segments, b.Free = []Segment{segment(100 * mib)}, 20*mib
		},
		"no option would have served it: 60.00 MiB more must be freed":                  func(b *Books) { b.Segments, b.Free = nil, -1 },
		"it was refused although 60.00 MiB are free":                                    func(b *Books) { b.Segments, b.Free, b.Refused = nil, 60*mib, true },
		"memory_limit:167772160 (160.00 MiB) would have served it":                      func(b *Books) { b.Limit, b.Free = 100*mib, 60*mib },
		"expandable_segments:True should serve it: the free pieces are enough together": func(b *Books) { b.Granule = 20 * mib },
		"reuse_across_streams:when_full would have served it, from a free block of stream 7": func(b *Books) {
			b.Lends, b.Lender, b.Limit, b.Free = true, 7, 100*mib, 60*mib
		},
		"EmptyCache of private pool 2 would have served it: 20.00 MiB are in free segments": func(b *Books) {
			b.Lends, b.Lender, b.Segments = true, 7, append(b.Segments, kept("private pool 2", 20*mib))
		},
		"EmptyCache would have served it: 10.00 MiB are in free segments": func(b *Books) {
			b.Segments = append(b.Segments, kept("", 10*mib), kept("private pool 2", 9*mib))
		},
		"no option would have served it: 10.00 MiB more must be freed; garbage_collection_threshold does nothing without a memory limit": func(b *Books) {
			b.Splits, b.IdleGC = false, true
		},
	} {
		// The driver gives 50 MiB of the 60, and small blocks split a segment of 100.
		b := Books{Bytes: 60 * mib, Segment: 60 * mib, Stream: 1, Free: 50 * mib, Limit: -1, Reserved: 100 * mib, Splits: true,
			Segments: []Segment{segment(3*mib, -47*mib, 5*mib, -45*mib)}}
		change(&b)
		require.Equal(t, want, b.Advise())
	}
}

// TestFiveLines: there are at most five, none of them broken, for any figures.
func TestFiveLines(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		n := func() int64 { return r.Int64N(4) * r.Int64N(1<<40) }
		s := Shortage{Device: "d", Label: "l", Requested: n(), Segment: n(), Total: n(), Free: n() - 1, Limit: n() - 1, Reserved: n(), Allocated: n(), Pending: n(),
			Largest: n(), OtherStreams: n(), OtherSizes: n(), OtherPools: n(), Graphs: n(), Advice: "a", Holders: []string{"x", "y", "z"}, Waited: "1s"}
		require.Len(t, s.Lines(), 5)
		require.NotContains(t, strings.Join(s.Lines(), ""), "\n")
	}
}
