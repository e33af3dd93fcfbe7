package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// labelled is a context of a module and a category.
func labelled(ctx context.Context, module string, c memcache.Category) context.Context {
	return memcache.WithCategory(memcache.WithModule(ctx, module), c)
}

// TestHoldersOfThePeak: a block that was freed before the step's end is part of its peak, and a
// later block is not.
func TestHoldersOfThePeak(t *testing.T) {
	f := newFixture(t, Config{})
	weights := f.alloc(t, labelled(t.Context(), "0", memcache.CategoryParameter), 2*mib)
	p := f.profiler(t, ProfilerConfig{})
	ctx, step := p.StartStep(t.Context(), 17)
	assert.Equal(t, int64(17), memcache.LabelOf(ctx).Step)
	hidden := f.alloc(t, labelled(ctx, "0", memcache.CategoryActivation), 4*mib)
	grad := f.alloc(t, labelled(ctx, "2", memcache.CategoryGradient), 3*mib)
	free := f.cache.MemoryReserved() - 9*mib
	require.NoError(t, hidden.Free())
	late := f.alloc(t, labelled(ctx, "late", memcache.CategoryWorkspace), mib)
	got := step.End()
	require.Equal(t, &StepPeak{
		Categories: []memcache.Share{{Name: "activation", Blocks: 1, Bytes: 4 * mib}, {Name: "gradient", Blocks: 1, Bytes: 3 * mib}, {Name: "parameter", Blocks: 1, Bytes: 2 * mib}},
		Modules:    []memcache.Share{{Name: "0", Blocks: 2, Bytes: 6 * mib}, {Name: "2", Blocks: 1, Bytes: 3 * mib}},
		Free:       free,
	}, got.Peak)
	text, err := json.Marshal(got)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"peak":{"categories":[{"name":"activation","blocks":1,"bytes":4194304},`)
	for _, b := range []memcache.Block{weights, grad, late} {
		require.NoError(t, b.Free())
	}
}

// TestStepsThatReportHolders: the first two steps, and those with a peak above all before them;
// with Holders all.
func TestStepsThatReportHolders(t *testing.T) {
	for _, all := range []bool{false, true} {
		f := newFixture(t, Config{})
		p := f.profiler(t, ProfilerConfig{Holders: all})
		for i, tt := range []struct {
			mib  int64
			tell bool
		}{{4, true}, {2, true}, {4, false}, {3, false}, {5, true}, {5, false}} {
			ctx, step := p.StartStep(t.Context(), int64(i))
			require.NoError(t, f.alloc(t, ctx, tt.mib*mib).Free())
			got := step.End()
			assert.Equal(t, all || tt.tell, got.Peak != nil, "step %d, all: %v", i, all)
			if got.Peak != nil {
				assert.Equal(t, tt.mib*mib, got.Peak.Categories[0].Bytes)
			}
		}
		ctx, step := p.StartStep(t.Context(), 6)
		require.NoError(t, f.alloc(t, ctx, 9*mib).Free())
		step.Fail(errBroken)
		assert.Equal(t, int64(9*mib), step.End().Peak.Categories[0].Bytes, "a step that failed")
		ctx, step = p.StartStep(t.Context(), 7)
		require.NoError(t, f.alloc(t, ctx, 6*mib).Free())
		assert.NotNil(t, step.End().Peak, "is not what the others are compared with")
		assert.Equal(t, int64(6*mib), p.Summary().Largest.Peak.Categories[0].Bytes, "the table's largest step tells")
	}
}

// TestFailedStepsAreNotTheFirstTwo: the first two steps that succeed report the holders of their
// peaks, even after failed steps with larger peaks.
func TestFailedStepsAreNotTheFirstTwo(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{})
	for i, fails := range []bool{true, true, false, true, false, false} {
		ctx, step := p.StartStep(t.Context(), int64(i))
		require.NoError(t, f.alloc(t, ctx, int64(6-i)*mib).Free())
		if fails {
			step.Fail(errBroken)
		}
		require.Equal(t, i < 5, step.End().Peak != nil, "step %d", i)
	}
}

// TestHoldersOfOverlappingSteps: the holders of each step add up to its own peak.
func TestHoldersOfOverlappingSteps(t *testing.T) {
	f := newFixture(t, Config{})
	p := f.profiler(t, ProfilerConfig{Holders: true})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 50 {
				ctx, step := p.StartStep(t.Context(), int64(n))
				b := f.alloc(t, labelled(ctx, string(rune('a'+i)), memcache.CategoryInput), int64(i+1)*mib)
				assert.NoError(t, b.Free())
				got := step.End()
				for _, list := range [][]memcache.Share{got.Peak.Categories, got.Peak.Modules} {
					sum := int64(0)
					for _, s := range list {
						sum += s.Bytes
					}
					assert.Equal(t, got.AllocatedPeak, sum)
				}
			}
		})
	}
	all.Wait()
}

func TestTableOfHolders(t *testing.T) {
	var c collector
	c.add(&StepProfile{Step: 1, AllocatedPeak: 10 * mib, Retries: 2})
	c.add(&StepProfile{Step: 2, AllocatedPeak: 20 * mib, Retries: 1, Peak: &StepPeak{Free: 2 * mib,
		Categories: []memcache.Share{{Name: "optimizer state", Blocks: 12, Bytes: 12 * mib}, {Name: "activation", Blocks: 1, Bytes: 8 * mib}},
		Modules:    []memcache.Share{{Name: "0", Blocks: 6, Bytes: 11 * mib}, {Name: "", Blocks: 1, Bytes: 7 * mib}, {Name: "2", Blocks: 3, Bytes: mib}, {Name: "4", Blocks: 3, Bytes: mib}}}})
	var out bytes.Buffer
	require.NoError(t, c.summary().Table(&out))
	_, under, ok := strings.Cut(out.String(), "\n\n")
	require.True(t, ok)
	assert.Equal(t, strings.TrimPrefix(`
at the peak of step 2: 20 MiB allocated, 2.0 MiB more reserved
  by category      optimizer state     12 MiB   60%  12 blocks
                   activation         8.0 MiB   40%  1 block
  largest modules  0                   11 MiB   55%  6 blocks
                   (no module)        7.0 MiB   35%  1 block
                   2                  1.0 MiB    5%  3 blocks
driver allocations tried again after a flush: 3
`, "\n"), under)

	s := c.summary()
	s.Largest.Peak.Modules = s.Largest.Peak.Modules[1:2]
	out.Reset()
	require.NoError(t, s.Table(&out))
	assert.NotContains(t, out.String(), "module", "nobody has named one")
	whole := &limited{left: math.MaxInt}
	require.NoError(t, s.Table(whole))
	for fewer := range whole.wrote {
		require.ErrorIs(t, s.Table(&limited{left: fewer}), errBroken)
	}
}
