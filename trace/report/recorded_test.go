package report

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/internal/recording"
)

// TestRecordedPeaks: the peaks of PyTorch's own recordings are those of its statistics, and each
// makes a page. The short form reads the short recordings.
func TestRecordedPeaks(t *testing.T) {
	files, err := filepath.Glob("../../memcache/testdata/recordings/*.jsonl.gz")
	require.NoError(t, err)
	files = append(files, "../../internal/recording/testdata/mnist_mlp.pickle.gz", "../../internal/recording/testdata/sample_with_stacks.pickle")
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if (race.Enabled || testing.Short()) && len(text) > 64<<10 {
			continue // the detector sees one goroutine
		}
		list, err := recording.Read(bytes.NewReader(text), file, recording.Options{Details: true})
		require.NoError(t, err)
		a, err := newAccount(fromRecording(list[0]))
		require.NoError(t, err)
		require.True(t, a.exact, file)
		require.Empty(t, missingNotes(a), file)
		nonReleasable, err := a.nonReleasable()
		require.NoError(t, err)
		if segments := list[0].Segments; segments != nil && !strings.Contains(file, "expandable") {
			require.Equal(t, inactiveSplit(segments), nonReleasable[len(nonReleasable)-1], file)
		}
		if stats := list[0].Stats; stats != nil {
			require.Equal(t, stats["allocated_bytes.all.peak"], a.peakBytes, file)
			require.Equal(t, stats["reserved_bytes.all.peak"], a.peakReserved, file)
			require.Equal(t, stats["inactive_split_bytes.all.peak"], slices.Max(nonReleasable), file)
		}
		require.NoError(t, Write(io.Discard, &Report{account: a}), file)
	}
	require.Greater(t, len(files), 20)
}

// inactiveSplit returns the bytes of the inactive blocks of segments that have others, too.
func inactiveSplit(segments []recording.Segment) (sum int64) {
	for _, s := range segments {
		inactive, all := int64(0), true
		for _, b := range s.Blocks {
			if b.State == "inactive" {
				inactive += b.Size
			} else {
				all = false
			}
		}
		if !all {
			sum += inactive
		}
	}
	return sum
}

// missingNotes returns the notes about missing events.
func missingNotes(a *account) (list []string) {
	for _, n := range a.notes {
		if strings.Contains(n, "missing") || strings.Contains(n, "before the recording") {
			list = append(list, n)
		}
	}
	return list
}

// TestLateRecording: the blocks from before a recording's beginning follow from its frees and from
// the segments at its end.
func TestLateRecording(t *testing.T) {
	text, err := os.ReadFile("../../memcache/testdata/recordings/resnet50.jsonl.gz")
	require.NoError(t, err)
	list, err := recording.Read(bytes.NewReader(text), "file", recording.Options{Details: true})
	require.NoError(t, err)
	whole, err := newAccount(fromRecording(list[0]))
	require.NoError(t, err)
	want, err := whole.allocated()
	require.NoError(t, err)
	wantReserved, err := whole.reserved()
	require.NoError(t, err)
	for _, lost := range []int32{1, 100, 5577, 12000, whole.moments() - 1, whole.moments()} {
		rec := *list[0]
		rec.Entries = rec.Entries[lost:]
		late, err := newAccount(fromRecording(&rec))
		require.NoError(t, err)
		got, err := late.allocated()
		require.NoError(t, err)
		for i, v := range got {
			// Blocks that were not split are a little larger than the requests of the
			// entries.
			if want := want[int(lost)+i]; v > want || float64(want-v) > 0.05*float64(want+1) {
				t.Fatalf("%d bytes at moment %d of those from %d on; %d in the whole recording",
					v, i-1, lost, want)
			}
		}
		reserved, err := late.reserved()
		require.NoError(t, err)
		require.Equal(t, wantReserved[lost:], reserved, lost)
	}
}
