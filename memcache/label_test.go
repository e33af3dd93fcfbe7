package memcache

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

func TestLabels(t *testing.T) {
	c, _ := newCache(t, Config{})
	ctx := context.Background()
	require.Equal(t, Label{}, LabelOf(ctx))
	require.Equal(t, "other", LabelOf(ctx).String())
	step := WithStep(ctx, 17)
	encoder := WithModule(step, "encoder")
	linear := WithCategory(WithModule(WithModule(encoder, ""), "0.linear"), CategoryActivation)
	require.Equal(t, Label{Module: "encoder.0.linear", Category: CategoryActivation, Step: 17}, LabelOf(linear))
	require.Equal(t, "encoder.0.linear (activation) in step 17", LabelOf(linear).String())
	typed := Label{Module: "encoder.0 (Linear)", Category: CategoryActivation}
	require.Equal(t, "encoder.0 (Linear, activation)", typed.String())
	require.Equal(t, "encoder.0.part", LabelOf(WithModule(WithLabel(ctx, typed), "part")).Module)
	require.Equal(t, []string{"encoder.0", "a (b).c", "a (b", ""}, []string{ModulePath("encoder.0 (Linear)"), ModulePath("a (b).c"), ModulePath("a (b"), ModulePath("(Net)")})
	require.Equal(t, Label{Module: "encoder", Step: 17}, LabelOf(encoder), "contexts are not changed")
	require.Equal(t, Label{Step: 17}, LabelOf(step))

	tagged := WithTag(WithTag(WithTag(encoder, "z", "last"), "batch", "1\n2"), "a=b\n", "x=y")
	require.Equal(t, "a b =x=y\nbatch=1 2\nz=last", LabelOf(tagged).Tags)
	require.Equal(t, []string{"1 2", "last", "x=y", ""}, []string{LabelOf(tagged).Tag("batch"), LabelOf(tagged).Tag("z"), LabelOf(tagged).Tag("a=b\n"), LabelOf(tagged).Tag("bat")})
	require.Empty(t, Label{Tags: "a=b=c"}.Tag("a=b"), "the value of a is b=c")
	require.Equal(t, "a b =x=y\nbatch=3\nz=last", LabelOf(WithTag(tagged, "batch", "3")).Tags)

	// What else a context carries stays, and the label stays with it.
	pool, err := c.NewPool(PoolOptions{})
	require.NoError(t, err)
	both, scope := c.Scope(pool.Context(linear), "scope")
	defer scope.End()
	relabelled := WithModule(both, "x")
	require.Equal(t, "encoder.0.linear.x", LabelOf(relabelled).Module)
	require.Same(t, scope, ctxStateOf(relabelled).scope)
	require.Same(t, pool, c.PoolOf(relabelled))
	require.Equal(t, LabelOf(linear), LabelOf(c.WithoutPool(both)))

	var none context.Context
	require.Nil(t, WithModule(none, "x"))
	require.Equal(t, Label{}, LabelOf(none))
	for i, name := range []string{"other", "parameter", "gradient", "optimizer state", "activation", "input", "workspace", "unknown"} {
		require.Equal(t, name, Category(i).String())
	}
}

// A block's label is reported in all places that report the block.
func TestLabelsOfBlocks(t *testing.T) {
	for _, config := range []Config{{}, {NoCaching: true}} {
		s := &spy{}
		config.Observer = s
		c, dev := newCache(t, config)
		s.cache = c
		require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 100}))
		ctx := WithStep(WithCategory(WithModule(context.Background(), "head"), CategoryParameter), 3)
		want := LabelOf(ctx)
		b, err := c.Alloc(ctx, 1000, dev.stream(1))
		require.NoError(t, err)
		require.Equal(t, want, c.Snapshot().Segments[0].Blocks[0].Label)
		require.NoError(t, b.Free())
		other := mustAlloc(t, c, 1000, dev.stream(1))
		require.Equal(t, Label{}, c.Snapshot().Segments[0].Blocks[0].Label, "the next one has its own")
		require.NoError(t, other.Free())
		told := map[Op][]Label{}
		for _, e := range s.events {
			told[e.Op] = append(told[e.Op], e.Label)
		}
		require.Equal(t, []Label{want, {}}, told[OpAlloc])
		require.Equal(t, []Label{want, {}}, told[OpFree])
		var history []Label
		for _, e := range c.History() {
			switch e.Action {
			case ActionAlloc, ActionFreeRequested, ActionFreeCompleted:
				history = append(history, e.Label)
			}
		}
		require.Equal(t, []Label{want, want, want, {}, {}, {}}, history)
	}
}

