package ranks

import (
	"bytes"
	"cmp"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/trace"
)

// TestParallelReport: the sums of random trainings agree with their definitions.
func TestParallelReport(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		n := 1 + random.IntN(5)
		profiles, times := training(random, n, 1+random.IntN(12))
		r := read(t, profiles)
		require.Equal(t, int64(len(times)), r.Matched)
		require.Zero(t, r.Unmatched)
		waited := make([][]time.Duration, n)
		heldUp := make([]time.Duration, n)
		for i := range waited {
			waited[i] = make([]time.Duration, n)
		}
		for _, row := range times {
			sorted := slices.Clone(row)
			slices.Sort(sorted)
			last := slices.Index(row, sorted[0])
			for rank := range n {
				waited[rank][last] += row[rank] - sorted[0]
			}
			if n > 1 {
				heldUp[last] += sorted[1] - sorted[0]
			}
		}
		require.Equal(t, waited, dense(r))
		for rank, x := range r.Ranks {
			largest := slices.MaxFunc(profiles[rank], func(a, b trace.StepProfile) int { return cmp.Compare(a.AllocatedPeak, b.AllocatedPeak) })
			require.Equal(t, [2]int64{largest.AllocatedPeak, largest.Step}, [2]int64{x.AllocatedPeak, x.PeakStep})
			require.Equal(t, largest.Peak.Categories, x.Categories, "of that step")
			require.Equal(t, heldUp[rank], x.HeldUp)
			var mine, others time.Duration
			for other := range n {
				mine += waited[rank][other]
				others += waited[other][rank]
			}
			require.Equal(t, [2]time.Duration{mine, others}, [2]time.Duration{x.Waited, x.WaitedFor})
			require.Equal(t, int64(2*len(times)), x.Collectives)
			require.Equal(t, int64(11*len(times)), x.Bytes)
			steps := len(profiles[rank])
			require.Equal(t, [2]int64{int64(steps * (rank + 3)), int64(10*steps + steps*(steps-1)/2)}, [2]int64{x.Replayed, x.ReplayedBytes})
		}
		for _, wait := range r.Waits {
			require.LessOrEqual(t, wait.Waited, r.Waits[0].Waited)
		}
		files := filesOf(t, profiles)
		slices.Reverse(files)
		again, err := Read(Options{}, files...)
		require.NoError(t, err)
		require.Equal(t, r, again, "the order of the files does not count")
	}
}

// TestParallelReportOfMissingData: notes name ranks that ended early, failed, or wrote nothing,
// and their missing operations are not matched.
func TestParallelReportOfMissingData(t *testing.T) {
	profiles, times := training(rand.New(rand.NewPCG(3, 3)), 3, 10)
	profiles[1] = profiles[1][:6]
	profiles[2][3].Failed = true
	left := 0
	for _, p := range profiles[1] {
		left += len(p.Collectives) / 2
	}
	r := read(t, profiles)
	assert.Equal(t, [2]int64{int64(left), int64(len(times) - left)}, [2]int64{r.Matched, r.Unmatched})
	all := strings.Join(r.Notes, "\n")
	assert.Contains(t, all, "the profiles of rank 1 end at step 6, those of other ranks at step 10")
	assert.Contains(t, all, "rank 2 failed in 1 of 10 steps")
	r = read(t, profiles[1:])
	assert.Contains(t, strings.Join(r.Notes, "\n"), "there are no profiles of rank 0")
	assert.Equal(t, -1, r.Straggler)
	assert.Zero(t, r.Matched)

	files := filesOf(t, profiles)
	text := files[2].Reader.(*bytes.Buffer)
	text.Truncate(text.Len() - 20)
	r, err := Read(Options{}, files...)
	require.NoError(t, err, "the process was killed while it wrote")
	assert.Contains(t, r.Notes[0], "rank-2.jsonl ends in the middle of line 10")
	assert.Equal(t, int64(9), r.Ranks[2].Steps)
}

