package torchsnapshot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nlpodyssey/gopickle/pickle"
	"github.com/nlpodyssey/gopickle/types"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
	"github.com/cistern-ml/cistern/memcache"
)

// needs64 skips a test of numbers beyond 31 bits on 32-bit platforms: the reader of pickles returns
// int.
func needs64(t testing.TB) {
	t.Helper()
	if math.MaxInt == math.MaxInt32 {
		t.Skip("github.com/nlpodyssey/gopickle reads no number beyond 31 bits here")
	}
}

func written(t testing.TB, states ...State) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, Write(&b, states...))
	return b.Bytes()
}

// value returns the pickle that another package's reader reads, as maps and slices.
func value(t testing.TB, data []byte) map[string]any {
	t.Helper()
	u := pickle.NewUnpickler(bytes.NewReader(data))
	v, err := u.Load()
	require.NoError(t, err)
	return plain(t, v).(map[string]any)
}

func plain(t testing.TB, v any) any {
	switch v := v.(type) {
	case *types.Dict:
		m := map[string]any{}
		for _, e := range *v {
			require.NotContains(t, m, e.Key)
			m[e.Key.(string)] = plain(t, e.Value)
		}
		return m
	case *types.List:
		list := []any{}
		for _, x := range *v {
			list = append(list, plain(t, x))
		}
		return list
	case *types.Tuple:
		list := [2]any{}
		require.Len(t, *v, 2)
		for i, x := range *v {
			list[i] = plain(t, x)
		}
		return list
	case *big.Int:
		return v.Uint64()
	}
	return v
}

var configurations = []string{"", "max_split_size_mb:20", "garbage_collection_threshold:0.5,memory_limit:419430400", "roundup_power2_divisions:[1:2,8:4,>:8]",
	"expandable_segments:True", "expandable_segments:True,expandable_granule_mb:4", "large_segment_size_mb:30,max_split_size_mb:40", "memory_limit:314572800",
	"expandable_segments:True,memory_limit:314572800"}

// TestVerifies: the replay of the file repeats the cache's decisions, to the last address, with
// Exact and without.
func TestVerifies(t *testing.T) {
	needs64(t)
	for _, options := range configurations {
		for _, exact := range []string{"True", "False"} {
			t.Run(options+" exact:"+exact, func(t *testing.T) {
				t.Parallel()
				p := newProgram(t, strings.TrimPrefix(options+",exact:"+exact, ","), memcache.StacksNone)
				calls := 800
				if testing.Short() {
					calls = 300
				}
				p.run(calls)
				list, err := recording.Read(bytes.NewReader(written(t, p.state())), "x", recording.Options{})
				require.NoError(t, err)
				require.Len(t, list, 1)
				program, err := recording.NewProgram(list[0])
				require.NoError(t, err)
				config, err := replay.Config(program)
				require.NoError(t, err)
				require.Equal(t, p.config, config)
				v, err := replay.Verify(program)
				require.NoError(t, err)
				require.Zero(t, v.Mismatches(), "%+v", v)
				require.Equal(t, p.cache.Stats().AllocatedBytes.All.Peak, v.PeakAllocated)
				require.Equal(t, p.cache.Stats().ReservedBytes.All.Peak, v.PeakReserved)
			})
		}
	}
}

// TestCommand runs the command on the file of two caches.
func TestCommand(t *testing.T) {
	needs64(t)
	a, b := newProgram(t, "", memcache.StacksAll), newProgram(t, "", memcache.StacksAlloc)
	a.run(300)
	b.run(500)
	file := filepath.Join(t.TempDir(), "snapshot.pickle")
	require.NoError(t, os.WriteFile(file, written(t, a.state(), b.state()), 0o600))
	out, err := exec.CommandContext(t.Context(), "go", "run", "../..", "verify", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "snapshot.pickle[1]")
}