// TestLabelsOfFreeBlocks: a snapshot shows the last label of free memory, and the new label of its
// front after a request took that.
func TestLabelsOfFreeBlocks(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	first := Label{Module: "first", Category: CategoryGradient}
	b, err := c.Alloc(WithLabel(t.Context(), first), 2000, s)
	require.NoError(t, err)
	require.NoError(t, b.Free())
	blocks := c.Snapshot().Segments[0].Blocks
	require.Len(t, blocks, 1)
	require.Equal(t, first, blocks[0].Label)
	require.Equal(t, []int64{2000, 2 * mib}, []int64{blocks[0].RequestedSize, blocks[0].Size})
	b, err = c.Alloc(WithLabel(t.Context(), Label{Step: 2}), 600, s)
	require.NoError(t, err)
	blocks = c.Snapshot().Segments[0].Blocks
	require.Equal(t, []Label{{Step: 2}, first}, []Label{blocks[0].Label, blocks[1].Label})
	require.Equal(t, []int64{600, 2000}, []int64{blocks[0].RequestedSize, blocks[1].RequestedSize})
	require.NoError(t, b.Free())
}

func TestLabelsOfOutOfMemory(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 60 << 20})
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 100}))
	s, ctx := dev.stream(1), WithModule(context.Background(), "decoder")
	mustAlloc(t, c, 20<<20, s)
	_, err := c.Alloc(ctx, 50<<20, s)
	var oom *OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Nil(t, oom.Holders, "nothing has a label")
	require.NotContains(t, err.Error(), "holds")

	for i, name := range []string{"a", "b", "c"} {
		_, err := c.Alloc(WithStep(WithCategory(WithModule(context.Background(), name), CategoryGradient), int64(i)), int64(4+i)<<20, s)
		require.NoError(t, err)
	}
	_, err = c.Alloc(WithCategory(ctx, CategoryActivation), 50<<20, s)
	require.ErrorAs(t, err, &oom)
	require.Equal(t, Label{Module: "decoder", Category: CategoryActivation}, oom.Label)
	require.Equal(t, []Share{{"other", 1, 20 << 20}, {"c (gradient)", 1, 6 << 20}, {"b (gradient)", 1, 5 << 20}}, oom.Holders)
	require.ErrorContains(t, err, "decoder (activation) asked for 50.00 MiB")
	require.ErrorContains(t, err, "\n\tlargest holders: other 20.00 MiB, c (gradient) 6.00 MiB, b (gradient) 5.00 MiB")
	h := c.History()
	require.Equal(t, ActionOOM, h[len(h)-1].Action)
	require.Equal(t, oom.Label, h[len(h)-1].Label)
	require.True(t, errors.Is(err, ErrOutOfMemory) && !errors.Is(err, device.ErrOutOfMemory))
}

// A block's label may be set later.
func TestSetLabel(t *testing.T) {
	c, dev := newCache(t, Config{})
	require.NoError(t, c.RecordHistory(HistoryOptions{Entries: 10}))
	first, second := Label{Module: "first"}, Label{Module: "second", Category: CategoryParameter, Step: 4, Tags: "a=b"}
	ctx := WithLabel(WithStep(context.Background(), 9), first)
	require.Equal(t, first, LabelOf(ctx), "all of it")
	b, err := c.Alloc(ctx, 512, dev.stream(1))
	require.NoError(t, err)
	other, err := c.Alloc(ctx, 512, dev.stream(1))
	require.NoError(t, err)
	require.NoError(t, b.SetLabel(second))
	require.Equal(t, second, b.Label())
	require.Equal(t, first, other.Label())
	require.Equal(t, first, LabelOf(ctx))
	owners := func(p Profile) (list []Label) {
		for _, h := range p.Holdings {
			list = append(list, h.Label)
		}
		return list
	}
	require.ElementsMatch(t, []Label{first, second}, owners(c.Profile()))
	require.ElementsMatch(t, []Label{first, second}, owners(c.PeakProfile()), "of a peak that is past, too")
	last := c.History()[len(c.History())-1]
	require.Equal(t, ActionRelabel, last.Action)
	require.Equal(t, second, last.Label)
	require.Equal(t, []any{b.Ptr(), b.Serial()}, []any{last.Address, last.Serial})

	require.NoError(t, b.Free())
	require.ErrorIs(t, b.SetLabel(first), ErrFreed)
	require.Equal(t, Label{}, b.Label())
	require.ElementsMatch(t, []Label{first, second}, owners(c.PeakProfile()))
	again, err := c.Alloc(ctx, 512, dev.stream(1))
	require.NoError(t, err)
	require.Equal(t, b.Ptr(), again.Ptr())
	require.ErrorIs(t, b.SetLabel(second), ErrFreed, "its memory is another block's")
	require.Equal(t, []Label{{}, first}, []Label{b.Label(), again.Label()})
	require.NoError(t, Block{}.SetLabel(first))
	require.Equal(t, Label{}, Block{}.Label())
	for _, b := range []Block{again, other} {
		require.NoError(t, b.Free())
	}
}

// TestLabelContextsExpectTooMany: a wrong number allocates no excess memory.
func TestLabelContextsExpectTooMany(t *testing.T) {
	for _, n := range []int{-1, math.MinInt, math.MaxInt} {
		var c LabelContexts
		c.Expect(n)
		require.Equal(t, "a", LabelOf(c.With(t.Context(), Label{Module: "a"})).Module)
	}
}
