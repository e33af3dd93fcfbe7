package heap

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache"
)

// open makes a cache on a device without memory.
func open(t testing.TB, config memcache.Config) (*memcache.Cache, device.Stream) {
	t.Helper()
	dev, err := null.New(null.Config{Capacity: 1 << 40})
	require.NoError(t, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	c, err := memcache.New(dev, config)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = c.Close() // of blocks that are left
		require.NoError(t, s.Close())
		require.NoError(t, dev.Close())
	})
	return c, s
}

func alloc(t testing.TB, ctx context.Context, c *memcache.Cache, s device.Stream, bytes int64) memcache.Block {
	t.Helper()
	b, err := c.Alloc(ctx, bytes, s)
	require.NoError(t, err)
	return b
}

func write(t testing.TB, h Heap) (file string) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, h.Write(&b))
	file = filepath.Join(t.TempDir(), "heap.pb.gz")
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	return file
}

// viewer returns the path of go tool pprof. The go command is called once, because it checks each
// time that the whole build of the tool is up to date.
var viewer = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "tool", "-n", "pprof").Output()
	return strings.TrimSpace(string(out)), err
})

// pprof runs Go's own viewer.
func pprof(t testing.TB, args ...string) string {
	t.Helper()
	path, err := viewer()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s", errs.String())
	return string(out)
}

var row = regexp.MustCompile(`^ *(-?\d+)B? +-?[\d.]+% +-?[\d.]+% +(-?\d+)B? +-?[\d.]+%  (.*)$`)

// top returns the figures of -top for each frame: its own bytes or blocks, and those with the
// frames below it.
func top(t testing.TB, args ...string) map[string][2]int64 {
	t.Helper()
	out := pprof(t, append([]string{"-top", "-unit=B", "-nodecount=0", "-nodefraction=0", "-edgefraction=0"}, args...)...)
	m := map[string][2]int64{}
	_, rows, ok := strings.Cut(out, "cum%\n")
	require.True(t, ok, out)
	for _, line := range strings.Split(strings.TrimRight(rows, "\n"), "\n") {
		if line == "" {
			continue
		}
		f := row.FindStringSubmatch(line)
		require.NotNil(t, f, "%q", line)
		flat, err := strconv.ParseInt(f[1], 10, 64)
		require.NoError(t, err)
		cum, err := strconv.ParseInt(f[2], 10, 64)
		require.NoError(t, err)
		m[f[3]] = [2]int64{flat, cum}
	}
	return m
}

// account is the test's own count for a frame.
type account map[string][2]int64

// add charges a block to the frames of its label.
func (a account) add(l memcache.Label, n int64) {
	frames := []string{"(" + l.Category.String() + ")"}
	if l.Module != "" {
		parts := strings.Split(l.Module, ".")
		for i := range parts {
			frames = append(frames, strings.Join(parts[:i+1], "."))
		}
	}
	for i, name := range frames {
		v := a[name]
		if v[1] += n; i == len(frames)-1 {
			v[0] += n
		}
		a[name] = v
	}
}

func (a account) clean() map[string][2]int64 {
	m := map[string][2]int64{}
	for k, v := range a {
		if v != [2]int64{} {
			m[k] = v
		}
	}
	return m
}

// TestFiguresOfTheViewer: for a random program, every figure of go tool pprof, for each layer and
// category, is the test's own count: in use, at the peak, and in total.
func TestFiguresOfTheViewer(t *testing.T) {
	var counter Counter
	c, s := open(t, memcache.Config{Observer: &counter})
	r := rand.New(rand.NewPCG(1, 2))
	modules := []string{"", "embed", "encoder.0.attention", "encoder.0.mlp.up", "encoder.1.attention", "encoder.1", "input", "a::b<int>(c)"}
	kinds := map[string]account{"inuse_space": {}, "inuse_objects": {}, "alloc_space": {}, "alloc_objects": {}, "peak_space": {}, "peak_objects": {}}
	type held struct {
		memcache.Block
		label memcache.Label
	}
	var live []held
	var now, most int64
	for range 2000 {
		if len(live) > 0 && r.IntN(5) < 2 {
			i := r.IntN(len(live))
			require.NoError(t, live[i].Free())
			kinds["inuse_space"].add(live[i].label, -live[i].Size())
			kinds["inuse_objects"].add(live[i].label, -1)
			now -= live[i].Size()
			live = append(live[:i], live[i+1:]...)
			continue
		}
		ctx := memcache.WithStep(memcache.WithModule(t.Context(), modules[r.IntN(len(modules))]), int64(r.IntN(3)))
		ctx = memcache.WithCategory(ctx, memcache.Category(r.IntN(7)))
		b := held{alloc(t, ctx, c, s, 1+r.Int64N(1<<uint(10+r.IntN(15)))), memcache.LabelOf(ctx)}
		for kind, n := range map[string]int64{"_space": b.Size(), "_objects": 1} {
			kinds["inuse"+kind].add(b.label, n)
			kinds["alloc"+kind].add(b.label, n)
		}
		live = append(live, b)
		if now += b.Size(); now > most {
			most = now
			for _, kind := range []string{"_space", "_objects"} {
				kinds["peak"+kind] = account{}
				for k, v := range kinds["inuse"+kind] {
					kinds["peak"+kind][k] = v
				}
			}
		}
	}
	require.Equal(t, most, c.MaxMemoryAllocated())
	h := Of(c)
	h.Allocated = counter.Holdings()
	file := write(t, h)
	for kind, want := range kinds {
		require.Equal(t, want.clean(), top(t, "-sample_index="+kind, file), kind)
	}
	require.Equal(t, kinds["inuse_space"].clean(), top(t, file), "what is in use is shown first")

	comments := pprof(t, "-comments", file)
	st := c.Stats()
	require.Contains(t, comments, fmt.Sprintf("in use: %d bytes allocated, %d active, %d reserved; 0 of them held by graphs, %d free", st.AllocatedBytes.All.Current,
		st.ActiveBytes.All.Current, st.ReservedBytes.All.Current, st.ReservedBytes.All.Current-st.ActiveBytes.All.Current))
	require.Contains(t, comments, fmt.Sprintf("at the peak: %d bytes allocated", most))
	peek := pprof(t, "-peek", "^encoder.1$", "-unit=B", file)
	require.Contains(t, peek, fmt.Sprintf("%dB", kinds["inuse_space"]["encoder.1.attention"][1]))
}

// TestTags: labels select samples, and are above frames.
func TestTags(t *testing.T) {
	c, s := open(t, memcache.Config{})
	ctx := memcache.WithStep(memcache.WithModule(t.Context(), "layer"), 17)
	alloc(t, memcache.WithCategory(ctx, memcache.CategoryGradient), c, s, 1024)
	ctx = memcache.WithTag(memcache.WithTag(memcache.WithStep(ctx, 117), "tenant", "a=b"), "step", "warm-up")
	alloc(t, memcache.WithCategory(ctx, memcache.CategoryOptimizerState), c, s, 512)
	alloc(t, t.Context(), c, s, 2<<20)
	file := write(t, Of(c))
	for focus, want := range map[string]map[string][2]int64{
		"category=gradient":     {"layer": {1024, 1024}, "(gradient)": {0, 1024}},
		"step=17":               {"layer": {1024, 1024}, "(gradient)": {0, 1024}},
		"step=17:117":           {"layer": {1536, 1536}, "(gradient)": {0, 1024}, "(optimizer state)": {0, 512}},
		"module=^layer$":        {"layer": {1536, 1536}, "(gradient)": {0, 1024}, "(optimizer state)": {0, 512}},
		"tenant=a=b":            {"layer": {512, 512}, "(optimizer state)": {0, 512}},
		"tag.step=warm-up":      {"layer": {512, 512}, "(optimizer state)": {0, 512}},
		"bytes=1kb:4mb":         {"layer": {1024, 1024}, "(gradient)": {0, 1024}, "(other)": {2 << 20, 2 << 20}},
		"device=" + "null":      top(t, file),
		"category=^other$":      {"(other)": {2 << 20, 2 << 20}},
		"category=^parameter$":  {},
		"category=^optimizer s": {"layer": {512, 512}, "(optimizer state)": {0, 512}},
	} {
		require.Equal(t, want, top(t, "-tagfocus="+focus, file), focus)
	}
	require.Equal(t, [2]int64{0, 1024}, top(t, "-tagroot=category", file)["gradient"])
}