// TestValues compares everything that another reader finds in the file with the snapshot.
func TestValues(t *testing.T) {
	p := newProgram(t, "roundup_power2_divisions:[1:2,8:4,>:8],max_split_size_mb:64,garbage_collection_threshold:0.25,memory_limit:419430400", memcache.StacksAll)
	p.run(600)
	_, err := p.cache.Alloc(memcache.WithTag(t.Context(), "tenant", "a"), 1<<35, p.streams[1])
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	release, err := p.streams[2].Hold()
	require.NoError(t, err)
	defer release()
	b, err := p.cache.Alloc(t.Context(), 100, p.streams[0])
	require.NoError(t, err)
	require.NoError(t, b.RecordStream(p.streams[2]))
	require.NoError(t, b.Free())
	s := p.state()
	start := time.Unix(7, 8000)
	s.Annotations = []Annotation{{Name: "step 1", Start: start, End: start.Add(time.Second)}}
	v := value(t, written(t, s))
	require.Len(t, v, 4)

	segments := v["segments"].([]any)
	require.Len(t, segments, len(s.Snapshot.Segments))
	pending := 0
	for i, g := range s.Snapshot.Segments {
		got := segments[i].(map[string]any)
		blocks := got["blocks"].([]any)
		requireFrames(t, memcache.Label{}, got["frames"])
		require.NotEmpty(t, got["frames"])
		delete(got, "blocks")
		delete(got, "frames")
		require.Equal(t, map[string]any{"device": 0, "address": int(g.Address), "total_size": int(g.TotalSize), "allocated_size": int(g.AllocatedSize),
			"active_size": int(g.ActiveSize), "requested_size": int(g.RequestedSize), "stream": int(g.Stream), "segment_type": g.Pool,
			"segment_pool_id": [2]any{0, 0}, "is_expandable": g.Expandable}, got)
		require.Len(t, blocks, len(g.Blocks))
		for k, b := range g.Blocks {
			got := blocks[k].(map[string]any)
			if b.State == memcache.BlockInactive {
				require.Empty(t, got["frames"])
			} else {
				requireFrames(t, b.Label, got["frames"])
			}
			if b.State == memcache.BlockPendingFree {
				pending++
			}
			delete(got, "frames")
			require.Equal(t, map[string]any{"address": int(b.Address), "size": int(b.Size), "requested_size": int(b.RequestedSize), "state": string(b.State)}, got)
		}
	}
	require.Positive(t, pending)

	traces := v["device_traces"].([]any)
	require.Len(t, traces, 1)
	entries := traces[0].([]any)
	require.Len(t, entries, len(s.Snapshot.History))
	seen := map[memcache.Action]bool{}
	for i, e := range s.Snapshot.History {
		seen[e.Action] = true
		got := entries[i].(map[string]any)
		want := map[string]any{"action": string(e.Action), "size": int(e.Size), "stream": int(e.Stream), "time_us": int(e.Time.UnixMicro()),
			"compile_context": "N/A", "user_metadata": strings.ToValidUTF8(metadata(e.Label), "\uFFFD"), "category": e.Label.Category.String()}
		if e.Label.Category == memcache.CategoryOther {
			want["category"] = "unknown"
		}
		if e.Action == memcache.ActionOOM {
			want["device_free"] = int(e.Free)
		} else {
			want["addr"] = int(e.Address)
		}
		if e.Action == memcache.ActionFreeRequested || e.Action == memcache.ActionFreeCompleted {
			want["block_size"] = int(e.Block)
		}
		if frames, ok := got["frames"]; ok {
			requireFrames(t, e.Label, frames)
			delete(got, "frames")
		} else {
			require.Empty(t, e.Stack)
		}
		require.Equal(t, want, got)
	}
	for _, a := range []memcache.Action{memcache.ActionAlloc, memcache.ActionFreeRequested, memcache.ActionFreeCompleted, memcache.ActionSegmentAlloc,
		memcache.ActionSegmentFree, memcache.ActionOOM} {
		require.True(t, seen[a], a)
	}
	require.Equal(t, "other; tenant=a", entries[len(entries)-3].(map[string]any)["user_metadata"], "of the request that failed")

	divisions := map[string]any{}
	for i, n := range p.config.RoundupPower2Divisions {
		divisions[fmt.Sprint(1<<i)] = n
	}
	require.Equal(t, map[string]any{"PYTORCH_CUDA_ALLOC_CONF": p.config.Options() + ",exact:False", "max_split_size": 64 << 20,
		"garbage_collection_threshold": 0.25, "expandable_segments": false, "release_lock_on_cudamalloc": false, "pinned_num_register_threads": 1,
		"pinned_use_cuda_host_register": false, "graph_capture_record_stream_reuse": false, "roundup_power2_divisions": divisions}, v["allocator_settings"])
	require.Equal(t, []any{
		map[string]any{"name": "step 1", "stage": "START", "device": 0, "time_us": 7000008},
		map[string]any{"name": "step 1", "stage": "END", "device": 0, "time_us": 8000008},
	}, v["external_annotations"])
}

// requireFrames requires the step first, then Go's calls, then the module's parts and the category.
func requireFrames(t *testing.T, l memcache.Label, got any) {
	t.Helper()
	list := got.([]any)
	text := func(v any) string {
		f := v.(map[string]any)
		require.Len(t, f, 3)
		return fmt.Sprintf("%v:%v:%v", f["filename"], f["line"], f["name"])
	}
	if l.Step != 0 {
		require.Equal(t, fmt.Sprintf("step:%d:step %d", l.Step, l.Step), text(list[0]))
		list = list[1:]
	}
	if l.Category != memcache.CategoryOther || l.Module != "" {
		require.Equal(t, "category:0:"+l.Category.String(), text(list[len(list)-1]))
		list = list[:len(list)-1]
	}
	parts := strings.Split(l.Module, ".")
	for i := range parts {
		if l.Module == "" {
			break
		}
		require.Equal(t, "module:0:"+strings.ToValidUTF8(strings.Join(parts[:i+1], "."), "\uFFFD"), text(list[len(list)-1]))
		list = list[:len(list)-1]
	}
	for _, f := range list {
		require.NotRegexp(t, "^(module|category|step):", text(f))
	}
	if len(list) > 0 {
		require.Contains(t, text(list[0]), "_test.go:", "the line of the user")
	}
}

// TestKeys: the file has all keys of a file of PyTorch, in each kind of dict.
func TestKeys(t *testing.T) {
	torch, err := os.ReadFile("../../internal/recording/testdata/sample_with_stacks.pickle")
	require.NoError(t, err)
	p := newProgram(t, "", memcache.StacksAll)
	p.run(50)
	want, got := map[string]string{}, map[string]string{}
	keys(want, "", value(t, torch))
	keys(got, "", value(t, written(t, p.state())))
	require.Greater(t, len(want), 40)
	for path, kind := range want {
		require.Equal(t, kind, got[path], path)
	}
}

// keys returns the paths of a value's parts with their types.
func keys(m map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			keys(m, path+"."+k, x)
		}
	case []any:
		for _, x := range v {
			keys(m, path+"[]", x)
		}
	default:
		m[path] = fmt.Sprintf("%T", v)
	}
}

// TestOpcodes: the file has only opcodes that the readers of PyTorch have in common, with the
// lengths of their arguments, and no append has more values than JavaScript can pass to one call.
func TestOpcodes(t *testing.T) {
	p := newProgram(t, "", memcache.StacksAll)
	p.run(3000)
	data := written(t, p.state())
	require.Greater(t, len(p.cache.History()), 2*batch)
	lengths := map[byte]int{0x80: 1, '.': 0, '(': 0, '}': 0, ']': 0, 'u': 0, 'e': 0, 0x86: 0, 0x88: 0, 0x89: 0, 'J': 4, 'K': 1, 'G': 8, 'q': 1, 'h': 1, 'r': 4, 'j': 4}
	depth, values := 0, []int{0}
	for i := 0; i < len(data); {
		code := data[i]
		n, ok := lengths[code]
		switch {
		case code == 0x8a:
			n = 1 + int(data[i+1])
			require.LessOrEqual(t, n, 9, "memory_viz makes a number of at most 8 bytes")
		case code == 'X':
			n = 4 + int(binary.LittleEndian.Uint32(data[i+1:]))
		default:
			if !ok {
				t.Fatalf("opcode %#x at %d", code, i)
			}
		}
		switch code {
		case '(':
			depth++
			values = append(values, 0)
		case 'e', 'u':
			if values[depth] > batch {
				t.Fatalf("%d values in a batch, at %d", values[depth], i)
			}
			values = values[:depth]
			depth--
		case 0x86:
			values[depth]--
		case 0x80, 'q', 'r', '.':
		default:
			values[depth]++
		}
		i += 1 + n
		if (code == '.') != (i == len(data)) {
			t.Fatalf("the end of the data is at %d, and byte %d is after opcode %#x", len(data), i, code)
		}
	}
	require.Equal(t, []int{1}, values)
}

