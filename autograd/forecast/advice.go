package forecast

import (
	"context"
	"fmt"
	"strings"

	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/memcache"
)

// Way is another way of a training, which may take less memory: another dtype, or with offloading.
type Way struct {
	Name    string
	Program Program
}

// Advice is another way of a training that does not fit, and what it takes. Sizes are bytes. If it
// does not fit either, they are those of a device of unlimited memory.
type Advice struct {
	// Name is that of the [Way], "checkpoint" with the layers, or options as [memcache.ParseConfig]
	// reads them.
	Name          string `json:"name"`
	Fits          bool   `json:"fits"`
	AllocatedPeak int64  `json:"allocated_peak"`
	ReservedPeak  int64  `json:"reserved_peak"`
	// Checkpoint are the names of the layers, as [remat.Plan.Set] takes them.
	Checkpoint []string `json:"checkpoint,omitempty"`
}

// allocators are the options against free pieces that serve no request.
var allocators = []string{
	"expandable_segments:True",
	"expandable_segments:True,expandable_granule_mb:2,expandable_remap:True",
}

// advise tries other ways of a trial: first those that leave its numbers as they are, then those of
// its training. f is its forecast, and peak that of the second step.
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

// checkpoints tries choices of a plan for smaller and smaller budgets until one fits. A plan's
// estimate leaves out free pieces, and memory from before the step.
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