// TestParallelReportOfSeveralRuns: a resumed training has other communicators, whose numbers begin
// again.
func TestParallelReportOfSeveralRuns(t *testing.T) {
	a, first := training(rand.New(rand.NewPCG(4, 3)), 2, 9)
	b, second := training(rand.New(rand.NewPCG(5, 3)), 2, 9)
	lost := slices.IndexFunc(a[0], func(p trace.StepProfile) bool { return len(p.Collectives) > 0 })
	ops := len(a[0][lost].Collectives) / 2
	a[1] = slices.Delete(a[1], lost, lost+1)
	alone := []*Report{}
	for _, run := range [][][]trace.StepProfile{a, b} {
		alone = append(alone, read(t, run))
	}
	for r := range b {
		for i := range b[r] {
			b[r][i].Communicator = "d"
		}
		a[r] = append(a[r], b[r]...)
	}
	r := read(t, a)
	assert.Equal(t, int64(len(first)+len(second)-ops), r.Matched)
	assert.Equal(t, int64(ops), r.Unmatched)
	for i := range r.Ranks {
		assert.Equal(t, alone[0].Ranks[i].Waited+alone[1].Ranks[i].Waited, r.Ranks[i].Waited)
	}
}

// TestParallelReportBadInput: the error about an impossible profile names its file and line.
func TestParallelReportBadInput(t *testing.T) {
	good := `{"step":1,"rank":0,"world_size":2}` + "\n"
	for _, c := range []struct{ text, want string }{
		{"", "there is no profile"},
		{"\n\n", "there is no profile"},
		{good + "nonsense\n", "f, line 2"},
		{good + `{"rank":0,"world_size":2}` + "\n", "there is no step"},
		{good + `{"step":2,"rank":2,"world_size":2}` + "\n", "rank 2 of 2"},
		{good + `{"step":2,"rank":0,"world_size":3}` + "\n", "of 3 ranks, and earlier ones are of 2"},
		{`{"step":1}` + "\n", "names no rank"},
		{`{"step":1,"rank":0,"world_size":1000000000}` + "\n", "at most 4096"},
		{`{"step":1,"rank":-1,"world_size":2}` + "\n", "rank -1 of 2"},
		{`{"step":1,"world_size":2,"host_time_ns":-1}` + "\n", "a figure of -1"},
		{`{"step":1,"world_size":2,"collectives":[{"number":1,"time_ns":9223372036854775807}]}` + "\n", "a figure of 9223372036854775807"},
		{`{"step":1,"world_size":2,"replayed_collectives":[{"count":-1}]}` + "\n", "a figure of -1"},
		{`{"step":1,"world_size":2,"replayed_collectives":[{"bytes":-2}]}` + "\n", "a figure of -2"},
		{`{"step":1,"world_size":2,"trace_id":"4bf92f3577b34da6a3ce929d0e0e473"}` + "\n", `trace_id "4bf92f3577b34da6a3ce929d0e0e473": want 32 hex digits`},
		{`{"step":1,"world_size":2,"trace_id":"javascript:alert(1)0000000000000"}` + "\n", "want 32 hex digits"},
		{`{"step":` + strings.Repeat("1", 1000) + "}\n", "f, line 1"},
	} {
		_, err := Read(Options{}, File{"f", strings.NewReader(c.text)})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, c.want)
		require.Less(t, len(err.Error()), 400)
	}
	for _, template := range []string{"http://localhost/", "{trace_id}", "javascript:alert('{trace_id}')", "javascript://h/%0aalert('{trace_id}')", "ftp://h/{trace_id}", "http://{trace_id}:x", "https:///{trace_id}", "%"} {
		_, err := Read(Options{TraceURL: template}, File{"f", strings.NewReader(good)})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, template)
		require.ErrorContains(t, err, "as in http://localhost:16686/trace/{trace_id}")
	}
	_, err := ReadFiles(Options{}, filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	r, err := Read(Options{}, File{"f", strings.NewReader(good)}, File{"twice", strings.NewReader(good)})
	require.NoError(t, err)
	require.Equal(t, int64(2), r.Ranks[0].Steps)
	_, err = Read(Options{}, File{"f", brokenReader{}})
	require.ErrorContains(t, err, "broken")
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }
