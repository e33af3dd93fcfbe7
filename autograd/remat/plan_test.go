package remat_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestPlan: for budgets from a step's memory down to its memory with all layers checkpointed, the
// steps stay within the estimate and the budget, the losses are the same, and a larger budget never
// recomputes more.
func TestPlan(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	var plan remat.Plan
	in := nn.Init(b.Ctx, b.RT, nn.Seed(3))
	var model nn.Sequential
	widths := []int{512, 64, 256, 512, 128, 256}
	for i, n := range widths {
		n /= tapetest.Rounds(1, 2)
		block := nn.Sequential{in.Linear(32, n), nn.GELU{}, in.Linear(n, n), nn.GELU{}, in.Linear(n, 32)}
		require.NoError(t, nn.NameModules(struct{ Block nn.Layer }{block}))
		model = append(model, plan.Layer(fmt.Sprint("net.", i), block))
	}
	require.NoError(t, nn.NameModules(model))
	x := in.Tensor(make([]float64, 512*32), 512, 32)
	require.NoError(t, in.Err())
	step := func() (loss float64, peak memcache.Profile) {
		ctx, scope := b.Cache.Scope(memcache.WithModule(b.Ctx, "net"), "step")
		tape := autograd.NewTape(ctx, b.RT)
		y := tape.Mean(tape.Abs(model.Forward(tape, tape.Input(x))))
		_, err := tape.Backward(y)
		require.NoError(t, err)
		loss = y.Item()
		require.NoError(t, tape.Close())
		for _, p := range model.Parameters() {
			require.NoError(t, p.ZeroGrad(b.Ctx))
		}
		return loss, scope.EndProfile()
	}
	step()
	want, plain := step()
	smallest, err := plan.Choose(plain, 0)
	require.ErrorIs(t, err, autograd.ErrInvalid)
	require.ErrorContains(t, err, fmt.Sprintf("a step needs %d bytes", smallest))
	require.NotEmpty(t, plan.Chosen())
	require.Less(t, smallest-b.OwnBytes, (plain.Allocated-b.OwnBytes)*7/10)

	counts := map[int]bool{}
	budgets := int64(tapetest.Rounds(20, 4))
	for i := range budgets {
		budget := smallest + (plain.Allocated-smallest)*i/(budgets-1)
		estimate, err := plan.Choose(plain, budget)
		require.NoError(t, err)
		require.LessOrEqual(t, estimate, budget)
		counts[len(plan.Chosen())] = true
		loss, peak := step()
		require.Equal(t, want, loss)
		t.Logf("budget %d, estimate %d, peak %d: %v", budget, estimate, peak.Allocated, plan.Chosen())
		require.LessOrEqual(t, float64(peak.Allocated), 1.05*float64(estimate), "budget %d: %v", budget, plan.Chosen())
	}
	require.Empty(t, plan.Chosen())
	require.Greater(t, len(counts), 2)
	require.NoError(t, in.Close())
}

// TestPlanCounts: a plan counts the holdings of a profile exactly.
func TestPlanCounts(t *testing.T) {
	holding := func(module string, c memcache.Category, bytes int64) memcache.Holding {
		return memcache.Holding{Label: memcache.Label{Module: module, Category: c}, Bytes: bytes}
	}
	profile := memcache.Profile{Allocated: 1000, Holdings: []memcache.Holding{
		holding("net.a", memcache.CategoryActivation, 100), holding("net.a.inner", memcache.CategoryActivation, 50), holding("net.a", memcache.CategoryParameter, 200),
		holding("net.ab", memcache.CategoryActivation, 300), holding("b", memcache.CategoryActivation, 250), holding("net", memcache.CategoryActivation, 100),
	}}
	var plan remat.Plan
	for _, name := range []string{"net.a", "net.ab", "b", "none"} {
		plan.Layer(name, nn.Sequential{})
	}
	remat.PlannedOf(&plan)[1].SetResult(200)
	for _, c := range []struct {
		budget, estimate int64
		chosen           []string
	}{
		{1000, 1000, nil},              // backward pass of b: 300 outside of the layers, 150 of a, 300 of ab, 250
		{999, 900, []string{"net.ab"}}, // 200 of its 300 stay
		{899, 850, []string{"net.a"}},
		{849, 750, []string{"net.a", "net.ab"}},
		{750, 750, []string{"net.a", "net.ab"}},
	} {
		estimate, err := plan.Choose(profile, c.budget)
		require.NoError(t, err, c.budget)
		require.Equal(t, c.chosen, plan.Chosen(), c.budget)
		require.Equal(t, c.estimate, estimate, c.budget)
	}
	at, err := plan.Choose(profile, 749)
	require.ErrorContains(t, err, "a step needs 750 bytes with the 2 layers checkpointed that lower the peak, and the budget is 749")
	require.EqualValues(t, 750, at)
	require.Equal(t, []string{"net.a", "net.ab"}, plan.Chosen())
	estimate, err := new(remat.Plan).Choose(profile, 5000)
	require.NoError(t, err)
	require.EqualValues(t, 1000, estimate)
	_, err = new(remat.Plan).Choose(profile, 999)
	require.ErrorContains(t, err, "a step needs 1000 bytes with the 0 layers checkpointed that lower the peak, and the budget is 999")
}

// TestPlanSet: a choice by names, as a plan of another run made it.
func TestPlanSet(t *testing.T) {
	var plan remat.Plan
	require.NoError(t, plan.Set())
	for _, name := range []string{"a", "b", "c", "b"} {
		plan.Layer(name, nn.Sequential{})
	}
	require.NoError(t, plan.Set("c", "a"))
	require.Equal(t, []string{"a", "c"}, plan.Chosen())
	err := plan.Set("b", "d")
	require.ErrorIs(t, err, autograd.ErrInvalid)
	require.ErrorContains(t, err, `"d" is none of the 4 layers`)
	require.Equal(t, []string{"a", "c"}, plan.Chosen())
	require.NoError(t, plan.Set("b"))
	require.Equal(t, []string{"b", "b"}, plan.Chosen())
	require.NoError(t, plan.Set())
	require.Empty(t, plan.Chosen())
}

// TestPlanOfNoLayer: a nil layer in a plan is reported like elsewhere.
func TestPlanOfNoLayer(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	var plan remat.Plan
	l := plan.Layer("x", nil)
	require.Empty(t, l.Parameters())
	tape := autograd.NewTape(b.Ctx, b.RT)
	l.Forward(tape, tape.Input(tapetest.Upload(b, []float64{1}, 1)))
	require.ErrorIs(t, tape.Close(), autograd.ErrInvalid)
}

// workspace returns the memory that kernels held temporarily.
func workspace(p memcache.Profile) int64 {
	for _, s := range p.Sum(func(h memcache.Holding) string { return h.Category.String() }) {
		if s.Name == memcache.CategoryWorkspace.String() {
			return s.Bytes
		}
	}
	return 0
}

// TestPlanReckons: in float32 and bfloat16, with random sizes and any choice of checkpointed
// layers, a step's peak is not above the estimate, and not far below.
func TestPlanReckons(t *testing.T) {
	for _, dtype := range []tensor.Dtype{tensor.Float32, tensor.BFloat16} {
		least, greatest := 9.0, 0.0
		for seed := range uint64(tapetest.Rounds(5, 1)) {
			b := tapetest.Open(t, 256<<20)
			b.NeedsHost("a GPU keeps workspaces of its own")
			random := rand.New(rand.NewPCG(seed, 2))
			in := nn.Init(b.Ctx, b.RT, nn.Seed(seed))
			var plan remat.Plan
			var model nn.Sequential
			const outer = 64
			rows := 64 << random.IntN(3)
			for i := range 7 + random.IntN(4) {
				width := 64 + random.IntN(160)
				model = append(model, plan.Layer(fmt.Sprint("net.", i), nn.Sequential{in.Linear(outer, width), nn.GELU{}, in.Linear(width, width), nn.GELU{}, in.Linear(width, outer)}))
			}
			require.NoError(t, nn.NameModules(model))
			x := in.Tensor(make([]float64, rows*outer), rows, outer)
			require.NoError(t, in.Err())
			step := func() (most int64, peak memcache.Profile) {
				b.Cache.ResetPeakStats()
				ctx, scope := b.Cache.Scope(memcache.WithModule(b.Ctx, "net"), "step")
				tape := autograd.NewTape(ctx, b.RT)
				tape.SetComputeDtype(dtype)
				_, err := tape.Backward(tape.Mean(tape.Abs(model.Forward(tape, tape.Input(x)))))
				require.NoError(t, errors.Join(err, tape.Close()))
				most = b.Cache.MaxMemoryAllocated()
				require.NoError(t, model.Parameters().ZeroGrad(b.Ctx))
				return most, scope.EndProfile()
			}
			step()
			stays := b.Cache.MemoryAllocated()
			_, plain := step()
			for n := range 4 {
				c := remat.NewSelection(&plan, plain)
				for i := range c.Chosen() {
					c.Chosen()[i] = n == 0 || random.IntN(2) == 0
					remat.PlannedOf(&plan)[i].SetChosen(c.Chosen()[i])
				}
				most, profile := step()
				estimate, peak := c.Most()-stays, most-stays
				require.Equal(t, profile.Allocated, most)
				// On the host an operation in bfloat16 temporarily has float32 copies of its
				// operands and result.
				copies := max(0, workspace(profile)-workspace(plain))
				r := float64(peak) / float64(estimate)
				least, greatest = min(least, r), max(greatest, float64(peak-copies)/float64(estimate))
				require.LessOrEqual(t, float64(peak-copies), 1.05*float64(estimate), "%v, seed %d: too low: %v", dtype, seed, c.Chosen())
				require.Greater(t, r, 0.88, "%v, seed %d: too high: estimate %d, peak %d, %v", dtype, seed, estimate, peak, c.Chosen())
			}
			require.NoError(t, in.Close())
		}
		t.Logf("%v: peaks are %.3f of the estimates and more, without copies at most %.3f", dtype, least, greatest)
	}
}

// TestPlanOfGradients: a gradient in bfloat16 counts as such. A gradient that is a sum, of uses or
// tapes, or that is reduced, counts as float32. Bfloat16 copies of parameters count unless they are
// not needed.
func TestPlanOfGradients(t *testing.T) {
	alone := tapetest.NewCrew(t, 1, 64<<20, 0).Ranks[0]
	b := alone.Bench
	in := nn.Init(b.Ctx, b.RT, nn.Seed(3))
	once, twice, frozen := in.Linear(8, 8, nn.NoBias()), in.Linear(8, 16, nn.NoBias()), in.Linear(16, 8, nn.NoBias())
	frozen.Weight.SetRequiresGrad(false)
	var plan remat.Plan
	layers := []nn.Layer{plan.Layer("once", once), plan.Layer("twice", twice), plan.Layer("frozen", frozen)}
	x := in.Tensor(make([]float64, 32), 4, 8)
	require.NoError(t, in.Err())
	backward := func(dtype tensor.Dtype, uses int) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		tape.SetComputeDtype(dtype)
		y := layers[0].Forward(tape, tape.Input(x))
		z := layers[1].Forward(tape, y)
		for range uses - 1 {
			z = tape.Add(z, layers[1].Forward(tape, y))
		}
		_, err := tape.Backward(tape.Mean(layers[2].Forward(tape, z)))
		require.NoError(t, errors.Join(err, tape.Close()))
	}
	requireCounts := func(grads, copies []int64) {
		t.Helper()
		c := remat.NewSelection(&plan, memcache.Profile{})
		require.Equal(t, grads, c.Grads())
		require.Equal(t, copies, c.Copies())
	}
	requireCounts([]int64{256, 512, 0}, []int64{0, 0, 0}) // before any step
	params := append(once.Parameters(), twice.Parameters()...)
	backward(tensor.BFloat16, 1)
	requireCounts([]int64{128, 256, 0}, []int64{128, 256, 256})
	for i, p := range params {
		require.EqualValues(t, []int64{128, 256}[i], p.Grad().Bytes())
	}
	backward(tensor.BFloat16, 1) // the sum of two tapes
	requireCounts([]int64{256, 512, 0}, []int64{128, 256, 256})
	require.NoError(t, params.ZeroGrad(b.Ctx))
	backward(tensor.BFloat16, 2)
	requireCounts([]int64{128, 512, 0}, []int64{128, 256, 256})
	require.NoError(t, params.ZeroGrad(b.Ctx))
	dp, err := parallel.New(b.Ctx, alone.Comm, nn.Sequential{once, twice, frozen}, parallel.Config{})
	require.NoError(t, err)
	requireCounts([]int64{256, 512, 0}, []int64{128, 256, 256})
	backward(tensor.BFloat16, 1)
	requireCounts([]int64{256, 512, 0}, []int64{128, 256, 256})
	require.NoError(t, errors.Join(params.ZeroGrad(b.Ctx), dp.Close()))
	backward(tensor.Float32, 1)
	requireCounts([]int64{256, 512, 0}, []int64{0, 0, 0})
	require.NoError(t, params.ZeroGrad(b.Ctx))
	require.NoError(t, in.Close())
}

// TestPlanOfSharedLayers: a parameter that several layers share has one gradient, from the backward
// pass of the last of them on, and one bfloat16 copy, until that of the first.
func TestPlanOfSharedLayers(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(3))
	shared, own := in.Linear(256, 256), in.Linear(256, 256)
	require.NoError(t, in.Err())
	all := func(l *nn.Linear) (bytes int64) {
		for _, w := range l.Parameters() {
			bytes += w.Value().Bytes()
		}
		return bytes
	}
	var plan remat.Plan
	for i, l := range []nn.Layer{nn.Sequential{shared, nn.GELU{}}, nn.Sequential{shared, nn.GELU{}, shared, nn.GELU{}, own}, nn.Sequential{shared, nn.GELU{}}, nn.Sequential{nn.GELU{}}} {
		plan.Layer(fmt.Sprint("net.", i), l)
	}
	c := remat.NewSelection(&plan, memcache.Profile{})
	require.Equal(t, []int64{0, all(own), all(shared), 0}, c.Grads())
	require.Equal(t, []int64{0, 0, 0, 0}, c.Copies())
	for _, part := range remat.PlannedOf(&plan) {
		part.SetCompute(tensor.BFloat16)
	}
	c = remat.NewSelection(&plan, memcache.Profile{})
	require.Equal(t, []int64{all(shared) / 2, all(own) / 2, 0, 0}, c.Copies())
	shared.Weight.SetRequiresGrad(false)
	c = remat.NewSelection(&plan, memcache.Profile{})
	require.Equal(t, []int64{0, all(own), shared.Bias.Value().Bytes(), 0}, c.Grads())
	require.Equal(t, []int64{all(shared) / 2, all(own) / 2, 0, 0}, c.Copies())
	require.NoError(t, in.Close())
}
