package forecast

import (
	"context"
	"fmt"
	"strings"

	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/memcache"
)

// Way is another way to run a training that may need less memory, such as another dtype or
// offloading.
type Way struct {
	Name    string
	Program Program
}

// Advice is another way to run a training that does not fit, and its memory. Sizes are in bytes. If
// it does not fit either, they are those of a device with unlimited memory.
type Advice struct {
	// Name is the name of the [Way], "checkpoint" with the layers, or allocator options in the
	// format of [memcache.ParseConfig].
	Name          string `json:"name"`
	Fits          bool   `json:"fits"`
	AllocatedPeak int64  `json:"allocated_peak"`
	ReservedPeak  int64  `json:"reserved_peak"`
	// Checkpoint lists the names of the layers, for [remat.Plan.Set].
	Checkpoint []string `json:"checkpoint,omitempty"`
}

// allocators are options that reduce fragmentation.
var allocators = []string{
	"expandable_segments:True",
	"expandable_segments:True,expandable_granule_mb:2,expandable_remap:True",
}

// advise tries other ways to run a trial: first those that do not change its results, then the
// training's Ways. f is the trial's forecast, and peak the profile at the peak of its second step.
func (t trial) advise(ctx context.Context, f *Forecast, training *Training, peak memcache.Profile) error {
	t.page = nil
	for _, options := range allocators {
		a, err := t.with(func(t *trial) { t.config = options }).advice(ctx, options)
		if err != nil {
			return err
		}
		if a.Fits {
			f.Advice = append(f.Advice, a)
			break
		}
	}
	if training.Plan != nil {
		a, err := t.checkpoints(ctx, training.Plan, peak, f.Capacity)
		if err != nil {
			return err
		}
		if len(a.Checkpoint) > 0 {
			f.Advice = append(f.Advice, a)
		}
	}
	for _, w := range training.Ways {
		a, err := t.with(func(t *trial) { t.program = w.Program }).advice(ctx, w.Name)
		if err != nil {
			return err
		}
		f.Advice = append(f.Advice, a)
	}
	return nil
}

func (t trial) advice(ctx context.Context, name string) (Advice, error) {
	f, err := t.forecast(ctx, nil)
	if err != nil {
		return Advice{}, fmt.Errorf("advice: %s: %w", name, err)
	}
	return Advice{Name: name, Fits: f.Fits, AllocatedPeak: f.AllocatedPeak, ReservedPeak: f.ReservedPeak, Checkpoint: t.checkpoint}, nil
}

// checkpoints tries choices of a plan for decreasing budgets until one fits. This is necessary
// because a plan's estimate does not include fragmentation and memory from before the step.
func (t trial) checkpoints(ctx context.Context, plan *remat.Plan, peak memcache.Profile, capacity int64) (a Advice, err error) {
	for budget := capacity; ; {
		estimate, over := plan.Choose(peak, budget)
		names := plan.Chosen()
		a, err = t.with(func(t *trial) { t.checkpoint = names }).advice(ctx, "checkpoint "+strings.Join(names, ", "))
		if err != nil || a.Fits || over != nil {
			return a, err
		}
		budget = estimate - max((a.ReservedPeak-capacity)/4, 1)
	}
}
