package diff

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/budget"
)

// rowsOf returns the rows of a dimension in words: name, line and bytes.
func rowsOf(d *Diff, by dimension) (list []string) {
	for _, r := range d.Dimensions[by].Rows {
		text := fmt.Sprintf("%s %d %d", r.Name, r.Before.Bytes, r.After.Bytes)
		if r.File != "" {
			text = fmt.Sprintf("%s:%d was %d: %d %d", r.File, r.Line, r.Was, r.Before.Bytes, r.After.Bytes)
		}
		list = append(list, text)
	}
	return list
}

// stepLine is the profile of a step.
func stepLine(step int64, rank int, peak int64, rest string) string {
	return fmt.Sprintf(`{"step":%d,"rank":%d,"world_size":4,"allocated_peak":%d,"reserved_peak":%[3]d%s}`+"\n", step, rank, peak, rest)
}

// TestNoDifference: a file and itself, of each kind, and a file without entries.
func TestNoDifference(t *testing.T) {
	p := runProgram(t, 7, 3)
	empty := []byte(`{"conf":""}`)
	for _, file := range append(p.files[:], empty, heapOf(t, nil)) {
		d := read(t, file, file)[0]
		require.True(t, d.Equal())
		require.Equal(t, d.Peaks[0].Before, d.Peaks[0].After)
		for _, x := range d.Dimensions {
			require.Empty(t, x.Rows)
			require.Equal(t, x.Missing == "" && d.Peaks[0].After.Bytes > 0, x.Equal > 0, x.Name)
		}
	}
	for _, nothing := range [][]byte{empty, heapOf(t, nil)} {
		d := read(t, nothing, p.files[recordingFile])[0]
		require.Equal(t, p.bytes, d.Peaks[0].Bytes())
		require.False(t, d.Equal())
		for by := range byStep {
			require.Len(t, d.Dimensions[by].Rows, len(p.sums(by)), "all of it is new")
		}
	}
	unlabelled := heapOf(t, nil, "f x.go 1 100 0")
	require.Equal(t, "before has no labels", read(t, unlabelled, p.files[recordingFile])[0].Dimensions[byCategory].Missing)
}

// TestOrder: growth comes first, then shrinkage, each by size, and then differences of blocks.
func TestOrder(t *testing.T) {
	peak := func(list string) []byte {
		return []byte(stepLine(1, 0, 100, `,"peak":{"categories":[],"modules":[`+list+`]}`))
	}
	d := read(t, peak(`{"name":"a","bytes":5},{"name":"b","bytes":9},{"name":"c","bytes":9},{"name":"d","bytes":1,"blocks":1},{"name":"e","bytes":3}`),
		peak(`{"name":"a","bytes":8},{"name":"b","bytes":7},{"name":"c","bytes":2},{"name":"d","bytes":1,"blocks":2},{"name":"e","bytes":3},{"name":"f","bytes":4}`))[0]
	require.Equal(t, []string{"f 0 4", "a 5 8", "c 9 2", "b 9 7", "d 1 1"}, rowsOf(d, byModule))
	require.Equal(t, 1, d.Dimensions[byModule].Equal)
	require.EqualValues(t, 3, d.Dimensions[byModule].EqualBytes)
}

// TestSteps: the highest profile of a step counts, and steps of one file alone are counted.
func TestSteps(t *testing.T) {
	d := read(t, []byte(stepLine(1, 0, 10, "")+stepLine(2, 0, 30, "")+stepLine(2, 0, 20, "")+stepLine(11, 0, 5, "")),
		[]byte(stepLine(2, 0, 35, "")+stepLine(11, 0, 5, "")+stepLine(12, 0, 90, "")+stepLine(13, 0, 1, "")+`{"step":14,"allo`))[0]
	require.Equal(t, []string{"2 30 35"}, rowsOf(d, byStep))
	require.Equal(t, 1, d.Dimensions[byStep].Equal)
	require.Zero(t, d.Dimensions[byStep].EqualBytes)
	require.Equal(t, []string{"after ends in the middle of line 5", "1 of 3 steps of before are not in after", "2 of 4 steps of after are not in before"}, d.Notes)
	require.Equal(t, [2]int64{30, 90}, [2]int64{d.Peaks[0].Before.Bytes, d.Peaks[0].After.Bytes})
	require.Contains(t, d.Dimensions[byModule].Missing, "trace.ProfilerConfig.Holders")
}

