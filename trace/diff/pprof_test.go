package diff

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/recording"
)

var pprofRow = regexp.MustCompile(`(?m)^ *(-?\d+)B? +\S+% +\S+% +\S+ +\S+%  .*program_test\.go:(\d+)`)

// TestAgreesWithPprof: the package has the same differences of lines as -diff_base of go tool
// pprof, for the heap profiles of two runs with call stacks.
func TestAgreesWithPprof(t *testing.T) {
	p, q := runProgram(t, 20, 4), runProgram(t, 21, 5)
	dir := t.TempDir()
	var files []string
	for i, text := range [][]byte{p.files[heapFile], q.files[heapFile]} {
		files = append(files, filepath.Join(dir, strconv.Itoa(i)))
		require.NoError(t, os.WriteFile(files[i], text, 0o600))
	}
	cmd := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-top", "-lines", "-unit=B", "-nodecount=0", "-nodefraction=0", "-edgefraction=0",
		"-sample_index=peak_space", "-diff_base="+files[0], files[1])
	cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+dir)
	out, err := cmd.Output()
	require.NoError(t, err)
	flat := map[string]int64{}
	for _, f := range pprofRow.FindAllStringSubmatch(string(out), -1) {
		n, err := strconv.ParseInt(f[1], 10, 64)
		require.NoError(t, err)
		if n != 0 {
			flat[f[2]] += n
		}
	}
	got := map[string]int64{}
	for _, r := range read(t, p.files[heapFile], q.files[heapFile])[0].Dimensions[byLine].Rows {
		if r.Bytes() != 0 {
			got[strconv.FormatInt(r.Line, 10)] = r.Bytes()
		}
	}
	require.Len(t, got, 3, strings.TrimSpace(string(out)))
	require.Equal(t, got, flat)
}

// TestMemoryOfHeaps: reading a heap profile of any shape allocates no more than is charged.
func TestMemoryOfHeaps(t *testing.T) {
	const head = "\x0a\x04\x08\x01\x10\x02"
	var long []string
	for i := range 3000 {
		long = append(long, "main.f"+strconv.Itoa(i)+" x.go "+strconv.Itoa(i)+" 1 1")
	}
	for name, text := range map[string]string{
		"samples": head + strings.Repeat("\x12\x00", 200_000),
		"labels":  head + strings.Repeat("\x12\x06\x1a\x04\x08\x01\x10\x01", 50_000),
		"numbers": head + strings.Repeat("\x12\x06\x1a\x04\x08\x01\x18\x01", 50_000),
		"values":  head + strings.Repeat("\x12\x82\x01\x12\x7f"+strings.Repeat("\x01", 127)+"\x08", 10_000),
		"strings": head + strings.Repeat("\x32\x01a", 200_000),
		"text":    head + "\x32\x80\x80\x80\x02" + strings.Repeat("\x00", 4<<20),
		"real":    string(heapOf(t, nil, long...)),
	} {
		t.Run(name, func(t *testing.T) {
			b := budget.New(budget.Limits{})
			var before, after runtime.MemStats
			plain, done, err := recording.Open(strings.NewReader(text), b)
			require.NoError(t, err)
			defer done()
			runtime.ReadMemStats(&before)
			_, err = Options{}.heap(plain, "f", b)
			runtime.ReadMemStats(&after)
			require.NotErrorIs(t, err, budget.ErrExceeded)
			charged, _ := b.Spent()
			t.Logf("%d bytes allocated, %d charged: %v", after.TotalAlloc-before.TotalAlloc, charged, err)
			require.Less(t, int64(after.TotalAlloc-before.TotalAlloc), charged+1<<20)
		})
	}
}
