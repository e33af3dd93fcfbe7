package ranks

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// training are random profiles of n ranks, and the time of each operation on each rank.
func training(random *rand.Rand, n, steps int) (profiles [][]trace.StepProfile, times [][]time.Duration) {
	profiles = make([][]trace.StepProfile, n)
	number := int64(0)
	for k := range steps {
		step := make([]trace.StepProfile, n)
		for r := range n {
			step[r] = trace.StepProfile{Step: int64(k + 1), Rank: r, WorldSize: n, Communicator: "c", HostTime: time.Duration(random.Int64N(1e9)),
				AllocatedPeak: random.Int64N(1 << 30), ReservedPeak: 1 << 31,
				ReplayedCollectives: []trace.ReplayedCollective{{Operation: "all_reduce", Count: int64(r + 1), Bytes: 10}, {Operation: "broadcast", Count: 2, Bytes: int64(k)}},
				Peak:                &trace.StepPeak{Categories: []memcache.Share{{Name: "activation", Bytes: int64(k)*100 + int64(r)}}}}
		}
		for range random.IntN(4) {
			number++
			row := make([]time.Duration, n)
			for r := range n {
				row[r] = time.Duration(random.Int64N(1e6))
				step[r].Collectives = append(step[r].Collectives, trace.StepCollective{Number: number, Operation: "all_reduce", Bytes: 10, Time: row[r]},
					trace.StepCollective{Operation: "send", Bytes: 1, Time: 7})
			}
			times = append(times, row)
		}
		for r := range n {
			profiles[r] = append(profiles[r], step[r])
		}
	}
	return profiles, times
}

// filesOf are the profiles as files, each rank's.
func filesOf(t *testing.T, profiles [][]trace.StepProfile) (files []File) {
	t.Helper()
	for r, list := range profiles {
		var text bytes.Buffer
		for _, p := range list {
			require.NoError(t, json.NewEncoder(&text).Encode(p))
		}
		files = append(files, File{fmt.Sprintf("rank-%d.jsonl", r), &text})
	}
	return files
}

// TestParallelReport: of random trainings, against sums that are written down as the words say.
func TestParallelReport(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		n := 1 + random.IntN(5)
		profiles, times := training(random, n, 1+random.IntN(12))
		r, err := Read(filesOf(t, profiles)...)
		require.NoError(t, err)
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
		require.Equal(t, waited, r.Waited)
		straggler := slices.Index(heldUp, slices.Max(heldUp))
		if heldUp[straggler] == 0 {
			straggler = -1
		}
		require.Equal(t, straggler, r.Straggler)
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
		again, err := Read(files...)
		require.NoError(t, err)
		require.Equal(t, r, again, "the order of the files does not count")
	}
}

// TestParallelReportOfWhatIsMissing: ranks that ended early, failed, or wrote nothing are told, and what they lack is not matched.
func TestParallelReportOfWhatIsMissing(t *testing.T) {
	profiles, times := training(rand.New(rand.NewPCG(3, 3)), 3, 10)
	profiles[1] = profiles[1][:6]
	profiles[2][3].Failed = true
	left := 0
	for _, p := range profiles[1] {
		left += len(p.Collectives) / 2
	}
	r, err := Read(filesOf(t, profiles)...)
	require.NoError(t, err)
	assert.Equal(t, [2]int64{int64(left), int64(len(times) - left)}, [2]int64{r.Matched, r.Unmatched})
	all := strings.Join(r.Notes, "\n")
	assert.Contains(t, all, "the profiles of rank 1 end with step 6, and others' with step 10")
	assert.Contains(t, all, "1 steps of rank 2 failed")
	r, err = Read(filesOf(t, profiles)[1:]...)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(r.Notes, "\n"), "there are no profiles of rank 0")
	assert.Equal(t, -1, r.Straggler)
	assert.Zero(t, r.Matched)

	files := filesOf(t, profiles)
	text := files[2].Reader.(*bytes.Buffer)
	text.Truncate(text.Len() - 20)
	r, err = Read(files...)
	require.NoError(t, err, "it was killed while it wrote")
	assert.Contains(t, r.Notes[0], "rank-2.jsonl ends in the middle of line 10")
	assert.Equal(t, int64(9), r.Ranks[2].Steps)
}