// TestCallStacks: blocks with a stack are shown by line, without the cache's own frames, in use and in total alike.
func TestCallStacks(t *testing.T) {
	counter := Counter{Stacks: true}
	c, s := open(t, memcache.Config{Observer: &counter})
	require.NoError(t, c.RecordHistory(memcache.HistoryOptions{Entries: 1, Stacks: memcache.StacksState}))
	for range 3 {
		weights(t, c, s)
	}
	require.NoError(t, c.RecordHistory(memcache.HistoryOptions{}))
	b := alloc(t, memcache.WithModule(t.Context(), "head"), c, s, 4096)
	h := Of(c)
	h.Allocated = counter.Holdings()
	require.NoError(t, b.Free())
	file := write(t, h)
	const here = "github.com/cistern-ml/cistern/trace/heap."
	inUse := top(t, file)
	require.Equal(t, [2]int64{3 * 1024, 3 * 1024}, inUse[here+"weights"])
	require.Equal(t, [2]int64{0, 3 * 1024}, inUse[here+"TestCallStacks"])
	require.Equal(t, [2]int64{4096, 4096}, inUse["head"])
	for name := range inUse {
		require.NotContains(t, name, "cistern/memcache")
	}
	total := top(t, "-sample_index=alloc_space", file)
	require.Equal(t, [2]int64{3 * 1024, 3 * 1024}, total[here+"weights"])
	require.Equal(t, [2]int64{0, 3*1024 + 4096}, total[here+"TestCallStacks"])
	require.Regexp(t, `1024B.*heap_test\.go:\d+`, strings.ReplaceAll(pprof(t, "-top", "-lines", "-unit=B", file), "3072B", "1024B"))
}

func weights(t testing.TB, c *memcache.Cache, s device.Stream) {
	_, err := c.Alloc(t.Context(), 1000, s)
	require.NoError(t, err)
}

// TestTwoStepsCompared: the growth of a step over another is shown by layer, although all of its
// blocks have another step.
func TestTwoStepsCompared(t *testing.T) {
	c, s := open(t, memcache.Config{})
	parameters := memcache.WithCategory(memcache.WithModule(t.Context(), "head"), memcache.CategoryParameter)
	alloc(t, parameters, c, s, 1<<20)
	var files []string
	for step := int64(17); step <= 18; step++ {
		ctx, scope := c.Scope(memcache.WithStep(t.Context(), step), "step")
		ctx = memcache.WithCategory(ctx, memcache.CategoryActivation)
		blocks := []memcache.Block{
			alloc(t, memcache.WithModule(ctx, "encoder.0"), c, s, 64<<10),
			alloc(t, memcache.WithModule(ctx, "encoder.1 (Linear)"), c, s, (step-16)*128<<10),
			alloc(t, memcache.WithModule(ctx, "encoder (Sequential)"), c, s, 512),
		}
		peak := scope.PeakProfile()
		scope.End()
		files = append(files, write(t, Heap{Peak: &peak}))
		for _, b := range blocks {
			require.NoError(t, b.Free())
		}
	}
	require.Equal(t, map[string][2]int64{"encoder.1 (Linear)": {128 << 10, 128 << 10}, "encoder (Sequential)": {0, 128 << 10}, "(activation)": {0, 128 << 10}},
		nonZero(top(t, "-diff_base="+files[0], files[1])))
	require.Equal(t, int64(-192<<10-512), top(t, "-diff_base="+files[0], "-tagfocus=step=17", files[1])["encoder (Sequential)"][1], "a focus on a step leaves one side")
}

// TestAnyTwoFilesCompared: go tool pprof subtracts files of different kinds, in each pair of values.
func TestAnyTwoFilesCompared(t *testing.T) {
	holdings := func(module string, blocks int) []memcache.Holding {
		return []memcache.Holding{{Label: memcache.Label{Module: module}, Size: 512, Blocks: blocks, Bytes: int64(blocks) * 512}}
	}
	known := map[string]Heap{
		"alloc": {Allocated: holdings("a", 5)},
		"inuse": {InUse: &memcache.Profile{Holdings: holdings("a", 3)}},
		"peak":  {Peak: &memcache.Profile{Holdings: holdings("a", 2)}},
		"all": {Allocated: holdings("b", 9), InUse: &memcache.Profile{Holdings: holdings("b", 7)},
			Peak: &memcache.Profile{Holdings: holdings("b", 8)}},
	}
	blocks := map[string]map[string]int64{"alloc": {"alloc": 5}, "inuse": {"inuse": 3}, "peak": {"peak": 2}, "all": {"alloc": 9, "inuse": 7, "peak": 8}}
	files := map[string]string{}
	for name, h := range known {
		files[name] = write(t, h)
	}
	for name, file := range files {
		for base, from := range files {
			for _, pair := range []string{"alloc", "inuse", "peak"} {
				got := top(t, "-sample_index="+pair+"_objects", "-diff_base="+from, file)
				require.Equal(t, blocks[name][pair]-blocks[base][pair], got["a"][0]+got["b"][0], "%s of %s less %s", pair, name, base)
			}
		}
		want := name
		if name == "all" {
			want = "inuse"
		}
		require.Contains(t, pprof(t, "-top", file), "Type: "+want+"_space", "what is shown first")
	}
}

func nonZero(m map[string][2]int64) map[string][2]int64 { return account(m).clean() }

// TestNothingKnown: unknown values are 0, and a file without known values is refused, whereas one
// without blocks is not.
func TestNothingKnown(t *testing.T) {
	var b bytes.Buffer
	require.ErrorIs(t, Heap{Device: "x"}.Write(&b), ErrInvalid)
	require.ErrorIs(t, Of(nil).Write(&b), ErrInvalid)
	require.ErrorIs(t, Heap{Peak: &memcache.Profile{}}.Write(nil), ErrInvalid)
	require.Zero(t, b.Len())
	require.NoError(t, Heap{Peak: &memcache.Profile{}, Allocated: []memcache.Holding{}}.Write(&b))
	p, err := profile.Parse(&b)
	require.NoError(t, err)
	require.Empty(t, p.Sample)
	var types []string
	for _, s := range p.SampleType {
		types = append(types, s.Type+"/"+s.Unit)
	}
	require.Equal(t, []string{"alloc_objects/count", "alloc_space/bytes", "inuse_objects/count", "inuse_space/bytes", "peak_objects/count", "peak_space/bytes"}, types)
	require.Equal(t, "peak_space", p.DefaultSampleType)
	c, _ := open(t, memcache.Config{})
	require.Empty(t, top(t, write(t, Of(c))))
	require.NoError(t, c.Close())
	require.Empty(t, top(t, write(t, Of(c))), "of a closed cache")
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestWriterThatFails(t *testing.T) {
	require.ErrorIs(t, Heap{InUse: &memcache.Profile{}}.Write(refusing{}), os.ErrClosed)
}

// TestCounterOfSteps: labels of steps don't add totals, and failed requests don't count.
func TestCounterOfSteps(t *testing.T) {
	var counter Counter
	c, s := open(t, memcache.Config{Observer: &counter, MemoryLimit: 4 << 20})
	require.NotNil(t, counter.Holdings())
	for step := range int64(100) {
		ctx := memcache.WithStep(memcache.WithModule(t.Context(), "head"), step+1)
		_, err := c.Alloc(ctx, 5<<20, s)
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		require.NoError(t, alloc(t, ctx, c, s, 1000).Free())
	}
	require.Equal(t, []memcache.Holding{{Label: memcache.Label{Module: "head"}, Size: 1024, Blocks: 100, Bytes: 102400, Requested: 100000}}, counter.Holdings())
	list := counter.Holdings()
	list[0].Blocks = 0
	require.Equal(t, 100, counter.Holdings()[0].Blocks, "the list is the caller's")
}

// TestCounterOfGoroutines: the allocations of several goroutines add up to the cache's own
// statistic.
func TestCounterOfGoroutines(t *testing.T) {
	var counter Counter
	c, s := open(t, memcache.Config{Observer: &counter})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			ctx := memcache.WithModule(t.Context(), fmt.Sprint(i%2))
			for n := range int64(200) {
				b, err := c.Alloc(ctx, 1+n*300, s)
				if err == nil {
					err = b.Free()
				}
				if err != nil {
					t.Error(err)
				}
				counter.Holdings()
			}
		})
	}
	group.Wait()
	var bytes int64
	for _, h := range counter.Holdings() {
		bytes += h.Bytes
	}
	require.Equal(t, c.Stats().AllocatedBytes.All.Allocated, bytes)
}