// TestNumbers: another reader finds the numbers around each change of form.
func TestNumbers(t *testing.T) {
	needs64(t)
	for _, v := range []int64{0, 1, 255, 256, math.MaxInt32, math.MaxInt32 + 1, 1<<39 - 1, 1 << 39, 1<<47 + 5, math.MaxInt64, -1, math.MinInt32, math.MinInt32 - 1, -1 << 39, math.MinInt64} {
		var b bytes.Buffer
		p := newPickler(&b)
		p.list(1, func(int) { p.int(v) })
		require.NoError(t, p.flush())
		u := pickle.NewUnpickler(&b)
		got, err := u.Load()
		require.NoError(t, err)
		require.EqualValues(t, v, (*got.(*types.List))[0])
	}
	var b bytes.Buffer
	p := newPickler(&b)
	p.list(1, func(int) { p.uint(1<<63 + 7) })
	require.NoError(t, p.flush())
	u := pickle.NewUnpickler(&b)
	got, err := u.Load()
	require.NoError(t, err)
	require.Equal(t, uint64(1<<63+7), (*got.(*types.List))[0].(*big.Int).Uint64())
}

// TestColours: the file has the fields that memory_viz needs for its legend, and none on which it
// fails.
func TestColours(t *testing.T) {
	categories := func(p *program) []any {
		entries := value(t, written(t, p.state()))["device_traces"].([]any)[0].([]any)
		var list []any
		for _, e := range entries {
			if c, ok := e.(map[string]any)["category"]; ok {
				list = append(list, c)
			}
		}
		return list
	}
	p := newProgram(t, "", memcache.StacksNone)
	p.alloc(t.Context(), 100, p.streams[0])
	require.Empty(t, categories(p), "nobody said a category")
	require.NoError(t, p.cache.RecordHistory(memcache.HistoryOptions{Entries: 100}))
	require.Empty(t, categories(p), "of an empty history")
	p.alloc(memcache.WithCategory(t.Context(), memcache.CategoryInput), 100, p.streams[0])
	require.NoError(t, p.cache.RecordHistory(memcache.HistoryOptions{Entries: 100}))
	p.alloc(memcache.WithCategory(t.Context(), memcache.CategoryInput), 100, p.streams[0])
	require.Equal(t, []any{"input", "unknown"}, categories(p), "a file without unknown is one that memory_viz fails over")
	p.alloc(t.Context(), 100, p.streams[0])
	require.Equal(t, []any{"input", "unknown", "unknown"}, categories(p), "with the entry of the snapshot before")
}

// TestLabelsSetLater: entries have the last label of their block, and actions that PyTorch lacks
// are omitted.
func TestLabelsSetLater(t *testing.T) {
	weight := memcache.Label{Module: "head", Category: memcache.CategoryParameter}
	entries := value(t, written(t, State{Snapshot: memcache.Snapshot{History: []memcache.HistoryEntry{
		{Action: memcache.ActionSegmentAlloc, Address: 4096, Size: 1 << 21},
		{Action: memcache.ActionAlloc, Address: 4096, Size: 100, Serial: 7},
		{Action: "relabel", Address: 4096, Size: 100, Serial: 7, Label: memcache.Label{Module: "draft"}},
		{Action: "relabel", Address: 4096, Size: 100, Serial: 7, Label: weight},
		{Action: memcache.ActionAlloc, Address: 8192, Size: 100, Serial: 8},
		{Action: "later"},
		{Action: "later", Serial: 7, Label: memcache.Label{Module: "wrong"}},
	}}}))["device_traces"].([]any)[0].([]any)
	var got []string
	for _, e := range entries {
		m := e.(map[string]any)
		got = append(got, fmt.Sprint(m["action"], " ", m["category"], " ", m["user_metadata"]))
	}
	require.Equal(t, []string{"segment_alloc unknown ", "alloc parameter head (parameter)", "alloc unknown "}, got)
}

// TestWrongStates: states that can't be one file are errors, and nothing is written.
func TestWrongStates(t *testing.T) {
	var b bytes.Buffer
	require.ErrorIs(t, Write(&b), ErrInvalid)
	require.ErrorIs(t, Write(nil, State{}), ErrInvalid)
	err := Write(&b, State{}, State{Config: memcache.Config{Exact: true}})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `cache 0 has the options "" and cache 1 "exact:True"`)
	require.Zero(t, b.Len())
	v := value(t, written(t, State{}))
	require.Empty(t, v["segments"])
	require.Equal(t, []any{[]any{}}, v["device_traces"])
	require.Equal(t, -1, v["allocator_settings"].(map[string]any)["max_split_size"], "no limit")
	require.ErrorIs(t, Write(failing{}, State{}), os.ErrClosed)
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }
