package profiledir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

func TestMain(m *testing.M) { cisterntest.Main(m) }

// TestReportHasTheLatestSteps, as its history has the latest events.
func TestReportHasTheLatestSteps(t *testing.T) {
	d, err := New(t.TempDir(), Options{})
	require.NoError(t, err)
	for n := range int64(3*mostSteps + 5) {
		d.OnProfile(trace.StepProfile{Step: n})
	}
	latest := d.latest()
	require.Len(t, latest, mostSteps)
	for i, s := range latest {
		require.Equal(t, int64(2*mostSteps+5+i), s.Step)
	}
	require.NoError(t, d.Close())
}

// watched is a cache whose requests the folder records, and a stream on its device.
func watched(t *testing.T, d *Dir, capacity int64) (*memcache.Cache, device.Stream) {
	memory, _ := d.Observers()
	s := stacktest.New(t, stacktest.Config{Capacity: capacity, Cache: memcache.Config{Observer: memory}})
	require.NoError(t, d.Watch(s.Cache))
	return s.Cache, s.Stream
}

// TestFilesOfSteps: a step in the set has a file of its peak, another step has none.
func TestFilesOfSteps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d, err := New(dir, Options{Steps: StepSet{{2, 2}}})
	require.NoError(t, err)
	cache, stream := watched(t, d, 64<<20)
	for n := range int64(3) {
		step := d.Step(n + 1)
		ctx := step.Begin(t.Context())
		block, err := cache.Alloc(ctx, 1<<20, stream)
		require.NoError(t, err)
		require.NoError(t, block.Free())
		step.End()
		step.Write()
	}
	require.NoError(t, d.Close())
	require.NoError(t, d.Close(), "a second call")
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	var have []string
	for _, name := range names {
		have = append(have, name.Name())
	}
	require.ElementsMatch(t, []string{"heap.pb.gz", "peak.pb.gz", "snapshot.pickle", "report.html", "recording.jsonl.gz", "trace.json", "step-2.pb.gz"}, have)
}

// TestOutOfMemory: the first request that fails for good writes the holders of memory, the next
// does not.
func TestOutOfMemory(t *testing.T) {
	dir := t.TempDir()
	d, err := New(dir, Options{})
	require.NoError(t, err)
	cache, stream := watched(t, d, 4<<20)
	_, err = cache.Alloc(t.Context(), 1<<30, stream)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	file := filepath.Join(dir, "oom", "heap.pb.gz")
	require.FileExists(t, file)
	require.NoError(t, os.Remove(file))
	_, err = cache.Alloc(t.Context(), 1<<30, stream)
	require.ErrorIs(t, err, device.ErrOutOfMemory)
	require.NoFileExists(t, file)
	require.NoError(t, d.Close())
}

// TestErrorsComeAtTheEnd: a file that can't be written while the program runs is an error of Close.
func TestErrorsComeAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	d, err := New(dir, Options{Steps: StepSet{{1, 1}}})
	require.NoError(t, err)
	watched(t, d, 64<<20)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "step-1.pb.gz"), 0o700))
	step := d.Step(1)
	step.Begin(t.Context())
	step.End()
	step.Write()
	require.ErrorContains(t, d.Close(), "step-1.pb.gz")
}

func TestBadFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := New(file, Options{})
	require.ErrorContains(t, err, "profiledir: ")
	d, err := New(t.TempDir(), Options{})
	require.NoError(t, err)
	require.ErrorIs(t, d.Watch(nil), memcache.ErrInvalid)
	require.NoError(t, d.Close())
}

// TestNilDoesNothing: a program without the folder calls the same methods.
func TestNilDoesNothing(t *testing.T) {
	var d *Dir
	memory, copies := d.Observers()
	require.Nil(t, memory)
	require.Nil(t, copies)
	require.Nil(t, d.Launching(nil, ""))
	require.Nil(t, d.Operation(t.Context(), nil, "", nil))
	require.Nil(t, d.Starting(nil, 1))
	require.NoError(t, d.Watch(nil))
	d.OnProfile(trace.StepProfile{})
	step := d.Step(1)
	ctx := context.Background()
	require.Equal(t, ctx, step.Begin(ctx))
	step.End()
	step.Write()
	require.NoError(t, d.Close())
	var l *StepLog
	l.Write(trace.StepProfile{})
	require.NoError(t, errors.Join(l.Close(), l.Close()))
}
