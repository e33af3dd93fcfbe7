package diff

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/heap"
	"github.com/cistern-ml/cistern/trace/record"
	"github.com/cistern-ml/cistern/trace/torchsnapshot"
)

// The kinds of files that a program writes.
const (
	recordingFile = iota
	stepsFile
	heapFile
	snapshotFile
	fileKinds
)

// program is a random program on the host device. Its records share no code with the package: a
// list of its blocks, copied when they are the most so far.
type program struct {
	files    [fileKinds][]byte
	held     []block
	peak     []block // at the first moment at which most was allocated
	bytes    int64   // allocated at the peak
	reserved int64   // at its own peak
	steps    map[int64]int64
	open     int64 // the step; 0: none
}

type block struct {
	memcache.Block
	category memcache.Category
	module   string
	line     int
	bytes    int64
}

// sites allocate on a line each.
var sites = []func(ctx context.Context, c *memcache.Cache, n int64, s device.Stream) (memcache.Block, int, error){
	func(ctx context.Context, c *memcache.Cache, n int64, s device.Stream) (memcache.Block, int, error) {
		b, err := c.Alloc(ctx, n, s)
		return b, here() - 1, err
	},
	func(ctx context.Context, c *memcache.Cache, n int64, s device.Stream) (memcache.Block, int, error) {
		b, err := c.Alloc(ctx, n, s)
		return b, here() - 1, err
	},
	func(ctx context.Context, c *memcache.Cache, n int64, s device.Stream) (memcache.Block, int, error) {
		b, err := c.Alloc(ctx, n, s)
		return b, here() - 1, err
	},
}

// here returns the line of its caller.
func here() int {
	_, _, line, _ := runtime.Caller(1)
	return line
}

// modules are the names of layers, with and without their types.
var modules = []string{"", "(Net)", "embed", "encoder.0", "encoder.0.mlp (Linear)", "encoder.1.mlp (Linear)", "head (Linear)"}

func runProgram(t testing.TB, seed uint64, steps int) *program {
	dev := cisterntest.Host(t, 1<<30)
	c, err := memcache.New(dev, memcache.Config{})
	require.NoError(t, err)
	s, err := dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	require.NoError(t, c.RecordHistory(memcache.HistoryOptions{Entries: 1 << 16, Stacks: memcache.StacksAlloc}))
	p, random := &program{steps: map[int64]int64{}}, rand.New(rand.NewPCG(seed, 1))
	for range seed % 4 { // the recording begins when memory is in use
		p.alloc(t, t.Context(), random, c, s)
	}
	delete(p.steps, 0)
	var lines, recorded, profile, snapshot bytes.Buffer
	r, err := record.Start(&recorded, c, record.Options{Stacks: memcache.StacksAlloc, Gzip: seed%2 == 0})
	require.NoError(t, err)
	out := json.NewEncoder(&lines)
	profiler, err := trace.NewProfiler(trace.ProfilerConfig{Cache: c, Holders: true, OnProfile: func(p trace.StepProfile) { require.NoError(t, out.Encode(p)) }})
	require.NoError(t, err)
	for n := range int64(steps) {
		mark := r.Step(n + 1)
		ctx, step := profiler.StartStep(t.Context(), n+1)
		p.open = n + 1
		p.account()
		for i := range 5 + random.IntN(40) { // the first is an allocation, with which a snapshot's steps begin
			if i > 0 && len(p.held) > 0 && random.IntN(5) < 2 {
				p.free(t, random.IntN(len(p.held)))
			} else {
				p.alloc(t, ctx, random, c, s)
			}
		}
		step.End()
		mark.End()
	}
	profiler.Close()
	require.NoError(t, r.Close())
	require.NoError(t, heap.Of(c).Write(&profile))
	require.NoError(t, torchsnapshot.Write(&snapshot, torchsnapshot.State{Snapshot: c.Snapshot(), Config: c.Config()}))
	p.reserved = c.Stats().ReservedBytes.All.Peak
	for len(p.held) > 0 {
		p.free(t, 0)
	}
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
	require.NoError(t, dev.Close())
	p.files = [fileKinds][]byte{recorded.Bytes(), lines.Bytes(), profile.Bytes(), snapshot.Bytes()}
	return p
}

func (p *program) alloc(t testing.TB, ctx context.Context, random *rand.Rand, c *memcache.Cache, s device.Stream) {
	b := block{category: memcache.Category(random.IntN(7)), module: modules[random.IntN(len(modules))]}
	sizes := []int64{1, 512, 513, 4000, 100_000, 1 << 20, 3<<20 + 1, 11 << 20}
	ctx = memcache.WithLabel(ctx, memcache.Label{Module: b.module, Category: b.category, Step: p.open})
	var err error
	b.Block, b.line, err = sites[random.IntN(len(sites))](ctx, c, sizes[random.IntN(len(sizes))], s)
	require.NoError(t, err)
	b.bytes = b.Size()
	p.held = append(p.held, b)
	p.account()
}

func (p *program) free(t testing.TB, i int) {
	require.NoError(t, p.held[i].Free())
	p.held = append(p.held[:i:i], p.held[i+1:]...)
	p.account()
}

// account records the present blocks if they are the most so far.
func (p *program) account() {
	n := int64(0)
	for _, b := range p.held {
		n += b.bytes
	}
	p.steps[p.open] = max(p.steps[p.open], n)
	if n > p.bytes {
		p.bytes, p.peak = n, append([]block(nil), p.held...)
	}
}

// has reports the dimensions of a kind of file.
func has(kind int) [dimensions]bool {
	return [fileKinds][dimensions]bool{
		recordingFile: {true, true, true, true},
		stepsFile:     {byCategory: true, byModule: true, byStep: true},
		heapFile:      {byCategory: true, byModule: true, byLine: true},
		snapshotFile:  {true, true, true, true},
	}[kind]
}

// sums returns the bytes and blocks of each holder, in words.
func (p *program) sums(by dimension) map[string]Amount {
	m := map[string]Amount{}
	if by == byStep {
		for n, bytes := range p.steps {
			m[fmt.Sprint(n)] = Amount{Bytes: bytes}
		}
		return m
	}
	for _, b := range p.peak {
		name := []string{b.category.String(), map[string]string{"encoder.0.mlp (Linear)": "encoder.0.mlp", "encoder.1.mlp (Linear)": "encoder.1.mlp", "head (Linear)": "head"}[b.module], fmt.Sprint(b.line)}[by]
		if by == byModule && name == "" && b.module != "(Net)" {
			name = b.module
		}
		m[name] = Amount{m[name].Bytes + b.bytes, m[name].Blocks + 1}
	}
	return m
}
