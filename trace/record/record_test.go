package record

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// small is a cache of a device without memory, and a stream of it.
func small(t testing.TB, config memcache.Config) (*memcache.Cache, *null.Stream) {
	dev, err := null.New(null.Config{Capacity: 1 << 30})
	require.NoError(t, err)
	cache, err := memcache.New(dev, config)
	require.NoError(t, err)
	s, err := dev.NewStreamWithID(7)
	require.NoError(t, err)
	return cache, s
}

func alloc(t testing.TB, c *memcache.Cache, bytes int64, s *null.Stream) memcache.Block {
	b, err := c.Alloc(memcache.WithModule(t.Context(), "m"), bytes, s)
	require.NoError(t, err)
	return b
}

// shorter returns the number of steps of a short test. Each rare kind of step, such as an
// EmptyCache, is one in 200, so that the programs of a test still have all of them.
func shorter(steps int) int {
	if testing.Short() {
		return steps / 4
	}
	return steps
}

// TestMarks: steps and parts of the program are at their positions between the entries.
func TestMarks(t *testing.T) {
	c, s := small(t, memcache.Config{})
	var file bytes.Buffer
	r, err := Start(&file, c, Options{Stacks: memcache.StacksAlloc})
	require.NoError(t, err)
	step := r.Step(17)
	a := alloc(t, c, 100, s)
	part := r.Begin("forward")
	b := alloc(t, c, 200, s)
	part.End()
	part.End()
	require.NoError(t, a.Free())
	step.End()
	r.Begin("never ended")
	require.NoError(t, b.Free())
	require.NoError(t, r.Close())
	r.Begin("after the end").End()

	rec := read(t, file.Bytes())
	require.False(t, rec.Unfinished)
	var names []string
	for i := range rec.Details.Marks {
		m := &rec.Details.Marks[i]
		require.GreaterOrEqual(t, m.Start, int64(0))
		m.Start, m.End = 0, 0
		names = append(names, m.Name)
	}
	require.Equal(t, []recording.Mark{
		{Name: recording.StepMark, Step: 17, From: 0, To: 6}, {Name: "forward", From: 3, To: 4}, {Name: "never ended", From: 6, To: -1},
	}, rec.Details.Marks, names)
	first := rec.Details.StackTable[rec.Details.Stacks[2]]
	functions := ""
	for _, f := range first {
		functions += rec.Details.Frames[f].Function + " "
	}
	require.Contains(t, functions, "record.TestMarks")
	require.Equal(t, "m", rec.Details.LabelTable[rec.Details.Labels[2]].Module)
	require.Equal(t, a.Serial(), rec.Details.Serials[2])

	var none *Recorder
	none.Step(1).End()
	none.Begin("x").End()
	require.NoError(t, none.Close())
}

// TestMemoryInUse: a recording that begins late begins with the memory in use.
func TestMemoryInUse(t *testing.T) {
	for _, config := range []memcache.Config{{}, {ExpandableSegments: true}} {
		c, s := small(t, config)
		other, err := c.Device().(*null.Device).NewStreamWithID(8)
		require.NoError(t, err)
		a, b, pending := alloc(t, c, 100, s), alloc(t, c, 3<<20, s), alloc(t, c, 300, s)
		release, err := other.Hold()
		require.NoError(t, err)
		require.NoError(t, pending.RecordStream(other))
		require.NoError(t, pending.Free())
		var file bytes.Buffer
		r, err := Start(&file, c, Options{})
		require.NoError(t, err)
		require.NoError(t, a.Free())
		release()
		alloc(t, c, 512, s)
		require.NoError(t, r.Close())
		require.NoError(t, b.Free())
		rec := read(t, file.Bytes())
		require.Equal(t, 6, rec.Initial)
		require.Equal(t, "it begins with memory in use", verifies(t, file.Bytes()))
	}
}

// TestCacheClosedFirst: the recording is complete, and has the memory that was in use.
func TestCacheClosedFirst(t *testing.T) {
	c, s := small(t, memcache.Config{})
	var file bytes.Buffer
	r, err := Start(&file, c, Options{})
	require.NoError(t, err)
	alloc(t, c, 100, s)
	require.Error(t, c.Close(), "a leak")
	require.NoError(t, r.Close())
	require.Empty(t, verifies(t, file.Bytes()))
	require.Equal(t, "active_allocated", read(t, file.Bytes()).Segments[0].Blocks[0].State)
	_, err = Start(&file, c, Options{})
	require.ErrorIs(t, err, memcache.ErrClosed)
}

func TestStartMistakes(t *testing.T) {
	c, _ := small(t, memcache.Config{})
	_, err := Start(nil, c, Options{})
	require.ErrorIs(t, err, memcache.ErrInvalid)
	_, err = Start(io.Discard, nil, Options{})
	require.ErrorIs(t, err, memcache.ErrInvalid)
	_, err = Start(io.Discard, c, Options{Stacks: 9})
	require.ErrorIs(t, err, memcache.ErrInvalid)
	_, err = Start(&limited{left: 10}, c, Options{})
	require.ErrorIs(t, err, errFull)
	r, err := Start(io.Discard, c, Options{})
	require.NoError(t, err, "the failed one has ended")
	_, err = Start(io.Discard, c, Options{})
	require.ErrorContains(t, err, "close that first")
	require.NoError(t, r.Close())
}

var errFull = errors.New("no space left on device")

// limited is a disk that is full after a number of bytes.
type limited struct {
	mu   sync.Mutex
	left int
	bytes.Buffer
}