// TestParallelReportOfSeveralRuns: a training that went on has other communicators, whose numbers begin again.
func TestParallelReportOfSeveralRuns(t *testing.T) {
	a, first := training(rand.New(rand.NewPCG(4, 3)), 2, 9)
	b, second := training(rand.New(rand.NewPCG(5, 3)), 2, 9)
	lost := slices.IndexFunc(a[0], func(p trace.StepProfile) bool { return len(p.Collectives) > 0 })
	ops := len(a[0][lost].Collectives) / 2
	a[1] = slices.Delete(a[1], lost, lost+1)
	alone := []*Report{}
	for _, run := range [][][]trace.StepProfile{a, b} {
		r, err := Read(filesOf(t, run)...)
		require.NoError(t, err)
		alone = append(alone, r)
	}
	for r := range b {
		for i := range b[r] {
			b[r][i].Communicator = "d"
		}
		a[r] = append(a[r], b[r]...)
	}
	r, err := Read(filesOf(t, a)...)
	require.NoError(t, err)
	assert.Equal(t, int64(len(first)+len(second)-ops), r.Matched)
	assert.Equal(t, int64(ops), r.Unmatched)
	for i := range r.Ranks {
		assert.Equal(t, alone[0].Ranks[i].Waited+alone[1].Ranks[i].Waited, r.Ranks[i].Waited)
	}
}

// TestParallelReportBadInput: what nothing can have written is refused, with file and line.
func TestParallelReportBadInput(t *testing.T) {
	good := `{"step":1,"rank":0,"world_size":2}` + "\n"
	for _, c := range []struct{ text, want string }{
		{"", "there is no profile"},
		{"\n\n", "there is no profile"},
		{good + "nonsense\n", "f, line 2"},
		{good + `{"step":2,"rank":2,"world_size":2}` + "\n", "rank 2 of 2"},
		{good + `{"step":2,"rank":0,"world_size":3}` + "\n", "of 3 ranks, and those before of 2"},
		{`{"step":1}` + "\n", "says no rank"},
		{`{"step":1,"rank":0,"world_size":1000000000}` + "\n", "of 4096 at most"},
		{`{"step":1,"rank":-1,"world_size":2}` + "\n", "rank -1 of 2"},
		{`{"step":1,"world_size":2,"host_time_ns":-1}` + "\n", "a figure of -1"},
		{`{"step":1,"world_size":2,"collectives":[{"number":1,"time_ns":9223372036854775807}]}` + "\n", "a figure of 9223372036854775807"},
		{`{"step":1,"world_size":2,"replayed_collectives":[{"count":-1}]}` + "\n", "a figure of -1"},
		{`{"step":1,"world_size":2,"replayed_collectives":[{"bytes":-2}]}` + "\n", "a figure of -2"},
		{strings.Repeat("x", mostLine+1), "longer than"},
	} {
		_, err := Read(File{"f", strings.NewReader(c.text)})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, c.want)
	}
	_, err := ReadFiles(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	r, err := Read(File{"f", strings.NewReader(good)}, File{"twice", strings.NewReader(good)})
	require.NoError(t, err)
	require.Equal(t, int64(2), r.Ranks[0].Steps)
	_, err = Read(File{"f", brokenReader{}})
	require.ErrorContains(t, err, "broken")
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// TestParallelReportPages: the page and the table have what the report has, and no text of a file is markup or is fetched.
func TestParallelReportPages(t *testing.T) {
	profiles, _ := training(rand.New(rand.NewPCG(6, 6)), 3, 8)
	profiles[0][0].AllocatedPeak = most
	profiles[0][0].Peak.Categories = []memcache.Share{{Name: `<script src="http://x">`, Bytes: 1 << 20}}
	r, err := Read(filesOf(t, profiles)...)
	require.NoError(t, err)
	var page, table bytes.Buffer
	require.NoError(t, r.HTML(&page, "<b>t</b>"))
	require.NoError(t, r.Table(&table))
	assert.NotContains(t, page.String(), "<script")
	assert.NotContains(t, page.String(), "<b>t")
	assert.NotContains(t, page.String(), "ZgotmplZ", "a value that its place does not allow")
	assert.Contains(t, page.String(), "default-src 'none'")
	assert.Empty(t, regexp.MustCompile(`(src|href)=`).FindAllString(strings.ReplaceAll(page.String(), "src=&#34;", ""), -1))
	for _, text := range []string{page.String(), table.String()} {
		assert.Contains(t, text, fmt.Sprintf("the straggler is rank %d", r.Straggler))
		for _, x := range r.Ranks {
			assert.Contains(t, text, duration(x.Waited))
		}
	}
	assert.Equal(t, 1, strings.Count(page.String(), `<tr class="straggler">`))
	for i, row := range r.Waited {
		for j, d := range row {
			if i != j {
				assert.Contains(t, page.String(), ">"+duration(d))
			}
		}
	}
	for _, x := range r.Ranks {
		assert.Contains(t, page.String(), fmt.Sprintf("<td>%d<td>%d B<td>%s", x.Replayed, x.ReplayedBytes, duration(x.CollectiveTime)))
	}
	assert.Contains(t, table.String(), "96 collective operations of 324 B were in graphs that were replayed")
	r, err = Read(File{"f", strings.NewReader(`{"step":1,"world_size":1}`)})
	require.NoError(t, err)
	assert.Contains(t, r.Notes[0], "a Profiler without a Communicator has none")
}