// TestRanksAndDevices: each is compared with its counterpart, and one without a counterpart is in a
// note.
func TestRanksAndDevices(t *testing.T) {
	list := read(t, []byte(stepLine(1, 3, 10, "")+stepLine(1, 0, 20, "")), []byte(stepLine(1, 0, 21, "")+stepLine(1, 2, 7, "")+stepLine(1, 3, 11, "")))
	require.Len(t, list, 2)
	require.Equal(t, []string{"1 20 21"}, rowsOf(list[0], byStep))
	require.Equal(t, []string{"1 10 11"}, rowsOf(list[1], byStep))
	require.Equal(t, "before, rank 3", list[1].Before)
	require.Equal(t, []string{"after, rank 2 is not compared: the other file has no counterpart"}, list[0].Notes)

	_, err := Read(Options{}, File{"A", strings.NewReader(stepLine(1, 3, 10, ""))}, File{"B", strings.NewReader(stepLine(1, 0, 1, "") + stepLine(1, 1, 1, ""))})
	require.ErrorContains(t, err, "no device or rank in common: A is not compared")
	device := `[{"action":"segment_alloc","addr":4194304,"size":2097152,"stream":0},{"action":"alloc","addr":4194304,"size":%d,"stream":0}]`
	two := fmt.Sprintf(`{"device_traces":[`+device+`,[],`+device+`],"segments":[]}`, 1024, 4096)
	one := fmt.Sprintf(`{"device_traces":[`+device+`],"segments":[]}`, 2048)
	list = read(t, []byte(two), []byte(one))
	require.Len(t, list, 1)
	require.Equal(t, "before[0]", list[0].Before)
	require.EqualValues(t, 1024, list[0].Peaks[0].Bytes())
	require.Contains(t, list[0].Notes[len(list[0].Notes)-1], "before[1] is not compared")
	require.Len(t, read(t, []byte(two), []byte(two)), 2)
}

// heapOf returns a heap profile with a sample of each line: function, file, line and the values of
// the peak and in use.
func heapOf(t *testing.T, change func(p *profile.Profile), lines ...string) []byte {
	p := &profile.Profile{}
	for _, name := range []string{"alloc", "inuse", "peak"} {
		p.SampleType = append(p.SampleType, &profile.ValueType{Type: name + "_objects", Unit: "count"}, &profile.ValueType{Type: name + "_space", Unit: "bytes"})
	}
	for i, text := range lines {
		var function, file string
		var line, peak, use int64
		_, err := fmt.Sscan(text, &function, &file, &line, &peak, &use)
		require.NoError(t, err)
		f := &profile.Function{ID: uint64(i + 1), Name: function, Filename: file}
		l := &profile.Location{ID: uint64(i + 1), Line: []profile.Line{{Function: f, Line: line}}}
		p.Function, p.Location = append(p.Function, f), append(p.Location, l)
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{l}, Value: []int64{0, 0, 1, use, 1, peak}})
	}
	if change != nil {
		change(p)
	}
	var out bytes.Buffer
	require.NoError(t, p.Write(&out))
	return out.Bytes()
}

// TestMovedLines: a line whose number has changed is matched if the match is unique.
func TestMovedLines(t *testing.T) {
	before := heapOf(t, nil, "f x.go 10 100 0", "g x.go 20 200 0", "g x.go 21 300 0", "h x.go 30 50 0", "k x.go 5 70 0", "k x.go 6 8 0")
	after := heapOf(t, nil, "f x.go 12 150 0", "g x.go 23 210 0", "g x.go 24 310 0", "h y.go 30 50 0", "k x.go 6 9 0", "k x.go 9 70 0")
	d := read(t, before, after)[0]
	require.Equal(t, []string{"x.go:24 was 0: 0 310", "x.go:23 was 0: 0 210", "x.go:12 was 10: 100 150", "y.go:30 was 0: 0 50", "x.go:6 was 0: 8 9",
		"x.go:21 was 0: 300 0", "x.go:20 was 0: 200 0", "x.go:30 was 0: 50 0"}, rowsOf(d, byLine))
	require.Equal(t, 1, d.Dimensions[byLine].Equal, "the line of k that moved from 5 to 9")
}

// TestMomentsOfHeaps: without a peak the memory in use counts, without that of graphs, and a
// profile that is not a heap is an error.
func TestMomentsOfHeaps(t *testing.T) {
	peak, use := heapOf(t, nil, "f x.go 1 100 60"), heapOf(t, func(p *profile.Profile) {
		p.Sample[1].Label = map[string][]string{"state": {"graph"}}
	}, "f x.go 1 0 70", "f x.go 1 0 5000")
	d := read(t, peak, use)[0]
	require.Equal(t, []string{"x.go:1 was 0: 100 70"}, rowsOf(d, byLine))
	require.Equal(t, []string{"after has no peak: the memory in use is compared"}, d.Notes)
	alloc := heapOf(t, func(p *profile.Profile) { p.Sample[0].Value = []int64{3, 900, 0, 0, 0, 0} }, "f x.go 1 0 0")
	d = read(t, peak, alloc)[0]
	require.Equal(t, []string{"x.go:1 was 0: 100 900"}, rowsOf(d, byLine))
	require.Equal(t, []string{"after has no peak: the total of all allocations is compared"}, d.Notes)
}

// TestLinesOfHeaps: the innermost call of the program's own code counts.
func TestLinesOfHeaps(t *testing.T) {
	file := heapOf(t, func(p *profile.Profile) {
		p.Sample[0].Location = []*profile.Location{p.Location[1], p.Location[2], p.Location[0]}
		p.Sample = p.Sample[:1]
	}, "main.main main.go 1 100 0", "github.com/cistern-ml/cistern/memcache.(*Cache).Alloc cache.go 2 1 0", "main.f main.go 3 1 0")
	d := read(t, heapOf(t, nil, "main.f main.go 3 90 0"), file)[0]
	require.Equal(t, []string{"main.go:3 was 0: 90 100"}, rowsOf(d, byLine))
}

// TestBadFiles: the error has the file's name and the expected kinds.
func TestBadFiles(t *testing.T) {
	good := stepLine(1, 0, 10, "")
	cpu := heapOf(t, func(p *profile.Profile) {
		for _, s := range p.SampleType {
			s.Type = "cpu"
		}
	}, "f x.go 1 1 1")
	negative := heapOf(t, nil, "f x.go 1 -5 1")
	var stepsGz bytes.Buffer
	z := gzip.NewWriter(&stepsGz)
	_, _ = z.Write([]byte(good))
	require.NoError(t, z.Close())
	require.Len(t, read(t, stepsGz.Bytes(), []byte(good)), 1)
	for text, want := range map[string]string{
		"":                     "the file is empty; want a recording",
		"hello":                `begins with "hello"; want a recording, a snapshot of PyTorch, profiles of steps as JSON lines, or a heap profile of pprof`,
		"\x1f\x8b\x08":         "want a recording",
		good + "no\n":          "line 2: ",
		stepLine(1, 0, -1, ""): "negative or above 2^53",
		stepLine(1, 0, 1, `,"peak":{"categories":[{"name":"a","bytes":9007199254740992},{"name":"a","bytes":1}],"modules":[]}`): "negative or above 2^53",
		stepLine(1, 0, 1, `,"peak":{"modules":[{"name":"a","bytes":-1}]}`):                                                      "negative or above 2^53",
		stepLine(1, 4096, 1, ""):             "the rank is 4096; want 0 to 4095",
		stepLine(1, -1, 1, ""):               "the rank is -1",
		`{"conf":""}` + "\n[]\n":             "line 2",
		"\x0a\x04\x08\x01":                   "want a profile of pprof",
		"\x0a\x00\x88\x80\x80\x80\x40\x01":   "want a profile of pprof", // a field of 32 bits
		string(cpu):                          `the sample types "cpu, cpu, cpu, cpu, cpu, cpu"; want peak_space`,
		string(negative):                     "negative or above 2^53",
		stepsGz.String()[:stepsGz.Len()-9]:   "the file is truncated",
		string(cpu[:len(cpu)-1]):             "the file is truncated",
		`{"device_traces":[],"segments":[]}`: "the snapshot has no history",
	} {
		for _, files := range [][2]string{{text, good}, {good, text}} {
			_, err := Read(Options{}, File{"A", strings.NewReader(files[0])}, File{"B", strings.NewReader(files[1])})
			require.ErrorContains(t, err, want, "%.40q", text)
			require.ErrorContains(t, err, map[bool]string{true: "A: ", false: "B: "}[files[0] == text])
			require.Less(t, len(err.Error()), 500)
		}
	}
	_, err := Read(Options{MaxWork: -1}, File{"A", strings.NewReader(good)}, File{"B", strings.NewReader(good)})
	require.ErrorIs(t, err, ErrInvalid)
}

// TestLimits: files of each kind that cost more than the limits are refused.
func TestLimits(t *testing.T) {
	p := runProgram(t, 3, 4)
	for _, file := range p.files {
		for _, o := range []Options{{MaxMemory: 10_000}, {MaxWork: 500}} {
			_, err := Read(o, File{"A", bytes.NewReader(file)}, File{"B", bytes.NewReader(file)})
			require.ErrorIs(t, err, budget.ErrExceeded)
			require.ErrorContains(t, err, "A: ")
		}
	}
}

// TestJSON: the JSON of a result can be read, and lists are never null.
func TestJSON(t *testing.T) {
	d := read(t, []byte(stepLine(1, 0, 10, "")), []byte(stepLine(1, 0, 11, "")))[0]
	text, err := json.Marshal(d)
	require.NoError(t, err)
	require.NotContains(t, string(text), "null")
	var back Diff
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, *d, back)
}

// TestMemoryOfSteps: the memory kept for profiles of steps is charged.
func TestMemoryOfSteps(t *testing.T) {
	holders := make([]string, 3000)
	for i := range holders {
		holders[i] = fmt.Sprintf(`{"name":"module.%d","bytes":%d}`, i, i)
	}
	var steps strings.Builder
	for i := range 10_000 {
		steps.WriteString(stepLine(int64(i), 0, 10, ""))
	}
	for name, text := range map[string]string{
		"steps":   steps.String(),
		"holders": stepLine(1, 0, 10, `,"peak":{"modules":[`+strings.Join(holders, ",")+"]}"),
	} {
		b := budget.New(budget.Limits{})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		list, err := Options{}.steps(strings.NewReader(text), "f", b)
		require.NoError(t, err)
		runtime.GC()
		runtime.ReadMemStats(&after)
		charged, _ := b.Spent()
		held := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("%s: %d bytes are held, %d are charged", name, held, charged)
		require.Less(t, held, charged)
		runtime.KeepAlive(list)
	}
}