func (l *limited) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := min(len(p), l.left); n < len(p) {
		l.left = 0
		l.Buffer.Write(p[:n])
		return n, errFull
	}
	l.left -= len(p)
	return l.Buffer.Write(p)
}

// TestFullDisk: the program continues, the recording ends, and Close returns the error; the bytes
// written before can be read.
func TestFullDisk(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		c, s := small(t, memcache.Config{})
		disk := &limited{left: 5000}
		r, err := Start(disk, c, Options{Gzip: compressed})
		require.NoError(t, err)
		calls := 100_000
		if testing.Short() {
			calls = 20_000
		}
		for range calls {
			require.NoError(t, alloc(t, c, 100, s).Free())
		}
		require.Eventually(t, func() bool {
			other, err := Start(io.Discard, c, Options{})
			return err == nil && other.Close() == nil
		}, time.Minute, time.Millisecond, "it has ended by itself")
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { require.ErrorIs(t, r.Close(), errFull) })
		}
		all.Wait()
		require.ErrorContains(t, r.Close(), "record: writing failed, and the recording ends there")
		rec := read(t, disk.Bytes())
		require.True(t, rec.Unfinished)
		require.Greater(t, len(rec.Entries), 100)
		require.Empty(t, verifies(t, disk.Bytes()))
		r, err = Start(io.Discard, c, Options{})
		require.NoError(t, err)
		require.NoError(t, r.Close())
	}
}

// TestFileIsReadableMeanwhile: events are in the file soon, without Close, as if the program was
// killed.
func TestFileIsReadableMeanwhile(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "run")
		f, err := os.Create(path)
		require.NoError(t, err)
		c, s := small(t, memcache.Config{})
		r, err := Start(f, c, Options{Gzip: compressed})
		require.NoError(t, err)
		require.NoError(t, alloc(t, c, 100, s).Free())
		require.Eventually(t, func() bool {
			file, err := os.ReadFile(path)
			require.NoError(t, err)
			return len(read(t, file).Entries) == 5
		}, time.Minute, 10*time.Millisecond)
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, read(t, file).Unfinished)
		require.Empty(t, verifies(t, file))
		require.NoError(t, r.Close())
		require.NoError(t, f.Close())
	}
}

// TestCompressedRecordingsAreWholeFiles: a program that decompresses a recording finds the end of
// the compressed data.
func TestCompressedRecordingsAreWholeFiles(t *testing.T) {
	c, s := small(t, memcache.Config{})
	var file bytes.Buffer
	r, err := Start(&file, c, Options{Gzip: true})
	require.NoError(t, err)
	require.NoError(t, alloc(t, c, 100, s).Free())
	require.NoError(t, r.Close())
	text, err := gzip.NewReader(&file)
	require.NoError(t, err)
	lines, err := io.ReadAll(text)
	require.NoError(t, err)
	require.Empty(t, verifies(t, lines))
}

// TestCutAnywhere: a recording that is cut after any byte can be read, and its entries verify.
func TestCutAnywhere(t *testing.T) {
	r := newRig(t, program{null: true, config: memcache.Config{MemoryLimit: 60 << 20}, capacity: 1 << 36, streams: 2, goroutines: 1, steps: 60, largest: 25})
	var file bytes.Buffer
	rec, err := Start(&file, r.cache, Options{Stacks: memcache.StacksAll})
	require.NoError(t, err)
	r.run(3)
	require.NoError(t, rec.Close())
	text := file.String()
	header := strings.IndexByte(text, '\n') + 1
	whole := read(t, file.Bytes())
	every := 1
	switch {
	case testing.Short():
		every = 23
	case race.Enabled:
		every = 11
	}
	for n := header; n < len(text); n += every {
		got := read(t, []byte(text[:n]))
		require.True(t, got.Unfinished)
		require.Equal(t, append([]recording.Entry(nil), whole.Entries[:len(got.Entries)]...), got.Entries)
		if n%50 < every && len(got.Entries) > 2 {
			require.Empty(t, verifies(t, []byte(text[:n])))
		}
	}
}

// TestLabelsHaveNoSteps: the table of a long run is as short as its model's.
func TestLabelsHaveNoSteps(t *testing.T) {
	c, s := small(t, memcache.Config{})
	var file bytes.Buffer
	r, err := Start(&file, c, Options{})
	require.NoError(t, err)
	for n := range int64(100) {
		b, err := c.Alloc(memcache.WithStep(memcache.WithModule(t.Context(), "m"), n), 100, s)
		require.NoError(t, err)
		require.NoError(t, b.Free())
	}
	require.NoError(t, r.Close())
	d := read(t, file.Bytes()).Details
	require.Len(t, d.LabelTable, 1)
	require.EqualValues(t, 99, d.Steps[len(d.Steps)-3])
}

// TestBlocksInUseAtTheEnd: the last line has the labels and steps of the blocks that are in use.
func TestBlocksInUseAtTheEnd(t *testing.T) {
	c, s := small(t, memcache.Config{})
	before, err := c.Alloc(memcache.WithStep(memcache.WithModule(t.Context(), "m"), 7), 100, s)
	require.NoError(t, err)
	var file bytes.Buffer
	r, err := Start(&file, c, Options{})
	require.NoError(t, err)
	during, err := c.Alloc(memcache.WithStep(memcache.WithModule(t.Context(), "n"), 8), 100, s)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	d := read(t, file.Bytes()).Details
	var found []string
	for _, b := range d.Final {
		if b.Label >= 0 {
			found = append(found, fmt.Sprint(d.LabelTable[b.Label].Module, b.Step))
		}
	}
	require.Equal(t, []string{"m7", "n8"}, found)
	require.NoError(t, errors.Join(before.Free(), during.Free()))
}
