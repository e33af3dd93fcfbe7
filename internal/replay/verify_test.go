package replay

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/internal/recording"
)

// readings caches the recordings that were read, by path, because two tests need all of them.
var readings sync.Map

func readFile(path string) ([]*recording.Recording, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return recording.Read(f, filepath.Base(path), recording.Options{})
}

func program(t testing.TB, path string) *recording.Program {
	read, _ := readings.LoadOrStore(path, sync.OnceValues(func() ([]*recording.Recording, error) {
		return readFile(path)
	}))
	list, err := read.(func() ([]*recording.Recording, error))()
	require.NoError(t, err)
	require.Len(t, list, 1)
	rec := *list[0] // a test may change its fields, and NewProgram the entries
	rec.Entries, rec.Budget = slices.Clone(rec.Entries), rec.Budget.Part(1)
	p, err := recording.NewProgram(&rec)
	require.NoError(t, err)
	return p
}

// recordings returns all recordings, or the short ones with -short and with the race detector,
// because a replay has only one goroutine.
func recordings(t testing.TB) (files []string) {
	all, err := filepath.Glob("../../memcache/testdata/recordings/*.jsonl.gz")
	require.NoError(t, err)
	pools, err := filepath.Glob("../../memcache/testdata/recordings/pools/*.jsonl.gz")
	require.NoError(t, err)
	all = append(all, pools...)
	for _, file := range all {
		info, err := os.Stat(file)
		require.NoError(t, err)
		if !race.Enabled && !testing.Short() || info.Size() < 32<<10 {
			files = append(files, file)
		}
	}
	require.NotEmpty(t, files)
	return files
}

// TestVerify replays all recordings of PyTorch, also without the data that a snapshot lacks.
func TestVerify(t *testing.T) {
	t.Parallel()
	for _, file := range recordings(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			p := program(t, file)
			require.Len(t, p.Stats, 122)
			require.NotNil(t, p.Segments)
			v, err := Verify(p)
			require.NoError(t, err)
			require.Zero(t, v.Mismatches(), "%+v", v)
			require.Empty(t, v.Notes)

			p.LimitKnown, p.Limit, p.Stats, p.TotalMemory = false, 0, nil, 0
			v, err = Verify(p)
			require.NoError(t, err)
			require.Zero(t, v.Mismatches(), "%+v", v)
		})
	}
}
