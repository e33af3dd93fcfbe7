package report

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/recording"
)

// TestNegativeSizes: impossible memory is an error.
func TestNegativeSizes(t *testing.T) {
	for _, segments := range []string{`[{"address":4096,"total_size":-5,"blocks":[]}]`, `[{"address":4096,"total_size":2097152,"blocks":[[4096,-512,100,"active_allocated"]]}]`,
		`[{"address":4096,"total_size":2097152,"blocks":[[4096,512,-100,"active_allocated"]]}]`, `[{"address":4096,"total_size":9007199254740993,"blocks":[]}]`} {
		_, err := Read(strings.NewReader(`{"segments":`+segments+"}\n"), "file", Options{})
		require.ErrorContains(t, err, "at the end has", segments)
	}
	// The sum of all wraps around to a small number.
	s := &source{name: "huge", sizing: sizingOf("", nil), owners: newOwners()}
	nobody := s.owners.add(owner{category: unlabelled, stack: -1})
	for i := range 32 {
		s.entries = append(s.entries, entry{action: recording.FreeCompleted, addr: uint64(i+1) << 40, requested: 1<<60 - 1, owner: nobody},
			entry{action: recording.SegmentFree, addr: uint64(i+1) << 60, requested: 1<<60 - 1, owner: nobody})
	}
	_, err := newAccount(s)
	require.ErrorIs(t, err, errTooLarge)
}

// TestForeign: the call site is in the user's code, in whichever folder that is.
func TestForeign(t *testing.T) {
	for f, want := range map[frame]bool{
		{file: "/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py"}:                               true,
		{file: "/opt/pytorch/torch/nn/modules/linear.py"}:                                                    true,
		{file: "/opt/pytorch/torch/_tensor.py"}:                                                              true,
		{file: "/home/u/src/torch/train.py"}:                                                                 false,
		{file: "/home/u/src/torch/model/net.py"}:                                                             false,
		{file: "??"}:                                                                                         true,
		{file: "/src/allocator.cpp"}:                                                                         true,
		{function: "main.train", file: "/home/u/train.go"}:                                                   false,
		{function: "runtime.main", file: "/usr/go/src/runtime/proc.go"}:                                      true,
		{function: "github.com/cistern-ml/cistern/memcache.(*Cache).Alloc", file: "/m/alloc.go"}:             true,
		{function: "github.com/cistern-ml/cistern/memcache.TestX", file: "/m/alloc_test.go"}:                 false,
		{function: "github.com/cistern-ml/cistern/examples/mnist.train", file: "/m/examples/mnist/train.go"}: false,
	} {
		require.Equal(t, want, f.foreign(), f)
	}
}

// TestSorted compares with a sorted list.
func TestSorted(t *testing.T) {
	r := newRand(1)
	var s sorted[uint64]
	var keys []uint64
	for range 20_000 {
		key := r.Uint64N(5000)
		i, found := slices.BinarySearch(keys, key)
		if r.IntN(5) < 3 {
			s.set(key, key)
			if !found {
				keys = slices.Insert(keys, i, key)
			}
		} else {
			s.remove(key)
			if found {
				keys = slices.Delete(keys, i, i+1)
			}
		}
		i, _ = slices.BinarySearch(keys, key)
		next, ok := s.from(key)
		require.Equal(t, i < len(keys), ok)
		require.Equal(t, at(keys, i, 0), next)
		last, ok := s.before(key)
		require.Equal(t, i > 0, ok)
		require.Equal(t, at(keys, i-1, 0), last)
	}
	require.Equal(t, keys, slices.Collect(s.all))
	for _, p := range s.parts {
		require.NotEmpty(t, p)
		require.LessOrEqual(t, len(p), partLength)
	}
}

// BenchmarkOddRecordings reads recordings that no allocator makes: their cost grows with the number
// of entries, as with any other.
func BenchmarkOddRecordings(b *testing.B) {
	const n = 50_000
	make := func(add func(s *source, nobody int32)) func() *source {
		return func() *source {
			s := &source{name: "odd", sizing: sizingOf("expandable_segments:True", nil), owners: newOwners()}
			add(s, s.owners.add(owner{category: unlabelled, stack: -1}))
			return s
		}
	}
	for name, odd := range map[string]func() *source{
		"descending": make(func(s *source, nobody int32) {
			for i := range uint64(n) {
				s.entries = append(s.entries, entry{action: recording.SegmentAlloc, addr: (n - i) << 21, requested: 2 << 20, owner: nobody})
			}
		}),
		"open": make(func(s *source, nobody int32) {
			for i := range int32(n) {
				s.entries = append(s.entries, entry{action: recording.Alloc, addr: uint64(i+1) << 12, requested: 512, size: 512, owner: nobody})
				s.spans = append(s.spans, span{step: int64(i), from: i, to: n})
			}
		}),
		"unmapped": make(func(s *source, nobody int32) {
			s.entries = append(s.entries, entry{action: recording.SegmentMap, addr: 1 << 21, requested: 2 * n << 21, owner: nobody})
			for i := range uint64(n) {
				s.entries = append(s.entries, entry{action: recording.SegmentUnmap, addr: (2 + 2*i) << 21, requested: 2 << 20, owner: nobody})
			}
		}),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := newAccount(odd()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestHugeSizes: entries that no device can have are an error, not a wrong sum.
func TestHugeSizes(t *testing.T) {
	s := &source{name: "huge", sizing: sizingOf("", nil), owners: newOwners()}
	nobody := s.owners.add(owner{category: unlabelled, stack: -1})
	for i := range 20 {
		s.entries = append(s.entries, entry{action: recording.Alloc, addr: uint64(i+1) << 40, requested: 1<<60 - 1, owner: nobody})
	}
	_, err := newAccount(s)
	require.ErrorIs(t, err, errTooLarge)
	require.ErrorContains(t, err, "huge")
}
